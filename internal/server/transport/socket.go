package transport

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
)

// socket is a connection whose Write never blocks. A separate goroutine writes the data that the kernel does not accept
// immediately. TLS writes to a socket as well, so an encrypted connection does not block either.
type socket struct {
	net.Conn

	kernel net.Conn        // the connection below all wrappers
	raw    syscall.RawConn // nil leaves every write to the goroutine

	unsent atomic.Int64  // bytes that the kernel has not accepted
	moved  func(n int64) // called with each change of their memory; may be nil

	mu       sync.Mutex
	rest     []byte // data that the kernel has not accepted
	draining bool   // a goroutine is writing the rest
	failed   error
	sent     sync.Cond // signals the end of a write of the goroutine; uses mu

	// Arguments and results of an attempt, so that it needs no closure.
	p   []byte
	n   int
	err error
	try func(fd uintptr) bool
}

func newSocket(c net.Conn, kernel net.Conn) *socket {
	s := &socket{Conn: c, kernel: kernel}
	s.sent.L = &s.mu
	if k, ok := kernel.(syscall.Conn); ok {
		if raw, err := k.SyscallConn(); err == nil {
			s.raw = raw
		}
	}
	s.try = func(fd uintptr) bool {
		s.n, s.err = syscall.Write(int(fd), s.p)
		return true
	}
	return s
}

// Write implements net.Conn. It always accepts all of p.
func (s *socket) Write(p []byte) (int, error) {
	more, err := s.write(p)
	s.move(more)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// move reports a change of memory, in bytes.
func (s *socket) move(n int) {
	if n != 0 && s.moved != nil {
		s.moved(int64(n))
	}
}

// write returns the additional memory, in bytes, for data that the kernel has not accepted.
func (s *socket) write(p []byte) (more int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return 0, s.failed
	}
	n := 0
	if !s.draining {
		if n = s.attempt(p); s.failed != nil {
			return 0, s.failed
		}
	}
	if n == len(p) {
		return 0, nil
	}
	before := cap(s.rest)
	s.rest = append(s.rest, p[n:]...)
	s.unsent.Add(int64(len(p) - n))
	if !s.draining {
		s.draining = true
		go s.drain()
	}
	return cap(s.rest) - before, nil
}

// attempt writes the data that the kernel accepts immediately. The lock must be held.
func (s *socket) attempt(p []byte) int {
	if s.raw == nil {
		return 0
	}
	for n := 0; ; {
		s.p, s.n, s.err = p[n:], 0, nil
		if err := s.raw.Write(s.try); err != nil {
			s.failed = err
			return 0
		}
		s.p = nil
		if s.n > 0 {
			n += s.n
		}
		switch {
		case n == len(p), errors.Is(s.err, syscall.EAGAIN):
			return n
		case s.err == nil, errors.Is(s.err, syscall.EINTR):
		default:
			s.failed = s.err
			return 0
		}
	}
}

// drain writes the rest, including data added since.
func (s *socket) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.failed == nil && len(s.rest) > 0 {
		p := s.rest
		s.rest = nil
		s.mu.Unlock()
		_, err := s.Conn.Write(p)
		s.move(-cap(p))
		s.mu.Lock()
		if s.failed == nil {
			s.failed = err
		}
		s.unsent.Add(-int64(len(p)))
		s.sent.Broadcast()
	}
	s.draining = false
	left := cap(s.rest) // set if writing has failed
	s.rest = nil
	s.mu.Unlock()
	s.move(-left)
	s.mu.Lock()
}

// await waits until at most n bytes are unsent, or the connection has failed.
func (s *socket) await(n int64) {
	if s.unsent.Load() <= n {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.failed == nil && s.unsent.Load() > n {
		s.sent.Wait()
	}
}

// flushed waits until everything is sent, or the connection has failed.
func (s *socket) flushed() { s.await(0) }

// closeWrite tells the client that no more data follows.
func (s *socket) closeWrite() {
	if half, ok := s.kernel.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// Close implements net.Conn.
func (s *socket) Close() error {
	err := s.Conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		s.failed = net.ErrClosed
	}
	s.sent.Broadcast()
	return err
}
