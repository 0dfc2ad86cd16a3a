package endpoint

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveUpAfter ends connections of a listener on which sent data is not acknowledged for this time. grpc-go does so
// itself, but only for connections of the standard library's own type.
func giveUpAfter(wait time.Duration, c syscall.RawConn) error {
	var failed error
	if err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(wait.Milliseconds()))
	}); err != nil {
		return err
	}
	return failed
}
