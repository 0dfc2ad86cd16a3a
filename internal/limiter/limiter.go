package limiter

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Limiter decides requests.
type Limiter struct {
	parts     parts
	snapshot  atomic.Pointer[snapshot]
	swapping  sync.Mutex    // guards writes to snapshot, replicas and overrides
	replicas  int           // set by SetReplicas; 0 before the first call
	overrides *override.Set // set by SetOverrides
	ruling    atomic.Pointer[ruling]
	works     sync.Pool
	lanes     atomic.Uint32 // number of works created so far
}

// New returns a limiter without rules: Decide returns ErrNoRules until the first Swap.
func New(opts Options) *Limiter {
	if opts.MaxSeries <= 0 {
		opts.MaxSeries = 10_000
	}
	l := &Limiter{parts: parts{opts, newMetrics(opts.MaxSeries, opts.NoDots)}}
	// A pool keeps objects per processor, so decisions that run at the same time use different lanes.
	l.works.New = func() any {
		w := &work{parts: &l.parts, lane: l.lanes.Add(1)}
		w.joining.seed = maphash.MakeSeed()
		w.resume = func(err error) { l.resume(w, err) }
		return w
	}
	metric.Register(opts.Metrics, l.parts.metrics.families()...)
	metric.Register(opts.Metrics, l.limitFamily())
	return l
}

// Decider decides requests: a Limiter, or something in front of one.
type Decider interface {
	// Start decides a request at now, and fills d, whose slices it reuses. It never blocks. If it can decide immediately,
	// it returns true and the error. Otherwise it returns false, and later calls done once, with the error, from another
	// goroutine. It uses ctx, req and d until then. done must be quick: other requests wait for it. Without a batch (nil),
	// commands for the store's server are sent immediately; otherwise they are sent with the batch.
	//
	// The errors are *InvalidError, ErrNoRules, and the backend's error if on_error does not give an answer instead. With
	// a backend's error nothing is known about the request's limits.
	Start(ctx context.Context, now time.Time, b *Batch, req *Request, d *Decision, done func(error)) (decided bool,
		err error)
}

// Decide decides as Start does, and waits for the decision.
func Decide(ctx context.Context, by Decider, now time.Time, req *Request, d *Decision) error {
	w := async.NewWaiter()
	decided, err := by.Start(ctx, now, backend.CallerWaits, req, d, w.Done)
	return Ended(w, decided, err)
}

// Ended waits for a decision that was started with w.Done. It repeats a panic of another goroutine in this one.
func Ended(w *async.Waiter, decided bool, err error) error {
	if err = w.Wait(decided, err); err != nil {
		if p, ok := errors.AsType[*async.PanicError](err); ok {
			panic(p)
		}
	}
	return err
}

// Decide answers a request, and waits for the answer: see Decider.
func (l *Limiter) Decide(ctx context.Context, now time.Time, req *Request, d *Decision) error {
	return Decide(ctx, l, now, req, d)
}

// Batch gathers requests that arrived together.
type Batch = backend.Batch

// Start implements Decider.
func (l *Limiter) Start(ctx context.Context, now time.Time, b *Batch, req *Request, d *Decision,
	done func(error)) (decided bool, err error) {
	w, err := l.begin(ctx, now, req, d)
	if err != nil {
		return true, err
	}
	if len(w.request.Takes) > 0 {
		w.pending = pending{ctx, d, done}
		if req.Purpose == Look { // Peek blocks, as stores never peek in the background
			async.Go(func() error { return l.parts.Store.Peek(ctx, now, &w.request) }, w.resume)
			return false, nil
		}
		var settled bool
		if settled, err = l.parts.Store.Start(ctx, now, b, &w.request, w.resume); !settled {
			return false, nil
		}
	}
	err = w.finish(ctx, d, err)
	l.release(w)
	return true, err
}

// resume finishes a decision that Start started, with the store's answer.
func (l *Limiter) resume(w *work, err error) {
	done := w.pending.done
	done(l.finishStarted(w, err)) // outside of the recover: a panic of done must not call it twice
}

// finishStarted finishes a decision that Start started. A panic becomes an error.
func (l *Limiter) finishStarted(w *work, storeErr error) (err error) {
	defer async.Recover(&err)
	if _, ok := errors.AsType[*async.PanicError](storeErr); ok {
		return storeErr // the store's state is unknown: on_error does not answer, and w is not reused
	}
	err = w.finish(w.pending.ctx, w.pending.decision, storeErr)
	l.release(w)
	return err
}

// begin runs the stages before the store: Match, Apply and Charge. It empties d. Unless it returns an error, the caller
// must release the work.
func (l *Limiter) begin(ctx context.Context, now time.Time, req *Request, d *Decision) (*work, error) {
	d.reset()
	snap, err := l.accept(req)
	if err != nil {
		l.parts.metrics.invalid.Add(1)
		return nil, err
	}
	w := l.workOn(question{req: req, snap: snap, domain: snap.tree.Domain(req.Domain), now: now})
	err = w.findCharges(ctx)
	if err == nil {
		err = w.applyAmounts()
	}
	w.countTally()
	if err != nil {
		l.release(w)
		return nil, err
	}
	w.charge()
	return w, nil
}

// findCharges matches every descriptor and applies its rule. The charges are then the limits of each descriptor, with
// their numbers for this customer. If matching may take long, it stops when ctx ends.
func (w *work) findCharges(ctx context.Context) error {
	w.subjects = slices.Grow(w.subjects, len(w.req.Descriptors))[:len(w.req.Descriptors)]
	slow := w.domain != nil && w.domain.HasPatterns()
	for i := range w.subjects {
		if slow && i > 0 && ctx.Err() != nil {
			return fmt.Errorf("match descriptors: %w", ctx.Err())
		}
		s, d := &w.subjects[i], &w.req.Descriptors[i]
		w.match(s, d)
		w.apply(s, d)
	}
	w.applyTogether()
	return nil
}

// accept checks a request, and returns the rules that decide it.
func (l *Limiter) accept(req *Request) (*snapshot, error) {
	if err := validate(req); err != nil {
		return nil, err
	}
	snap := l.snapshot.Load()
	if snap == nil {
		return nil, ErrNoRules
	}
	return snap, nil
}

// finish takes a request through the stages after the store: Fall back, Judge and Report.
func (w *work) finish(ctx context.Context, d *Decision, err error) error {
	if err != nil {
		if err = w.fallBack(ctx, err); err != nil {
			return err
		}
	}
	w.judge(d)
	w.answer(d)
	for _, report := range w.snap.reports {
		report(w, d)
	}
	return nil
}

// answer adds the headers and metadata that clients see in addition to the statuses.
func (w *work) answer(d *Decision) {
	w.addHeaders(d)
	if w.snap.settings.Metadata {
		d.Metadata = w.metadata(d)
	}
}

func (l *Limiter) workOn(q question) *work {
	w := l.works.Get().(*work)
	w.question = q
	return w
}

func (l *Limiter) release(w *work) {
	w.reset()
	l.works.Put(w)
}
