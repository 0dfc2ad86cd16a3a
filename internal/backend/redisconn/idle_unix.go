//go:build unix

package redisconn

import (
	"io"
	"syscall"
)

// unread reports whether bytes wait to be read from a socket. It returns an error if the other side has hung up.
func unread(socket syscall.RawConn) (waiting bool, err error) {
	var n int
	var failed error
	err = socket.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, failed = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	})
	switch {
	case err != nil:
		return false, err
	case failed == syscall.EAGAIN || failed == syscall.EWOULDBLOCK:
		return false, nil
	case failed != nil:
		return false, failed
	case n == 0:
		return false, io.EOF
	}
	return true, nil
}
