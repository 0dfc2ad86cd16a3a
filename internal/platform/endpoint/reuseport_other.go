//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package endpoint

import (
	"errors"
	"syscall"
)

func sharePort(syscall.RawConn) error {
	return errors.New("listeners cannot share a port on this system: SO_REUSEPORT is missing")
}
