package descriptor

import "testing"

// A new key changes the checksum of the rules that have it, and no other.
func TestNewFactIsHashed(t *testing.T) {
	owner := Facts[string]{
		{Key: "owner", text: func(s *string) string { return *s }},
		{Key: "team", hidden: true, text: func(s *string) string { return *s }},
	}
	for of, want := range map[string]string{"": "b", "ops": "b\x05owner\x03ops\x04team\x03ops"} {
		if got := string(owner.appendTo([]byte("b"), &of)); got != want {
			t.Errorf("%q has the bytes %q, want %q", of, got, want)
		}
	}
}
