//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// openTerminal opens a pseudo-terminal. The command writes to tty and the test reads from seen.
func openTerminal(t *testing.T) (seen, tty *os.File) {
	t.Helper()
	seen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = seen.Close() })
	if err := unix.IoctlSetPointerInt(int(seen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(seen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(seen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return seen, tty
}

// On a terminal, a line shows the progress of a simulation and disappears at the end. Other outputs get no such line.
func TestSimulateProgress(t *testing.T) {
	racetest.Sequential(t)
	t.Chdir("../..")
	text, err := os.ReadFile("examples/simulate/access.log")
	if err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(t.TempDir(), "access.log")
	if err := os.WriteFile(long, bytes.Repeat(text, 300), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"simulate", "--rules", "examples/simulate/rules", "--mapping", "examples/simulate/envoy.yaml", "--log", long}
	watch := func(args ...string) (screen, stdout string) {
		seen, tty := openTerminal(t)
		cmd := command(t, map[string]string{"TERM": "xterm"}, args...)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, tty
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = tty.Close()
		text, err := io.ReadAll(seen)
		if err != nil && !errors.Is(err, syscall.EIO) { // the other end is closed
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return string(text), out.String()
	}
	screen, stdout := watch(args...)
	if !strings.Contains(screen, "295200 requests") || !strings.Contains(stdout, "295,200 requests of") {
		t.Errorf("the terminal shows %q, standard output has\n%s", screen, stdout)
	}
	if !strings.HasSuffix(screen, "\r\x1b[K") {
		t.Errorf("the line is left on the screen: %q", screen)
	}
	if _, _, stderr := simulateRules(t, args[1:]...); stderr != "" {
		t.Errorf("without a terminal standard error has %q", stderr)
	}
}
