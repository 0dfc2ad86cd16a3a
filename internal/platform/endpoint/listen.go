package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// ListenError is the error of a listener that cannot be opened.
type ListenError struct {
	What string // gRPC, gRPC on unix socket, HTTP, metrics, debug or regions
	At   string // address or path
	Err  error
}

// Error implements error.
func (e *ListenError) Error() string {
	if e.What == onSocket {
		return fmt.Sprintf("listen for %s %s: %v", e.What, e.At, e.Err)
	}
	return fmt.Sprintf("listen for %s on %s: %v", e.What, e.At, e.Err)
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

const onSocket = "gRPC on unix socket"

// Listen opens a TCP listener. A connection ends when sent data is not acknowledged for giveUp; 0 leaves that to the
// system.
func (s *Shared) Listen(what, address string, giveUp time.Duration) (net.Listener, error) {
	var config net.ListenConfig
	if giveUp > 0 {
		config.Control = func(_, _ string, c syscall.RawConn) error { return giveUpAfter(giveUp, c) }
	}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, &ListenError{What: what, At: address, Err: err}
	}
	return l, nil
}

// ListenSocket opens a unix socket. It removes a socket file that a dead process has left behind, but not a socket with
// a live listener, and not another type of file. The file is removed when the listener is closed. A mode of 0 leaves
// the permissions to the umask.
func ListenSocket(path string, mode fs.FileMode) (_ net.Listener, err error) {
	failed := func(err error) error { return &ListenError{What: onSocket, At: path, Err: err} }
	abstract := strings.HasPrefix(path, "@") // an abstract socket has no file
	if !abstract {
		if err := removeStale(path); err != nil {
			return nil, failed(err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, failed(err)
	}
	if mode != 0 && !abstract {
		if err := os.Chmod(path, mode); err != nil {
			_ = l.Close()
			return nil, failed(err)
		}
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is no socket")
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
		return syscall.EADDRINUSE
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err // there may be a listener
	}
	return os.Remove(path)
}
