package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// Client asks the service. New makes one.
type Client struct {
	conn         *grpc.ClientConn
	reservations ratelimitdv1.ReservationServiceClient
	batches      *batches
	denials      *denials // nil: none are remembered
	timeout      time.Duration
	onFailure    OnFailure
	observer     limits.Observer

	bySource [limits.Sources]atomic.Uint64
	errors   atomic.Uint64
	close    func() error
}

// New returns a client of the service at target, such as "dns:///ratelimitd:8081". Calls go in turn to all addresses of that
// name. It does not wait for a connection.
func New(target string, o Options) (*Client, error) {
	opts := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"round_robin": {}}]}`),
	}, o.DialOptions...)
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, fmt.Errorf("ratelimitd client: %w", err)
	}
	c := &Client{
		conn:         conn,
		reservations: ratelimitdv1.NewReservationServiceClient(conn),
		batches:      newBatches(ratelimitdv1.NewDecisionServiceClient(conn)),
		timeout:      cmp.Or(o.Timeout, DefaultTimeout),
		onFailure:    o.OnFailure,
		observer:     o.Observer,
	}
	if o.MaxDenials >= 0 {
		c.denials = newDenials(cmp.Or(o.MaxDenials, DefaultMaxDenials))
	}
	c.close = sync.OnceValue(func() error {
		err := conn.Close()
		c.batches.wait()
		return err
	})
	return c, nil
}

// Close ends the connection. Decisions that wait for an answer get that of Options.OnFailure.
func (c *Client) Close() error { return c.close() }

// Decide asks whether a request may pass. The error is limits.ErrInvalid for a request that cannot be decided, whatever
// Options.OnFailure is. With ReturnError it may also be why there is no answer.
func (c *Client) Decide(ctx context.Context, r *limits.Request) (limits.Decision, error) {
	start := time.Now()
	d, err := c.decide(ctx, r, start)
	if err != nil {
		c.errors.Add(1)
	} else {
		c.bySource[d.Source].Add(1)
	}
	if c.observer != nil {
		c.observer.Decided(ctx, r, &d, err, time.Since(start))
	}
	return d, err
}

func (c *Client) decide(ctx context.Context, r *limits.Request, now time.Time) (limits.Decision, error) {
	var key string
	if c.denials != nil && cacheable(r) {
		room := keys.Get().(*[]byte)
		*room = appendKey((*room)[:0], r)
		d, denied := c.denials.find(*room, now)
		if !denied {
			key = string(*room)
		}
		if cap(*room) <= maxKept {
			keys.Put(room)
		}
		if denied {
			return d, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answer, err := c.batches.ask(ctx, requestOf(r))
	if err != nil {
		return c.failed(err)
	}
	d, err := decisionOf(answer)
	if err != nil {
		return c.failed(err)
	}
	if key != "" {
		c.denials.learn(key, time.Now(), &d)
	}
	return d, nil
}

// failed is the answer where the service has none.
func (c *Client) failed(err error) (limits.Decision, error) {
	switch {
	case errors.Is(err, limits.ErrInvalid), c.onFailure == ReturnError:
		return limits.Decision{}, err
	case c.onFailure == FailClosed:
		return limits.Decision{Source: limits.FailClosed, Err: err}, nil
	default:
		return limits.Decision{Allowed: true, Source: limits.FailOpen, Err: err}, nil
	}
}

// Allow asks whether one hit under one descriptor may pass, given as pairs of key and value. If the rule is a leaky bucket that
// delays requests, Allow returns after the delay.
func (c *Client) Allow(ctx context.Context, domain string, pairs ...string) (bool, error) {
	d, err := c.Decide(ctx, limits.New(domain, pairs...))
	if err == nil && d.Allowed {
		err = limits.Sleep(ctx, d.Delay)
	}
	return d.Allowed && err == nil, err
}

// Wait asks again and again until the request may pass, and waits in between as the answers say: see limits.Wait.
func (c *Client) Wait(ctx context.Context, r *limits.Request) (limits.Decision, error) {
	return limits.Wait(ctx, c, r)
}

// Stats are counts since New.
type Stats struct {
	Decisions [limits.Sources]uint64 // by limits.Source: how the answers came about
	Errors    uint64                 // decisions that ended with an error
	Calls     uint64                 // calls for decisions that were sent to the service
	Requests  uint64                 // requests in these calls
}

// Stats returns what the client has done so far.
func (c *Client) Stats() Stats {
	s := Stats{Errors: c.errors.Load(), Calls: c.batches.calls.Load(), Requests: c.batches.requests.Load()}
	for i := range s.Decisions {
		s.Decisions[i] = c.bySource[i].Load()
	}
	return s
}
