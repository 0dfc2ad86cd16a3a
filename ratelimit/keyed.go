package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/limits"
)

// The rule of a Keyed.
const (
	keyedDomain = "keyed"
	keyedKey    = "id"
)

// Keyed is one limit for each ID: each customer, address or API key has a separate counter. NewKeyed creates one.
//
// It is a Limiter with one rule, so it has the same algorithms and counters, in memory or in Redis. It is a
// limits.Decider and a limits.Reserver, for middleware: see httplimit.ByKey.
type Keyed struct {
	limiter *Limiter
	limit   Limit
	own     sync.Map    // the limits of single IDs: *override.Numbers by ID
	owned   atomic.Bool // there may be some
}

// NewKeyed returns a Keyed that counts in the memory of this process. It needs no Close.
func NewKeyed(limit Limit) (*Keyed, error) { return OpenKeyed(context.Background(), limit, Options{}) }

// OpenKeyed is NewKeyed with options, such as a Redis. The options must have no rules. Keyed limits that share a Redis
// share their counters, unless they have other algorithms, windows or values of redisstore.Options.KeyPrefix.
func OpenKeyed(ctx context.Context, limit Limit, o Options) (*Keyed, error) {
	if o.Dir != nil || o.Files != nil || o.Domains != nil {
		return nil, errors.New("ratelimit: OpenKeyed has one rule: leave Options.Domains, Files and Dir empty")
	}
	reservations := limit.Algorithm != Concurrency && limit.Algorithm != LeakyBucket // those two cannot have any
	o.Domains = []Domain{{Name: keyedDomain, Rules: []Rule{{Key: keyedKey, Limit: limit, Reservations: reservations,
		overridable: true}}}}
	l, err := Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Keyed{limiter: l, limit: limit}, nil
}

// Allow reports whether an ID may do one thing now, and counts it. If the limit is a LeakyBucket, Allow returns after
// the delay.
func (k *Keyed) Allow(ctx context.Context, id string) (bool, error) {
	if k.numbers(id) != nil {
		return k.AllowN(ctx, id, 1)
	}
	return k.limiter.Allow(ctx, keyedDomain, keyedKey, id)
}

// AllowN reports whether an ID may do n things now, and counts them all, or none of them. With n = 0 it counts nothing.
func (k *Keyed) AllowN(ctx context.Context, id string, n uint64) (bool, error) {
	return limits.Allow(ctx, k, request(id, n))
}

// AllowWith is AllowN with a limit for this call, such as a number from your database. It has the algorithm and the
// window of the Keyed, and the counter of the ID.
func (k *Keyed) AllowWith(ctx context.Context, id string, n uint64, limit Limit) (bool, error) {
	numbers, err := k.numbersOf(limit)
	if err != nil {
		return false, err
	}
	return limits.Allow(ctx, &keyedWith{k, numbers}, request(id, n))
}

// keyedWith decides with the numbers of one call.
type keyedWith struct {
	*Keyed
	numbers *override.Numbers
}

// Decide implements limits.Decider.
func (k *keyedWith) Decide(ctx context.Context, r *Request) (Decision, error) {
	return k.limiter.observed(ctx, r, k.numbers)
}

// Wait waits until an ID may do one thing. Goroutines that wait for the same ID wait in line: see limits.Wait.
func (k *Keyed) Wait(ctx context.Context, id string) error { return k.WaitN(ctx, id, 1) }

// WaitN waits until an ID may do n things.
func (k *Keyed) WaitN(ctx context.Context, id string, n uint64) error {
	_, err := limits.Wait(ctx, k, request(id, n))
	return err
}

// Left returns the remaining hits of an ID, and counts nothing.
func (k *Keyed) Left(ctx context.Context, id string) (Status, error) {
	d, err := k.Decide(ctx, request(id, 0))
	if err != nil || len(d.Statuses) == 0 {
		return Status{}, err
	}
	return d.Statuses[0], nil
}

// ReserveN holds n things of an ID until its cost is known: call Commit or Cancel of the reservation. A reservation
// that nobody ends is given back after a minute, or ReserveOptions.TTL. A LeakyBucket cannot hold anything: its
// requests wait for their turn.
func (k *Keyed) ReserveN(ctx context.Context, id string, n uint64, o ReserveOptions) (*Reservation, error) {
	return k.Reserve(ctx, request(id, n), o)
}

// Acquire waits until an ID has a place under a Concurrency limit. Call release when the work is over.
func (k *Keyed) Acquire(ctx context.Context, id string) (release func(), err error) {
	return limits.Acquire(ctx, k, request(id, 1))
}

// Refund gives n things back to an ID.
func (k *Keyed) Refund(ctx context.Context, id string, n uint64) error {
	return k.limiter.Refund(ctx, request(id, n))
}

// Reset clears the counter of an ID.
func (k *Keyed) Reset(ctx context.Context, id string) error {
	return k.limiter.Reset(ctx, keyedDomain, keyedKey, id)
}

// SetLimit gives one ID another limit, in this process, with the algorithm and the window of the Keyed. Hits that the
// ID has used stay used. The zero Limit restores the limit of the Keyed.
func (k *Keyed) SetLimit(id string, limit Limit) error {
	if limit == (Limit{}) {
		k.own.Delete(id)
		return nil
	}
	numbers, err := k.numbersOf(limit)
	if err != nil {
		return err
	}
	k.own.Store(id, numbers)
	k.owned.Store(true)
	return nil
}

// Decide decides a request of middleware. The value of its entry is the ID.
func (k *Keyed) Decide(ctx context.Context, r *Request) (Decision, error) {
	return k.limiter.observed(ctx, r, k.numbers(idOf(r)))
}

// Reserve reserves for a request of middleware. The value of its entry is the ID.
func (k *Keyed) Reserve(ctx context.Context, r *Request, o ReserveOptions) (*Reservation, error) {
	return k.limiter.reserveObserved(ctx, r, k.numbers(idOf(r)), o)
}

// CheckKeys is for middleware: it returns an error if a domain and keys are not those of a Keyed.
func (k *Keyed) CheckKeys(domain string, keys ...string) error {
	return k.limiter.CheckKeys(domain, keys...)
}

// Close ends the goroutines that OpenKeyed started.
func (k *Keyed) Close() error { return k.limiter.Close() }

// numbers returns the numbers that SetLimit gave an ID, or nil.
func (k *Keyed) numbers(id string) *override.Numbers {
	if !k.owned.Load() {
		return nil
	}
	if n, ok := k.own.Load(id); ok {
		return n.(*override.Numbers)
	}
	return nil
}

// numbersOf returns the numbers of a limit for one ID.
func (k *Keyed) numbersOf(limit Limit) (*override.Numbers, error) {
	if limit.Algorithm != k.limit.Algorithm || limit.Window != k.limit.Window {
		return nil, fmt.Errorf("ratelimit: the limit of one ID must have the algorithm and the window of the others: "+
			"%s and %s, not %s and %s", k.limit.Algorithm, k.limit.Window, limit.Algorithm, limit.Window)
	}
	return &override.Numbers{Kind: override.Replace, Requests: limit.Requests, Burst: limit.Burst}, nil
}

func request(id string, n uint64) *Request {
	r := limits.NewRequest(keyedDomain, keyedKey, id)
	r.Amount = Amount{Hits: n, Peek: n == 0} // nothing to count is not one hit
	return r
}

func idOf(r *Request) string {
	if r == nil || len(r.Descriptors) == 0 || len(r.Descriptors[0].Entries) == 0 {
		return ""
	}
	return r.Descriptors[0].Entries[0].Value
}
