package limiter

import (
	"context"
	"errors"
	"hash/maphash"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// Options are the settings of a Limiter.
type Options struct {
	Store backend.Store         // required
	Local backend.Store         // counts for on_error: local; nil: requests with such descriptors get the error
	Keys  descriptor.KeyBuilder // builds every counter's key

	MaxSeries int                   // maximum number of metric names that come from requests; rules may add as many again; default 10,000
	Metrics   prometheus.Registerer // nil: counted, but not registered
	NoMetrics bool                  // decisions are not counted in metrics; for measuring the cost of metrics

	HotKeys *hotkeys.Tracker // records every use of a counter; nil: off
	Usage   *usage.Index     // records the counters of rules with usage; nil: off
	Events  *events.Sink     // gets events about refusals, warnings and penalties; nil: off
}

// Limiter decides requests.
type Limiter struct {
	store     backend.Store
	local     backend.Store
	keys      descriptor.KeyBuilder
	snapshot  atomic.Pointer[snapshot]
	swapping  sync.Mutex    // guards writes to snapshot, replicas and overrides
	replicas  int           // set by SetReplicas; 0: not called yet
	overrides *override.Set // set by SetOverrides
	metrics   *metrics
	hot       *hotkeys.Tracker
	usage     *usage.Index
	events    *events.Sink
	calls     sync.Pool
	lanes     atomic.Uint32 // number of calculations created so far

	unmeasured bool
}

// New returns a limiter without rules: Decide returns ErrNoRules until the first Swap.
func New(opts Options) *Limiter {
	if opts.MaxSeries <= 0 {
		opts.MaxSeries = 10_000
	}
	l := &Limiter{
		store:   opts.Store,
		local:   opts.Local,
		keys:    opts.Keys,
		metrics: newMetrics(opts.MaxSeries),
		hot:     opts.HotKeys,
		usage:   opts.Usage,
		events:  opts.Events,

		unmeasured: opts.NoMetrics,
	}
	// A pool keeps objects per processor, so decisions that run at the same time use different lanes.
	l.calls.New = func() any {
		c := &calculation{lane: l.lanes.Add(1), seed: maphash.MakeSeed()}
		c.resume = func(err error) { l.resume(c, err) }
		return c
	}
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(l.metrics)
	}
	return l
}

// Decide answers a request at now. It fills d, whose slices it reuses.
//
// The errors are *InvalidError, ErrNoRules, and the backend's error if on_error does not give an answer instead. With a
// backend's error nothing is known about the request's limits.
func (l *Limiter) Decide(ctx context.Context, now time.Time, req *Request, d *Decision) error {
	snap, err := l.accept(req, d)
	if err != nil {
		return err
	}
	c := l.calls.Get().(*calculation)
	defer l.release(c)
	if err := l.begin(ctx, now, c, snap, req); err != nil {
		return err
	}
	switch {
	case len(c.request.Takes) == 0:
	case req.Purpose == Look:
		err = l.store.Peek(ctx, now, &c.request)
	default:
		err = l.store.Take(ctx, now, &c.request)
	}
	return l.finish(ctx, now, c, d, err)
}

// Batch gathers requests that arrived together.
type Batch = backend.Batch

// PanicError is a panic during a decision that Start began.
type PanicError = backend.PanicError

// Start decides a request like Decide, but does not hold its caller up. If it can decide at once, it returns true, and the
// error that Decide would return. Otherwise it returns false, and calls done with that error later, once, from another
// goroutine. It uses ctx, req and d until then. What done does must not take long: other requests wait for it. Without a
// batch (nil), what must be sent to the store's server goes at once; else it goes when the batch is sent.
func (l *Limiter) Start(ctx context.Context, now time.Time, b *Batch, req *Request, d *Decision, done func(error)) (decided bool, err error) {
	if req.Purpose == Look { // stores look only while their caller waits
		go func() { done(l.look(ctx, now, req, d)) }()
		return false, nil
	}
	snap, err := l.accept(req, d)
	if err != nil {
		return true, err
	}
	c := l.calls.Get().(*calculation)
	if err := l.begin(ctx, now, c, snap, req); err != nil {
		l.release(c)
		return true, err
	}
	if len(c.request.Takes) > 0 {
		c.ctx, c.now, c.decision, c.done = ctx, now, d, done
		var settled bool
		if settled, err = backend.Start(ctx, l.store, now, b, &c.request, c.resume); !settled {
			return false, nil
		}
	}
	err = l.finish(ctx, now, c, d, err)
	l.release(c)
	return true, err
}

// look is Decide for a goroutine of its own. A panic becomes an error.
func (l *Limiter) look(ctx context.Context, now time.Time, req *Request, d *Decision) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	return l.Decide(ctx, now, req, d)
}

// resume finishes a decision that Start has begun, with the answer of the store.
func (l *Limiter) resume(c *calculation, err error) {
	done := c.done
	done(l.finishStarted(c, err)) // outside of the recover: a panic of done must not call it twice
}

// finishStarted is finish for a decision that Start has begun. A panic becomes an error.
func (l *Limiter) finishStarted(c *calculation, storeErr error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if _, ok := errors.AsType[*PanicError](storeErr); ok {
		return storeErr // what the store left behind is not known, so on_error does not answer, and c is not used again
	}
	err = l.finish(c.ctx, c.now, c, c.decision, storeErr)
	l.release(c)
	return err
}

// accept empties d, checks the request, and returns the rules that decide it.
func (l *Limiter) accept(req *Request, d *Decision) (*snapshot, error) {
	d.Code, d.Statuses, d.Headers, d.Holds, d.Metadata = CodeUnknown, d.Statuses[:0], d.Headers[:0], d.Holds[:0], nil
	d.Upstream, d.Delay, d.Notices = d.Upstream[:0], 0, d.Notices[:0]
	if err := validate(req); err != nil {
		l.metrics.invalid.Add(1)
		return nil, err
	}
	snap := l.snapshot.Load()
	if snap == nil {
		l.metrics.invalid.Add(1)
		return nil, ErrNoRules
	}
	return snap, nil
}

// begin finds the rules of a request and prepares its takes.
func (l *Limiter) begin(ctx context.Context, now time.Time, c *calculation, snap *snapshot, req *Request) error {
	c.snapshot, c.settings, c.shares, c.req, c.domain = snap, &snap.settings, snap.shares, req, snap.tree.Domain(req.Domain)
	err := c.resolve(ctx, now)
	// A request that fails has these counts too. Left in c, they would be counted with whichever request uses c next.
	if c.denied > 0 {
		l.metrics.refunds[refundDenied].Add(uint64(c.denied))
		c.denied = 0
	}
	if c.unusable > 0 {
		l.metrics.unusable.Add(uint64(c.unusable))
		c.unusable = 0
	}
	if c.unscaled != ([descriptor.ScaleResults]int{}) {
		l.countUnscaled(c)
	}
	if err != nil {
		return err
	}
	c.prepare(l.keys)
	return nil
}

// finish judges what the store has answered, and fills d.
func (l *Limiter) finish(ctx context.Context, now time.Time, c *calculation, d *Decision, err error) error {
	if err != nil {
		if err = l.fallback(ctx, now, c, err); err != nil {
			return err
		}
	}
	if c.guarded {
		c.penalise()
	}
	if c.scheduled {
		c.shorten(now)
	}
	for i := range c.resolved {
		d.Statuses = append(d.Statuses, c.judge(i))
	}
	c.combine(d)
	if c.varies {
		c.notice(d)
	}
	if c.holding {
		l.held(c, d)
	}
	switch {
	case l.unmeasured, c.req.Purpose == Look:
	case c.domain == nil:
		c.name = l.metrics.countUnknownDomain(c.req, c.name)
	default:
		l.measure(c, d)
	}
	if c.snapshot.hot != nil {
		c.countUses(c.snapshot.hot)
	}
	if l.usage != nil && c.domain != nil && c.domain.Usage {
		c.recordUsage(l.usage, now)
	}
	c.headers(d, now)
	if c.settings.Metadata {
		d.Metadata = c.metadata(d)
	}
	if d.Code == OverLimit && c.settings.Shadow {
		d.Code = OK
		l.metrics.shadowed.Add(1)
	}
	if l.events != nil && (d.Code == OverLimit || len(d.Notices) > 0) {
		c.report(l.events, d, now)
	}
	if !l.unmeasured {
		l.metrics.decisions[d.Code].Add(1)
	}
	return nil
}

// maxKept is the largest buffer in bytes that a reused calculation keeps, so that a huge request does not hold its memory.
const maxKept = 64 << 10

func (l *Limiter) release(c *calculation) {
	if cap(c.keys) > maxKept || cap(c.resolved) > 1024 || cap(c.limits) > 1024 || cap(c.grouped) > 1024 || cap(c.holds) > 1024 || cap(c.identity) > maxKept || cap(c.name) > maxKept || 4*cap(c.table) > maxKept || cap(c.text) > maxKept {
		return
	}
	clear(c.resolved) // so that rules and limits of an old snapshot can be collected
	clear(c.limits)
	clear(c.grouped)
	clear(c.request.Takes)
	clear(c.replaced)
	c.scheduled, c.shortened, c.replaced = false, c.shortened[:0], c.replaced[:0]
	c.holds, c.sharers, c.holding, c.varies, c.guarded = c.holds[:0], c.sharers[:0], false, false, false
	c.snapshot, c.settings, c.shares, c.req, c.domain = nil, nil, nil, nil, nil
	c.ctx, c.decision, c.done = nil, nil, nil
	c.local.Clear()
	c.resolved, c.index, c.limits, c.kept, c.grouped = c.resolved[:0], c.index[:0], c.limits[:0], c.kept[:0], c.grouped[:0]
	c.request.Takes = c.request.Takes[:0]
	c.request.Outcomes = c.request.Outcomes[:0]
	c.keys, c.name = c.keys[:0], c.name[:0]
	l.calls.Put(c)
}
