package tlstest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Volume is a directory of files that changes as a mounted Secret or ConfigMap does: the names are links through
// ..data, which is swapped in one step.
type Volume struct {
	Dir string

	version int
}

// NewVolume makes a volume with these files, by name.
func NewVolume(t testing.TB, files map[string][]byte) *Volume {
	t.Helper()
	v := &Volume{Dir: t.TempDir()}
	v.Swap(t, files)
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), v.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// Path is where a file is.
func (v *Volume) Path(name string) string { return filepath.Join(v.Dir, name) }

// Swap puts other files in the place of all that are there.
func (v *Volume) Swap(t testing.TB, files map[string][]byte) {
	t.Helper()
	data := v.Path("..data")
	old, _ := os.Readlink(data)
	v.version++
	fresh := fmt.Sprintf("..version_%d", v.version)
	if err := os.Mkdir(v.Path(fresh), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(v.Path(fresh), name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(fresh, v.Path("..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(v.Path("..data_tmp"), data); err != nil {
		t.Fatal(err)
	}
	if old != "" {
		if err := os.RemoveAll(v.Path(old)); err != nil {
			t.Fatal(err)
		}
	}
}
