package descriptor

import "testing"

// A new key changes the checksum of the rules that have it, and no other.
func TestNewFactIsHashed(t *testing.T) {
	owner := Facts[string]{
		{Key: "older", text: func(*string) string { return "true" }},
		{Key: "owner", hashed: true, text: func(s *string) string { return *s }},
	}
	for of, want := range map[string]string{"": "b", "team": "b\x05owner\x04team"} {
		if got := string(owner.appendHashed([]byte("b"), &of)); got != want {
			t.Errorf("%q has the bytes %q, want %q", of, got, want)
		}
	}
}
