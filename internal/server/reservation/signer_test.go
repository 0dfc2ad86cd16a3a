package reservation

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func signer(k Key) *Signer {
	s := NewSigner()
	s.SetKey(k)
	return s
}

func TestIDs(t *testing.T) {
	s, same, other := signer(KeyFrom("secret")), signer(KeyFrom("secret")), signer(NewKey())
	n := NewNonce()
	id, err := s.Sign(n, []byte("domain and entries"))
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Signer{"the process itself": s, "a process with the same key": same} {
		if got, bytes, err := s.Open(id); err != nil || got != n || bytes != "domain and entries" {
			t.Errorf("%s: %x %q %v", name, got, bytes, err)
		}
	}
	if _, _, err := other.Open(id); !errors.Is(err, ErrID) {
		t.Errorf("a process with another key: %v", err)
	}
	s.SetKey(NewKey())
	if got, _, err := s.Open(id); err != nil || got != n {
		t.Errorf("after the key has changed: %v", err)
	}
	s.SetKey(NewKey())
	if _, _, err := s.Open(id); !errors.Is(err, ErrID) {
		t.Errorf("after the key has changed twice: %v", err)
	}
}

func TestNoKey(t *testing.T) {
	s := NewSigner()
	if _, err := s.Sign(NewNonce(), nil); !errors.Is(err, ErrNoKey) || s.Ready() {
		t.Errorf("sign: %v", err)
	}
	if _, _, err := s.Open("x"); !errors.Is(err, ErrNoKey) {
		t.Errorf("open: %v", err)
	}
}

// No change of an id is accepted: not of any bit, not a shorter or longer one, not another spelling of the same bytes.
func TestForgedIDs(t *testing.T) {
	s := signer(NewKey())
	id, err := s.Sign(NewNonce(), []byte("some bytes"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	forged := []string{"", "x", id + "A", id + "=", id + "\n", id[:len(id)-1], " " + id, strings.Repeat("A", MaxSize), strings.Repeat("A", MaxSize+1)}
	for bit := range 8 * len(raw) {
		changed := append([]byte(nil), raw...)
		changed[bit/8] ^= 1 << (bit % 8)
		forged = append(forged, base64.RawURLEncoding.EncodeToString(changed))
	}
	for i := range raw {
		forged = append(forged, base64.RawURLEncoding.EncodeToString(raw[:i]))
	}
	for _, f := range forged {
		if _, _, err := s.Open(f); !errors.Is(err, ErrID) {
			t.Errorf("%.80q: %v", f, err)
		}
	}
}

// The longest id from MaxBytes bytes is accepted.
func TestLongestID(t *testing.T) {
	s := signer(NewKey())
	id, err := s.Sign(NewNonce(), make([]byte, MaxBytes))
	if err != nil || len(id) > MaxSize {
		t.Fatalf("%d bytes, %v", len(id), err)
	}
	if _, bytes, err := s.Open(id); err != nil || len(bytes) != MaxBytes {
		t.Errorf("%d bytes, %v", len(bytes), err)
	}
}

func FuzzOpen(f *testing.F) {
	s := signer(KeyFrom("fuzz"))
	id, _ := s.Sign(Nonce{}, []byte("bytes"))
	f.Add(id)
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, text string) {
		n, bytes, err := s.Open(text)
		if err != nil {
			return
		}
		if again, err := s.Sign(n, []byte(bytes)); err != nil || again != text {
			t.Errorf("%q is accepted, %q was signed", text, again)
		}
	})
}

func TestAnyBytes(t *testing.T) {
	s := signer(NewKey())
	rapid.Check(t, func(t *rapid.T) {
		n, bytes := NewNonce(), rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		id, err := s.Sign(n, bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got, back, err := s.Open(id); err != nil || got != n || back != string(bytes) {
			t.Fatalf("%x %q %v", got, back, err)
		}
	})
}
