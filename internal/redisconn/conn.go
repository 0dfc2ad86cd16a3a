package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/tlsfiles"
)

// dialer makes the connections of one client.
type dialer struct {
	timeout time.Duration
	tls     *tlsfiles.Files // nil: unencrypted
	broken  func()          // called when a connection could not be made, or broke; may be nil
	moves   bool            // the next connection may be to another address: it is not worth insisting on this one

	connections *Connections // may be nil
	unanswered  func()       // called when a TLS handshake is left without an answer

	generation atomic.Uint64 // connections of an older one are left
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if isOnlyLooking(ctx) {
		return nil, errOnlyLooking
	}
	generation := d.generation.Load()
	c, err := d.connect(ctx, network, addr)
	if err != nil {
		d.onBroken()
		return nil, err
	}
	c.dialer, c.generation, c.gone = d, generation, d.connections.made()
	return c, nil
}

var errOnlyLooking = errors.New("nothing is to be connected")

// connect makes a connection, and keeps its file at hand: the layer of TLS hides it.
func (d *dialer) connect(ctx context.Context, network, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	plain, err := d.reach(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	var raw syscall.RawConn
	if s, ok := plain.(syscall.Conn); ok {
		if raw, err = s.SyscallConn(); err != nil {
			plain.Close()
			return nil, err
		}
	}
	if d.tls == nil {
		return &conn{Conn: plain, raw: raw}, nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		plain.Close()
		return nil, err
	}
	secure := tls.Client(plain, tlsConfig(d.tls, host))
	late := time.AfterFunc(handshake, d.unanswered)
	defer late.Stop()
	if err := secure.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, fmt.Errorf("TLS with %s: %w", addr, err)
	}
	return &conn{Conn: secure, raw: raw, encrypted: true}, nil
}

// handshake is how long a server may leave a TLS handshake without an answer until that is logged. A Redis without TLS never answers one: it
// waits for the end of what it takes for a command.
const handshake = 500 * time.Millisecond

// attempt is how long a server may take to accept a connection before it is asked anew. Left alone, the system asks a
// machine that does not answer ever more seldom, and seconds would pass until it is noticed that it is back.
const attempt = 500 * time.Millisecond

// reach connects to a server, and goes on trying while nobody answers.
func (d *dialer) reach(ctx context.Context, network, addr string) (net.Conn, error) {
	system := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	addrs := []string{addr}
	if overTCP(network) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host) // not a part of an attempt: it may take its time
		if err != nil {
			return nil, err
		}
		addrs = addrs[:0]
		for _, ip := range ips {
			if is4 := net.ParseIP(ip).To4() != nil; network == "tcp" || is4 == (network == "tcp4") {
				addrs = append(addrs, net.JoinHostPort(ip, port))
			}
		}
		if len(addrs) == 0 {
			return nil, fmt.Errorf("%s has no address of %s", host, network)
		}
	}
	for n := 1; ; n++ {
		within, cancel := context.WithTimeout(ctx, attempt)
		c, err := system.DialContext(within, network, addrs[(n-1)%len(addrs)])
		cancel()
		if err == nil {
			return c, nil
		}
		late, ok := errors.AsType[net.Error](err)
		unanswered := ok && late.Timeout() && !d.moves
		if ctx.Err() != nil || !unanswered && n >= len(addrs) {
			return nil, err
		}
	}
}

// retire leaves all connections that were made until now: each is closed when its turn comes the next time, before a
// call uses it.
func (d *dialer) retire() { d.generation.Add(1) }

func (d *dialer) onBroken() {
	if d.broken != nil {
		d.broken()
	}
}

// conn is a connection in the client library's pool.
type conn struct {
	net.Conn
	raw        syscall.RawConn // of the socket, also beneath TLS; nil where the system has none
	encrypted  bool
	dialer     *dialer
	generation uint64
	gone       func() // called once, when it is closed

	guard *breaker  // of the server; may be nil
	by    time.Time // when the answer that is being read has to be there; zero: whenever
	asked int64     // when it was asked for, by the guard's clock
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.gone()
	return c.Conn.Close()
}

var errRetired = errors.New("the connection is to be left")

// SyscallConn lets the pool see whether the other side has hung up before a call uses the connection. With TLS it looks itself.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if c.raw == nil || c.generation != c.dialer.generation.Load() {
		return nil, errRetired
	}
	if c.encrypted {
		if err := c.checkIdle(); err != nil {
			return nil, err
		}
		return alive{}, nil
	}
	return c.raw, nil
}

// SetDeadline implements net.Conn. It is for what is said before calls are: no breaker listens.
func (c *conn) SetDeadline(t time.Time) error {
	c.by = time.Time{}
	return c.Conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn. The wait ends earlier if the server is silent for as long as its breaker allows.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.by = t
	if c.guard == nil || t.IsZero() {
		return c.Conn.SetReadDeadline(t)
	}
	c.asked = c.guard.now()
	return c.Conn.SetReadDeadline(earlier(t, time.Now().Add(c.guard.opts.Silence)))
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for err != nil && n == 0 && IsTimeout(err) && c.goOn() {
		n, err = c.Conn.Read(p)
	}
	if err != nil && n == 0 && IsTimeout(err) && !c.by.IsZero() && c.Conn.SetReadDeadline(time.Now().Add(lastLook)) == nil {
		// The answer may have been there for long, and this process without a CPU: a read after its deadline does not look.
		n, err = c.Conn.Read(p)
	}
	if n > 0 && c.guard != nil {
		c.guard.heard()
	}
	if err != nil {
		err = c.interrupted(err)
	}
	return n, err
}

// lastLook is how long a connection is read once more after its time is up.
const lastLook = time.Millisecond

// goOn sets the next deadline of a read whose last one has passed, if there is time left and the server has sent something lately,
// on whichever connection.
func (c *conn) goOn() bool {
	now := time.Now()
	if c.guard == nil || c.by.IsZero() || !now.Before(c.by) {
		return false
	}
	left := c.guard.opts.Silence - time.Duration(c.guard.now()-max(c.asked, c.guard.last.Load()))
	return left > 0 && c.Conn.SetReadDeadline(earlier(c.by, now.Add(left))) == nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		err = c.interrupted(err)
	}
	return n, err
}

// interrupted hides what an error is made of. The library recognizes errors after which it would send a command again;
// but once a connection has been in use, nobody knows whether Redis has executed what was sent.
func (c *conn) interrupted(err error) error {
	c.dialer.onBroken()
	if n, ok := errors.AsType[net.Error](err); ok && n.Timeout() {
		return late{err.Error()}
	}
	return interrupted{err.Error()}
}

// interrupted is a connection that broke while it was used.
type interrupted struct{ text string }

func (e interrupted) Error() string { return e.text }

// late is a deadline that passed while a connection was used.
type late struct{ text string }

func (e late) Error() string { return e.text }

// Timeout and Temporary make it a net.Error.
func (late) Timeout() bool { return true }

// Temporary says that a later call may succeed.
func (late) Temporary() bool { return true }

// Is makes it a deadline that was exceeded.
func (late) Is(target error) bool {
	return target == context.DeadlineExceeded || target == os.ErrDeadlineExceeded
}

// seldom returns a function that calls f at most once in a while.
func seldom(every time.Duration, f func()) func() {
	var last atomic.Int64
	return func() {
		now, before := time.Now().UnixNano(), last.Load()
		if now-before > int64(every) && last.CompareAndSwap(before, now) {
			f()
		}
	}
}
