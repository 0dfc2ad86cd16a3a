package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// Client asks the service. New makes one.
type Client struct {
	conn         *grpc.ClientConn // nil for NewWithConn, whose connection is the caller's
	reservations ratelimitdv1.ReservationServiceClient
	timeout      time.Duration
	onFailure    limits.OnFailure
	observer     limits.Observer
	queue        *queue
	denials      *denials // nil if denials are not remembered
	stats        counts
	calls        sync.Pool
}

// The connection. Pings are sent only while calls are in flight and nothing has come for pingAfter; they find a service
// that hangs.
const (
	pingAfter     = 10 * time.Second
	pingTimeout   = 2 * time.Second
	firstRedial   = 100 * time.Millisecond
	longestRedial = 5 * time.Second
	connectWithin = 5 * time.Second
)

// New returns a client of the service at a target, which is host:port or any other name that grpc.NewClient takes: with
// dns:///host:port the calls go to all addresses of the name in turn. It starts to connect and does not wait for the
// connection.
func New(target string, o Options) (*Client, error) {
	if target == "" {
		return nil, errors.New("ratelimitd client: the target is empty: it must be host:port of the service")
	}
	secure := insecure.NewCredentials()
	if o.TLS != nil {
		secure = credentials.NewTLS(o.TLS)
	}
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(secure),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
		grpc.WithIdleTimeout(0), // the first call after a quiet night has 20 ms too
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstRedial, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestRedial},
			MinConnectTimeout: connectWithin,
		}),
	}, o.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("ratelimitd client: %w", err)
	}
	conn.Connect()
	c := NewWithConn(conn, o)
	c.conn = conn
	return c, nil
}

// NewWithConn returns a client on a connection that the caller opened and closes. Options.TLS and Options.DialOptions
// are ignored.
func NewWithConn(conn grpc.ClientConnInterface, o Options) *Client {
	c := &Client{
		reservations: ratelimitdv1.NewReservationServiceClient(conn),
		timeout:      o.timeout(),
		onFailure:    cmp.Or(o.OnFailure, limits.OnFailureAllow),
		observer:     o.Observer,
	}
	c.queue = newQueue(ratelimitdv1.NewDecisionServiceClient(conn), &c.stats)
	c.calls.New = func() any { return newCall() }
	if o.MaxDenials >= 0 {
		c.denials = newDenials(cmp.Or(o.MaxDenials, defaultMaxDenials))
	}
	return c
}

// Close closes the connection that New opened, and returns when all goroutines of the client have ended. Calls in
// flight fail immediately, as do later ones; Options.OnFailure answers them. Close may be called again. The error is
// always nil.
func (c *Client) Close() error {
	c.queue.close()
	if c.conn != nil {
		_ = c.conn.Close() // its only error is that it is closed already
	}
	c.queue.flights.Wait()
	return nil
}

// Decide decides one request. The error is limits.ErrInvalid for a request that cannot be decided, and the error of ctx
// if the caller has canceled ctx. If the service does not answer, Decide returns an error only with
// limits.OnFailureError. Otherwise the error is in Err of the decision.
func (c *Client) Decide(ctx context.Context, r *limits.Request) (limits.Decision, error) {
	start := time.Now()
	d, err := c.decide(ctx, r, start)
	c.decided(ctx, r, &d, err, start)
	return d, err
}

// decided counts a decision, and shows it to the observer.
func (c *Client) decided(ctx context.Context, r *limits.Request, d *limits.Decision, err error, start time.Time) {
	c.stats.count(d, err)
	if c.observer != nil {
		c.observer.Decided(ctx, r, d, err, time.Since(start))
	}
}

func (c *Client) decide(ctx context.Context, r *limits.Request, start time.Time) (d limits.Decision, err error) {
	call := c.calls.Get().(*call)
	if call.wire, err = appendRequest(call.wire[:0], r); err != nil {
		c.release(call)
		return d, err
	}
	known, ask := c.denials.find(call.wire, start)
	if known != nil && !ask {
		c.release(call)
		return known.decision(start), nil
	}
	call.ctx, call.deadline = ctx, deadline(ctx, start, c.timeout)
	answered, err := c.queue.ask(call)
	if err == nil {
		d, err = answerOf(call.response)
	}
	switch {
	case err == nil:
		c.denials.learn(call.wire, &d, known, time.Now())
	case errors.Is(err, limits.ErrInvalid), errors.Is(err, context.Canceled):
	case known != nil:
		if now := time.Now(); now.Before(known.until) {
			d, err = known.decision(now), nil
			break
		}
		fallthrough
	default:
		d, err = c.fail(err)
	}
	if answered {
		c.release(call)
	}
	return d, err
}

// maxMargin is how much earlier than its deadline a call ends. In an otherwise idle process, Go's timers are late by up
// to this.
const maxMargin = time.Millisecond

// deadline returns when a call that started at start has to end: a little before the deadline of its caller.
func deadline(ctx context.Context, start time.Time, timeout time.Duration) time.Time {
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, end.Sub(start))
	}
	return start.Add(timeout - min(timeout/10, maxMargin))
}

// fail is the answer without an answer of the service.
func (c *Client) fail(err error) (limits.Decision, error) {
	return c.onFailure.Failed(fmt.Errorf("ratelimitd: %w", err))
}

// Allow decides a request of one hit under one descriptor, given as pairs of key and value. If the rule is a leaky
// bucket that delays requests, Allow returns after the delay.
func (c *Client) Allow(ctx context.Context, domain string, pairs ...string) (bool, error) {
	return limits.Allow(ctx, c, limits.NewRequest(domain, pairs...))
}

// Wait repeats a request until it is allowed, and waits in between as long as the answers say: see limits.Wait.
func (c *Client) Wait(ctx context.Context, r *limits.Request) (limits.Decision, error) {
	return limits.Wait(ctx, c, r)
}
