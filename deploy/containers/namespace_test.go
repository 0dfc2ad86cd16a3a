//go:build linux

package containers

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inside names the directory of the test that runs in the name spaces.
const inside = "RATELIMITD_CONTAINERS_FOLDER"

// skipped starts the line in which the test in the name spaces gives the reason why nothing was tested.
const skipped = "NOT RUN without "

// inNamespaces runs this test once more, as the first process of new name spaces. All that it starts ends with it.
func inNamespaces(t *testing.T, directory string) {
	t.Helper()
	runtime.LockOSThread() // Pdeathsig is about the thread
	defer runtime.UnlockOSThread()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=40m")
	cmd.Env = append(os.Environ(), inside+"="+directory)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	t.Cleanup(func() { removeCgroups(t, cgroup(directory)) })
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err = cmd.Run()
	t.Logf("\n%s", &said)
	for line := range strings.Lines(said.String()) {
		if _, why, found := strings.Cut(line, skipped); found && err == nil {
			t.Skip(skipped + strings.TrimSpace(why))
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// cgroup returns the parent of the containers' control groups.
func cgroup(directory string) string { return "/" + filepath.Base(directory) }

// removeCgroups removes the control groups that the daemon leaves: empty directories.
func removeCgroups(t *testing.T, name string) {
	t.Helper()
	found, _ := filepath.Glob("/sys/fs/cgroup/*" + name)
	for _, root := range append(found, "/sys/fs/cgroup"+name) {
		var directories []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				directories = append(directories, path)
			}
			return nil
		})
		slices.Reverse(directories)
		for _, f := range directories {
			if err := syscall.Rmdir(f); err != nil {
				t.Errorf("a control group stays behind: %v: %v", f, err)
			}
		}
	}
}

// settle prepares the new name spaces for a daemon.
func settle() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/opt", "/etc/docker"} { // where the daemon would leave something
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(s) }()
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}

// startDaemon starts dockerd and returns when it answers. Where it cannot start, nothing is tested.
func startDaemon(t *testing.T, directory string) *docker {
	t.Helper()
	if err := settle(); err != nil {
		t.Skipf(skipped+"name spaces to run dockerd in: %v", err)
	}
	var log lockedBuffer
	d := &docker{socket: filepath.Join(directory, "docker.sock"), directory: directory}
	cmd := exec.Command("dockerd", "--data-root", filepath.Join(directory, "data"), "--exec-root", filepath.Join(directory, "exec"),
		"--pidfile", filepath.Join(directory, "dockerd.pid"), "--host", "unix://"+d.socket, "--cgroup-parent", cgroup(directory), "--log-level", "warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Skipf(skipped+"dockerd: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dockerd said:\n%s", log.last(40))
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			t.Errorf("dockerd does not end")
		}
	})
	for deadline := time.After(time.Minute); ; {
		if err := d.try("GET", "/_ping", nil, nil); err == nil {
			return d
		}
		select {
		case <-ended:
			t.Skipf(skipped+"dockerd: it ended with %v, and said last: %s", cmd.ProcessState, strings.TrimSpace(log.last(1)))
		case <-deadline:
			t.Skipf(skipped+"dockerd: it does not answer, and said last: %s", strings.TrimSpace(log.last(1)))
		case <-time.After(50 * time.Millisecond):
		}
	}
}
