package assigner

import (
	"context"
	"log/slog"
	"math"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Limiter knows the rules and counts. It is a limiter.Limiter.
type Limiter interface {
	QuotaBucket(ctx context.Context, now time.Time, domain string, entries []descriptor.Entry) (limiter.QuotaBucket, error)
	Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error
	Tree() *descriptor.Tree
	Overrides() *override.Set
}

// Store divides limits among replicas.
type Store interface {
	// Renew asks for the share of this replica of each limit. It returns one share per ask, in their order. With an error,
	// the shares without a TTL have no answer.
	Renew(ctx context.Context, asks []quota.Ask) ([]quota.Share, error)
}

// Room bounds bytes that are kept for others than the assigner's clients, too.
type Room interface {
	Add(bytes int64)
	Free() int64
}

// Options are the settings of an Assigner.
type Options struct {
	Limiter Limiter // required
	Store   Store   // nil: this replica shares its limits with no other

	MaxSubscriptions int // on all streams together; default 500,000
	MaxBuckets       int // different ones; default 200,000
	MaxPerStream     int // default 100,000
	// of all that is kept: buckets, subscriptions, limits, and answers that are not sent yet; default 96 MiB. One stream
	// may have less than half of it
	MaxBytes   int
	Room       Room // what is kept counts here, too; nil: nowhere
	MaxIDBytes int  // of the id of a bucket that a rule matches; default 8 KiB

	Idle time.Duration // a bucket without a request for this time is abandoned; default 2 min

	Metrics prometheus.Registerer // nil: counted, but not registered
	Log     *slog.Logger          // default slog.Default()
}

const (
	atOnce      = 2000                   // buckets that are looked at, and pools that are planned, in one round
	concurrency = 16                     // calls of the limiter at once
	pause       = 10 * time.Millisecond  // between rounds, so that what arrives together is planned together
	replan      = time.Second            // between two plans of a pool
	renewEvery  = 5 * time.Second        // between two questions to the store
	claimEvery  = time.Second            // the same while shares are moving between replicas
	renewWithin = 2 * time.Second        // bounds a question to the store
	endWithin   = time.Second            // bounds the last one
	lookEvery   = 5 * time.Second        // between two looks at counters that change
	retryEvery  = 5 * time.Second        // after a store that did not answer
	longest     = 30 * time.Second       // between two rounds of a pool
	rulesEvery  = 250 * time.Millisecond // between two looks whether the rules have changed
)

// Assigner shares limits among the streams of clients.
type Assigner struct {
	o       Options
	metrics *metrics
	wake    chan struct{} // has a place

	mu            sync.Mutex
	streams       map[*Stream]struct{}
	buckets       map[string]*bucket // by domain and id
	pools         map[string]*pool
	due           queue
	unresolved    []*bucket // whose limits must be found
	rounds        uint64
	subscriptions int
	bytes         int    // of all that is kept for streams, about
	serial        uint64 // of the last bucket
	shrink        shrink

	tree      *descriptor.Tree // active when the buckets were last looked at
	overrides *override.Set
}

// New returns an Assigner without buckets.
func New(o Options) *Assigner {
	if o.MaxSubscriptions <= 0 {
		o.MaxSubscriptions = 500_000
	}
	if o.MaxBuckets <= 0 {
		o.MaxBuckets = 200_000
	}
	if o.MaxPerStream <= 0 {
		o.MaxPerStream = 100_000
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 96 << 20
	}
	if o.MaxIDBytes <= 0 {
		o.MaxIDBytes = 8 << 10
	}
	if o.Idle <= 0 {
		o.Idle = 2 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	a := &Assigner{
		o: o, wake: make(chan struct{}, 1),
		streams: make(map[*Stream]struct{}), buckets: make(map[string]*bucket), pools: make(map[string]*pool),
	}
	if a.o.Room == nil {
		a.o.Room = endless{}
	}
	a.metrics = newMetrics(a)
	if o.Metrics != nil {
		o.Metrics.MustRegister(a.metrics)
	}
	return a
}

// endless is a Room without a bound.
type endless struct{}

// Add implements Room.
func (endless) Add(int64) {}

// Free implements Room.
func (endless) Free() int64 { return math.MaxInt64 }

// keep counts bytes that are kept; fewer if they are negative.
func (a *Assigner) keep(bytes int) {
	a.bytes += bytes
	a.o.Room.Add(int64(bytes))
}

// Run plans and renews until ctx ends.
func (a *Assigner) Run(ctx context.Context) error {
	defer a.end(context.WithoutCancel(ctx))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-timer.C:
		}
		timer.Reset(max(a.round(ctx), pause))
		select { // a short rest gathers what arrives together
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// end gives back what no client holds. What clients hold goes with them to other replicas.
func (a *Assigner) end(ctx context.Context) {
	if a.o.Store == nil {
		return
	}
	a.mu.Lock()
	now := time.Now()
	var asks []quota.Ask
	for _, p := range a.pools {
		if p.rated && p.planner.Share().Processes > 0 {
			asks = append(asks, p.planner.End(now, p.key).In(p.worth))
		}
	}
	a.mu.Unlock()
	if len(asks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	if _, err := a.o.Store.Renew(ctx, asks); err != nil {
		a.o.Log.Warn("shares of limits could not be given back; they expire", "limits", len(asks), "error", err)
	}
}

func (a *Assigner) rouse() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// round does what is due, and returns in how long something will be.
func (a *Assigner) round(ctx context.Context) time.Duration {
	now := time.Now()
	a.mu.Lock()
	a.noticeRules()
	a.rounds++
	unresolved := a.takeUnresolved()
	pools := a.takeDue(now)
	var charges []*charge
	for _, p := range pools {
		p.round = a.rounds
		charges = p.takeCharges(now, charges)
		if p.mustLook(now) {
			unresolved = append(unresolved, p.samples()...)
			p.looked = now
		}
	}
	a.mu.Unlock()

	a.charge(ctx, charges)
	found := a.look(ctx, unresolved)

	a.mu.Lock()
	now = time.Now()
	for _, f := range found {
		if p := a.place(now, f); p != nil && p.round != a.rounds { // once: many buckets may share a limit
			p.round = a.rounds
			pools = append(pools, p)
		}
	}
	asking, asks := a.asks(now, pools)
	a.mu.Unlock()

	if len(asks) > 0 {
		a.renew(ctx, asking, asks)
	}

	a.mu.Lock()
	defer a.mu.Unlock()
	now = time.Now()
	for _, p := range pools {
		a.plan(now, p)
	}
	if a.shrink.due(now, a.bytes) {
		go debug.FreeOSMemory()
	}
	switch next, some := a.due.first(); {
	case len(a.unresolved) > 0:
		return 0
	case some:
		return min(next.Sub(now), rulesEvery)
	default:
		return rulesEvery
	}
}

// noticeRules has all buckets looked at again if rules or overrides have changed.
func (a *Assigner) noticeRules() {
	tree, overrides := a.o.Limiter.Tree(), a.o.Limiter.Overrides()
	if tree == a.tree && overrides == a.overrides {
		return
	}
	a.tree, a.overrides = tree, overrides
	for _, b := range a.buckets {
		a.resolve(b)
	}
}

// resolve has a bucket's limits found soon.
func (a *Assigner) resolve(b *bucket) {
	if !b.unresolved {
		b.unresolved = true
		a.unresolved = append(a.unresolved, b)
	}
}

func (a *Assigner) takeUnresolved() []*bucket {
	n := min(len(a.unresolved), atOnce)
	some := append([]*bucket(nil), a.unresolved[:n]...)
	if a.unresolved = a.unresolved[n:]; len(a.unresolved) == 0 {
		a.unresolved = nil // frees what it was
	}
	for _, b := range some {
		b.unresolved = false
	}
	return some
}

func (a *Assigner) takeDue(now time.Time) (some []*pool) {
	for len(some) < atOnce {
		next, ok := a.due.first()
		if !ok || next.After(now) {
			break
		}
		p := a.due.pools[0]
		a.due.set(p, now.Add(longest)) // until it is planned
		some = append(some, p)
	}
	return some
}

// found is what the limiter said about a bucket.
type found struct {
	bucket  *bucket
	entries []descriptor.Entry
	quota   limiter.QuotaBucket
	err     error
}

// look asks the limiter about buckets.
func (a *Assigner) look(ctx context.Context, buckets []*bucket) []*found {
	all := make([]*found, len(buckets))
	var g errgroup.Group
	g.SetLimit(concurrency)
	for i, b := range buckets {
		g.Go(func() error {
			f := &found{bucket: b, entries: a.ordered(b)}
			f.quota, f.err = a.o.Limiter.QuotaBucket(ctx, time.Now(), b.domain, f.entries)
			all[i] = f
			return nil
		})
	}
	_ = g.Wait()
	return all
}

// ordered returns the pairs of a bucket's id in the order in which they are matched.
func (a *Assigner) ordered(b *bucket) []descriptor.Entry {
	entries := append([]descriptor.Entry(nil), b.id...)
	if tree := a.o.Limiter.Tree(); tree != nil {
		tree.Domain(b.domain).OrderBucket(entries)
	}
	return entries
}

// asks returns the questions to the store that are due.
func (a *Assigner) asks(now time.Time, pools []*pool) (asking []*pool, asks []quota.Ask) {
	if a.o.Store == nil {
		return nil, nil
	}
	for _, p := range pools {
		if p.mustAsk(now) {
			p.asked = now
			asking = append(asking, p)
			p.askedIn = p.worth
			asks = append(asks, p.planner.Ask(now, p.key).In(p.worth))
		}
	}
	return asking, asks
}

// renew asks the store, and hands the answers to the pools.
func (a *Assigner) renew(ctx context.Context, asking []*pool, asks []quota.Ask) {
	ctx, cancel := context.WithTimeout(ctx, renewWithin)
	defer cancel()
	start := time.Now()
	shares, err := a.o.Store.Renew(ctx, asks)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.metrics.failures.Inc()
		a.o.Log.Warn("shares of limits could not be renewed", "limits", len(asks), "error", err)
	}
	now := time.Now()
	for i, p := range asking {
		if shares[i].TTL <= 0 {
			p.planner.Unanswered(now)
			continue
		}
		p.planner.Answer(now, shares[i].In(1/p.askedIn))
		p.until = start.Add(shares[i].TTL)
	}
}

// charge counts what clients have passed.
func (a *Assigner) charge(ctx context.Context, charges []*charge) {
	var g errgroup.Group
	g.SetLimit(concurrency)
	for _, c := range charges {
		g.Go(func() error {
			var d limiter.Decision
			err := a.o.Limiter.Decide(ctx, time.Now(), limiter.SettledRequest(c.domain, c.entries, c.requests), &d)
			if err != nil {
				a.metrics.uncharged.Add(float64(c.requests)) // what has passed has passed: it is not repeated
			}
			return nil
		})
	}
	_ = g.Wait()
}
