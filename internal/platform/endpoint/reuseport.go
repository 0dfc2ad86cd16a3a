//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package endpoint

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// sharePort lets other listeners of this user have the same port. On Linux the kernel spreads connections among them.
func sharePort(c syscall.RawConn) error {
	var failed error
	if err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); err != nil {
		return err
	}
	return failed
}
