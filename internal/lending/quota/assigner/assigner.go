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

// Limiter finds and counts limits. It is a limiter.Limiter.
type Limiter interface {
	QuotaBucket(ctx context.Context, now time.Time, domain string, entries []descriptor.Entry) (limiter.QuotaBucket, error)
	Decide(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error
	Tree() *descriptor.Tree
	Overrides() *override.Set
}

// Store divides limits among replicas.
type Store interface {
	// Renew asks for this replica's share of each limit. It returns one share per ask, in order. With an error, shares
	// with a TTL of 0 have no answer.
	Renew(ctx context.Context, asks []quota.Ask) ([]quota.Share, error)
}

// Room limits bytes that are not only the assigner's.
type Room interface {
	Add(bytes int64)
	Free() int64
}

// Options are the settings of an Assigner.
type Options struct {
	Limiter Limiter // required
	Store   Store   // nil if this replica does not share its limits

	MaxSubscriptions int // total of all streams; default 500,000
	MaxBuckets       int // different buckets; default 200,000
	MaxPerStream     int // default 100,000
	// limit for buckets, subscriptions, limits and unsent answers together; default 96 MiB. A single stream may use less
	// than half of it
	MaxBytes   int
	Room       Room // shared limit that these bytes count towards, or nil
	MaxIDBytes int  // longest id of a bucket that a rule matches; default 8 KiB

	Idle time.Duration // a bucket without a request for this time is abandoned; default 2 min

	Metrics prometheus.Registerer // nil does not register the metrics
	Log     *slog.Logger          // default slog.Default()
}

const (
	atOnce      = 2000                   // buckets that are looked up, and pools that are planned, in one round
	concurrency = 16                     // concurrent calls of the limiter
	pause       = 10 * time.Millisecond  // between rounds, to plan reports that arrive together in one round
	replan      = time.Second            // between two plans of a pool
	renewEvery  = 5 * time.Second        // between two questions to the store
	claimEvery  = time.Second            // interval while shares are moving between replicas
	renewWithin = 2 * time.Second        // timeout of a question to the store
	endWithin   = time.Second            // timeout of the last question
	lookEvery   = 5 * time.Second        // between two reads of changing counters
	retryEvery  = 5 * time.Second        // after a failed read of counters
	longest     = 30 * time.Second       // between two rounds of a pool
	rulesEvery  = 250 * time.Millisecond // between two checks for changed rules
)

// Assigner shares limits among the streams of clients.
type Assigner struct {
	o       Options
	metrics *metrics
	wake    chan struct{} // has a capacity of 1

	mu            sync.Mutex
	streams       map[*Stream]struct{}
	buckets       map[string]*bucket // keyed by domain and id
	pools         map[string]*pool
	due           queue
	unresolved    []*bucket // buckets whose limits are to be found
	rounds        uint64
	subscriptions int
	bytes         int    // approximate memory for all streams, in bytes
	serial        uint64 // serial number of the last bucket
	shrink        shrink

	tree      *descriptor.Tree // active when the buckets were last looked up
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

// keep adds to the used bytes; a negative number subtracts.
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
		select { // a short pause collects reports that arrive together
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// end returns the part of all shares that no client holds. Clients take the rest to other replicas.
func (a *Assigner) end(ctx context.Context) {
	if a.o.Store == nil {
		return
	}
	a.mu.Lock()
	now := time.Now()
	var asks []quota.Ask
	for _, p := range a.pools {
		if p.rated && p.planner.Share().Replicas > 0 {
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

// round processes everything that is due, and returns the time until the next round.
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
		if p := a.place(now, f); p != nil && p.round != a.rounds { // once per round: many buckets may share a limit
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

// noticeRules schedules all buckets to be looked up again if rules or overrides have changed.
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

// resolve schedules a bucket to have its limits found.
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
		a.unresolved = nil // releases the old array
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
		a.due.set(p, now.Add(longest)) // postponed until it is planned
		some = append(some, p)
	}
	return some
}

// found is the limiter's answer about a bucket.
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

// ordered returns the entries of a bucket's id in the order in which rules match them.
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

// renew asks the store, and passes the answers to the pools.
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

// charge counts requests that clients have passed.
func (a *Assigner) charge(ctx context.Context, charges []*charge) {
	var g errgroup.Group
	g.SetLimit(concurrency)
	for _, c := range charges {
		g.Go(func() error {
			var d limiter.Decision
			err := a.o.Limiter.Decide(ctx, time.Now(), limiter.SettledRequest(c.domain, c.entries, c.requests), &d)
			if err != nil {
				a.metrics.uncharged.Add(float64(c.requests)) // the requests have passed, so there is no retry
			}
			return nil
		})
	}
	_ = g.Wait()
}
