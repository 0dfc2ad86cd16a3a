package redistest

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// StartWithClock starts a server whose clock the test sets: set makes it differ from the machine's by whole seconds.
func StartWithClock(t testing.TB, args ...string) (s *Server, set func(ahead time.Duration)) {
	t.Helper()
	s, write := startWithClock(t, args, [2]int64{})
	return s, func(ahead time.Duration) {
		t.Helper()
		write([2]int64{int64(ahead / time.Second)})
	}
}

// StartWithStoppedClock starts a server whose clock stands still at the time that the test has set last. So the test
// knows the time of each command to the microsecond.
func StartWithStoppedClock(t testing.TB, at time.Time, args ...string) (s *Server, set func(at time.Time)) {
	t.Helper()
	s, write := startWithClock(t, args, [2]int64{0, at.UnixMicro()})
	return s, func(at time.Time) {
		t.Helper()
		write([2]int64{0, at.UnixMicro()})
	}
}

// startWithClock starts a server with workshop/scripts/clock.c. write writes the file that the clock follows.
func startWithClock(t testing.TB, args []string, begin [2]int64) (s *Server, write func([2]int64)) {
	t.Helper()
	if testing.Short() {
		t.Skip("NOT RUN with -short: it needs redis-server")
	}
	compiler, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		if os.Getenv("CI") != "" {
			t.Fatalf("find a C compiler: %v. workshop/scripts/install-cc gets it", err)
		}
		t.Skip("NOT RUN without a C compiler: workshop/scripts/install-cc gets it")
	}
	_, here, _, _ := runtime.Caller(0)
	dir := t.TempDir()
	library, file := filepath.Join(dir, "clock.so"), filepath.Join(dir, "shift")
	source := filepath.Join(filepath.Dir(here), "..", "..", "..", "workshop", "scripts", "clock.c")
	if out, err := exec.Command(compiler, "-O1", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", source, err, out)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	write = func(numbers [2]int64) {
		t.Helper()
		var b [16]byte
		for i, n := range numbers {
			binary.NativeEndian.PutUint64(b[8*i:], uint64(n))
		}
		if _, err := f.WriteAt(b[:], 0); err != nil {
			t.Fatal(err)
		}
	}
	write(begin)
	return StartWith(t, Setup{Args: args, env: []string{"LD_PRELOAD=" + library, "SHIFT_FILE=" + file}}), write
}
