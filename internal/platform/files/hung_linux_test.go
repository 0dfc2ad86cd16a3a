package files_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// hung is a file system that does not answer: FUSE, and no program behind it.
func hung(t *testing.T) string {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("FUSE cannot be used: %v", err)
	}
	dir := t.TempDir()
	if err := syscall.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device.Fd())); err != nil {
		_ = device.Close()
		t.Skipf("FUSE cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Unmount(dir, syscall.MNT_DETACH)
		_ = device.Close() // pending requests fail
	})
	return dir
}

// No function waits for a file system that does not answer.
func TestAFileSystemDoesNotAnswer(t *testing.T) {
	t.Parallel()
	dir := hung(t)
	for name, ask := range map[string]func(at string) error{
		"stat":      func(at string) error { _, err := files.Stat(at); return err },
		"lstat":     func(at string) error { _, err := files.Lstat(at); return err },
		"directory": func(at string) error { _, err := files.ReadDir(at); return err },
		"read":      func(at string) error { _, err := files.Read(at, 10); return err },
	} {
		if err := ask(filepath.Join(dir, name)); !errors.Is(err, files.ErrNoAnswer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
