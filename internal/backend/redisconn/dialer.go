package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
)

const (
	// handshakeWarning is how long a server may leave a TLS handshake unanswered before that is logged and a cluster's
	// topology is read again. A Redis without TLS never answers: it reads the handshake as a command and waits for the
	// rest.
	handshakeWarning = 500 * time.Millisecond

	// attemptTimeout is how long a server may take to accept a connection before another attempt is made. The system
	// itself retries less and less often, so it would notice seconds too late that the machine is back.
	attemptTimeout = 500 * time.Millisecond
)

// dialer makes the connections of one client.
type dialer struct {
	timeout time.Duration
	tls     *tlsfiles.Files // nil for unencrypted connections
	own     dialFunc        // dial function of the program, which encrypts too; nil if this dialer connects
	moves   bool            // the next connection may go to another address: this one is tried once

	connections *Connections // may be nil
	onBroken    func()       // called when a connection broke, or cannot be made; may be nil
	onNoAnswer  func()       // called while a TLS handshake is left without an answer
	settings    string       // the first letters of the variables, for advice

	unanswered atomic.Int64 // TLS handshakes that are left without an answer

	generation atomic.Uint64 // connections of an older one are retired
}

func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if isWithoutDialing(ctx) {
		return nil, errNoDial
	}
	generation := d.generation.Load()
	c, err := d.connect(ctx, network, addr)
	if err != nil {
		d.broken()
		return nil, err
	}
	c.dialer, c.generation, c.onClose = d, generation, d.connections.add()
	return c, nil
}

// connect makes a connection. It keeps the socket, which the TLS layer hides.
func (d *dialer) connect(ctx context.Context, network, addr string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if d.own != nil {
		return d.reachOwn(ctx, network, addr)
	}
	plain, err := d.reach(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	socket, err := socketOf(plain)
	if err != nil {
		plain.Close()
		return nil, err
	}
	if d.tls == nil {
		return &conn{Conn: plain, socket: socket}, nil
	}
	host := addr // no certificate names the path of a unix socket: REDIS_TLS_SKIP_HOSTNAME_VERIFICATION
	if network != "unix" {
		if host, _, err = net.SplitHostPort(addr); err != nil {
			plain.Close()
			return nil, err
		}
	}
	secure := tls.Client(plain, tlsConfig(d.tls, host))
	answered := make(chan struct{})
	defer close(answered)
	go d.watchHandshake(answered)
	if err := secure.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, fmt.Errorf("TLS with %s: %w", addr, err)
	}
	return &conn{Conn: secure, socket: socket, encrypted: true}, nil
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// socketOf returns the socket of a connection, or nil if it has none.
func socketOf(c net.Conn) (syscall.RawConn, error) {
	if s, ok := c.(syscall.Conn); ok {
		return s.SyscallConn() //nolint:wrapcheck // it names the connection
	}
	return nil, nil //nolint:nilnil // a connection without a socket is fine
}

// explain adds advice to the error of a call that got no answer in time, if handshakes are not answered either.
func (d *dialer) explain(err error) error {
	if d.unanswered.Load() == 0 {
		return err
	}
	return advised(err, d.advice(noHandshake))
}

func (d *dialer) advice(text string) string { return strings.ReplaceAll(text, "{}", d.settings) }

// watchHandshake reports a TLS handshake that is left without an answer, again and again until answered is closed. A
// cluster may replace a node that hangs long before the connect timeout.
func (d *dialer) watchHandshake(answered <-chan struct{}) {
	tick := time.NewTicker(handshakeWarning)
	defer tick.Stop()
	for late := false; ; {
		select {
		case <-answered:
			return
		case <-tick.C:
			if !late {
				late = true
				d.unanswered.Add(1)
				defer d.unanswered.Add(-1)
			}
			d.onNoAnswer()
			d.broken()
		}
	}
}

// reach connects to a server. While no address answers it tries again.
func (d *dialer) reach(ctx context.Context, network, addr string) (net.Conn, error) {
	system := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second,
		Interval: 5 * time.Second, Count: 3}}
	addrs := []string{addr}
	if overTCP(network) {
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host) // not part of an attempt: it may take longer
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
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		c, err := system.DialContext(attempt, network, addrs[(n-1)%len(addrs)])
		cancel()
		if err == nil {
			return c, nil
		}
		failure, ok := errors.AsType[net.Error](err)
		again := ok && failure.Timeout() && !d.moves
		if ctx.Err() != nil || !again && n >= len(addrs) {
			return nil, err
		}
	}
}

// retire makes the pool close all connections that exist now, each when it is about to be used the next time.
func (d *dialer) retire() { d.generation.Add(1) }

func (d *dialer) broken() {
	if d.onBroken != nil {
		d.onBroken()
	}
}

// atMostEvery returns a function that calls f at most once per interval, by the monotonic clock.
func atMostEvery(interval time.Duration, f func()) func() {
	base := time.Now().Add(-interval)
	var last atomic.Int64 // the latest call of f, in nanoseconds after base
	return func() {
		now, before := int64(time.Since(base)), last.Load()
		if now-before >= int64(interval) && last.CompareAndSwap(before, now) {
			f()
		}
	}
}
