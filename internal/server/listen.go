package server

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

	"github.com/ratelimitd/ratelimitd/internal/intake"
)

// maxDebugConnections bounds the listeners that people and scrapers use.
const maxDebugConnections = 100

// listeners are open before anything is served, so that a port for callers that is taken is an error at start.
type listeners struct {
	grpc, http net.Listener
	debug      net.Listener // nil if there is neither debug nor admin, or if it cannot be opened
	metrics    net.Listener // nil if metrics have no listener of their own, or if it cannot be opened
}

func listen(opts *Options, m *intake.Metrics, bytes *intake.Bytes) (_ listeners, err error) {
	var l listeners
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	tcp := func(what, address string, giveUp time.Duration) (net.Listener, error) {
		return open(what, address, opts.ReusePort, giveUp)
	}
	if opts.GRPCSocket != "" {
		l.grpc, err = openSocket(opts.GRPCSocket, opts.GRPCSocketMode)
	} else {
		l.grpc, err = tcp("gRPC", opts.GRPCAddr, pingTimeout)
	}
	if err != nil {
		return l, err
	}
	if l.http, err = tcp("HTTP", opts.HTTPAddr, 0); err != nil {
		return l, err
	}
	l.grpc = intake.Listen(l.grpc, intake.Options{
		Name: "grpc", MaxConnections: opts.MaxConnections, PeerShare: opts.PeerShare, Bytes: bytes, Metrics: m, Log: opts.Log,
		FirstCall: opts.FirstCallTimeout, Message: opts.MessageTimeout, Write: opts.WriteTimeout,
	})
	forHTTP := func(name string, most int) intake.Options {
		return intake.Options{Name: name, MaxConnections: most, PeerShare: opts.PeerShare, ReadsAreCalls: true, Metrics: m, Log: opts.Log}
	}
	l.http = intake.Listen(l.http, forHTTP("http", opts.MaxConnections))
	if opts.MetricsAddr != "" && opts.MetricsHandler != nil {
		l.metrics = aside("metrics", opts.MetricsAddr, opts, forHTTP("metrics", maxDebugConnections))
	}
	if !opts.NoDebug || !opts.NoAdmin {
		l.debug = aside("debug", opts.DebugAddr, opts, forHTTP("debug", maxDebugConnections))
	}
	return l, nil
}

// aside opens a listener that no caller needs. If it cannot be opened, decisions are more important: the log says so, and
// the result is nil.
func aside(what, address string, opts *Options, bounds intake.Options) net.Listener {
	l, err := open(what, address, opts.ReusePort, 0)
	if err != nil {
		opts.Log.Error("a listener beside those for callers cannot be opened: the service runs without it", "error", err)
		return nil
	}
	return intake.Listen(l, bounds)
}

// ListenError says which listener could not be opened, and why.
type ListenError struct {
	What string // gRPC, gRPC on unix socket or HTTP; in the log also metrics and debug
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

// Unwrap is what went wrong.
func (e *ListenError) Unwrap() error { return e.Err }

const onSocket = "gRPC on unix socket"

// open listens on TCP. Connections on which nothing that was sent is acknowledged for as long as giveUp end; 0 leaves
// that to the system.
func open(what, address string, reusePort bool, giveUp time.Duration) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if reusePort {
			if err := sharePort(c); err != nil {
				return err
			}
		}
		if giveUp > 0 {
			return giveUpAfter(giveUp, c)
		}
		return nil
	}}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, &ListenError{What: what, At: address, Err: err}
	}
	return l, nil
}

// openSocket listens on a unix socket. A file that a dead process has left there is removed; one on which somebody
// listens is not, and neither is a file that is no socket. The file goes when the listener is closed. A mode of 0 leaves
// what the umask gives.
func openSocket(path string, mode fs.FileMode) (_ net.Listener, err error) {
	failed := func(err error) error { return &ListenError{What: onSocket, At: path, Err: err} }
	abstract := strings.HasPrefix(path, "@") // has no file
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
		return err // who knows whether somebody listens
	}
	return os.Remove(path)
}

func (l *listeners) close() {
	for _, open := range []net.Listener{l.grpc, l.http, l.debug, l.metrics} {
		if open != nil {
			_ = open.Close()
		}
	}
}
