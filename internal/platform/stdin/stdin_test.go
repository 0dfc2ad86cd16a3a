package stdin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// The standard input is bounded. Tests of the commands that read it are in cmd/ratelimitd.
func TestStandardInputIsBounded(t *testing.T) {
	racetest.Sequential(t)
	if data, err := read(strings.NewReader("12345"), "it", 5); string(data) != "12345" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	if data, err := read(strings.NewReader("123456"), "it", 5); data != nil || err == nil || !strings.Contains(err.Error(), "more than 5 bytes") {
		t.Errorf("%q, %v; want an error", data, err)
	}
}

// Every other name is a file.
func TestFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "-")
	if err := os.WriteFile(name, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := ReadFile(name); !bytes.Equal(data, []byte("text")) || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	if NameOf(name) != name || NameOf(Name) != "<stdin>" {
		t.Errorf("%q, %q", NameOf(name), NameOf(Name))
	}
}
