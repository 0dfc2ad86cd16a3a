package regions

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// Most takes from an account need no step: they take from what the account has on offer, in one trip, together with the takes of all other
// limits. The record counts them (backend.Account). The next step accounts for them. A step is needed to ask the home, and when permits
// are missing; then the take waits.

// offer is what takes may do without a step on an account, as this replica has read it.
type offer struct {
	region.Offer
	account    backend.Account
	generation uint64       // of the clock
	used       atomic.Int64 // of it, as far as this replica knows
	usedAt     atomic.Int64 // when the last of them had been used
	noticed    atomic.Bool  // a step was begun, because it is time for one
}

// longest bounds how long an offer is used: nothing ends if there is nothing, and times must have differences.
const longest = 3_600_000_000

// due reports whether it is time for a step, when so much is left. home is who answers.
func (o *offer) due(now, left int64, home *asker) bool {
	return left < o.Low && now >= o.Again || now >= o.Due && (o.Rules == 0 || o.Rules != home.rules())
}

// spent takes in what was taken from the record that was seen last.
func (a *account) spent(v *region.Account, at region.Reading) int64 {
	n, last := a.counted, a.countedAt
	if o := a.offer.Load(); o != nil && o.account.Stamp == a.stamp {
		if used := o.used.Load(); used > n {
			n, last = used, o.usedAt.Load()
		}
	}
	v.Spent(at.Now, n, last)
	return n
}

// most is how much more may be taken from the record while a change of it is on its way, and before when that must be written.
func (a *account) most(v *region.Account, now int64) (most, until int64) {
	return v.Left(now), v.Bound(now)
}

// notice makes the offer of a record that was read or written. What has been taken from it already is not in v.
func (a *account) notice(v *region.Account, stamp, taken, now int64) {
	if a.stamp != stamp || a.counted != taken {
		a.stamp, a.counted, a.countedAt = stamp, taken, now
	}
	generation, ready := a.of.clocks.known()
	if !ready || v.Generation != generation || now < v.Seen || v.Fresh() {
		a.offer.Store(nil) // a step must look at it
		return
	}
	if o := a.offer.Load(); o != nil && o.account.Stamp == stamp && o.generation == generation && now < o.Until && taken >= o.used.Load() {
		return
	}
	o := &offer{Offer: v.Offer(now), generation: generation}
	o.Until = min(o.Until, now+longest)
	o.account = backend.Account{Stamp: stamp, Left: o.Left, Until: o.Until}
	o.used.Store(taken)
	o.usedAt.Store(a.countedAt)
	a.offer.Store(o)
}

// offered is a take from an offer, on its way.
type offered struct {
	of   *Store
	a    *account
	from *offer
	sent state
	name string // of the clock

	request  backend.Request
	takes    [1]backend.Take
	outcomes [1]backend.Outcome

	// Of the caller, if it does not wait itself.
	ctx    context.Context //nolint:containedctx // of one call
	now    time.Time
	whole  *backend.Request
	done   func(error)
	finish func(error) // ended, bound once
}

var takesOffered sync.Pool

func (f *offered) release() {
	f.a, f.from, f.takes[0] = nil, nil, backend.Take{}
	f.ctx, f.whole, f.done = nil, nil, nil
	takesOffered.Put(f)
}

// escrowed returns the home of a take that may be taken from an offer.
func (s *Store) escrowed(t *backend.Take) (home string, ok bool) {
	if t.Limit.Regions.Mode != descriptor.InEscrow || divided(t.Limit) || t.Origin == nil || t.Reservation != nil || t.Guards || t.Hits < 0 {
		return "", false
	}
	home, ok = s.knownHome(t.Key, t.Limit)
	return home, ok && s.askers[home] != nil
}

// offered prepares a take from what an account offers. It returns nil if there is no offer.
func (s *Store) offered(a *account, t *backend.Take) *offered {
	from := a.offer.Load()
	if from == nil {
		return nil
	}
	name := s.opts.Records.Clock(a.key)
	at, knows, ready := s.clocks.reading(name)
	if !knows || !ready || at.Generation != from.generation {
		return nil
	}
	a.touched.Store(s.clocks.elapsed())
	f, _ := takesOffered.Get().(*offered)
	if f == nil {
		f = new(offered)
		f.finish = f.ended
		f.request = backend.Request{Takes: f.takes[:], Outcomes: f.outcomes[:]}
	}
	f.of, f.a, f.from, f.name, f.sent = s, a, from, name, state{at.Least, at.Generation}
	f.takes[0] = backend.Take{Key: t.Key, Limit: t.Limit, Rule: t.Rule, Hits: t.Hits, Account: &from.account}
	return f
}

// settle takes in the answer of the record. It returns false if a step has to decide.
func (f *offered) settle(t *backend.Take, o *backend.Outcome) (settled bool, err error) {
	a, from, got := f.a, f.from, &f.outcomes[0]
	if got.Before == backend.OtherRecord {
		return false, nil
	}
	now := from.Until - got.ResetAfter.Microseconds()
	if !f.of.clocks.agrees(f.name, f.sent, now) {
		return false, errClock
	}
	for known := from.used.Load(); got.Used > known; known = from.used.Load() {
		if from.used.CompareAndSwap(known, got.Used) {
			from.usedAt.Store(now)
		}
	}
	left := from.Left - got.Used
	denied := !got.Allowed && now < from.Until && from.Full && now < from.Again
	if !got.Allowed && !denied {
		return false, nil
	}
	a.outcome(t, &found{Taken: region.Taken{Allowed: got.Allowed, Left: left}, remaining: from.Remaining, again: from.Again, now: now}, o)
	if got.Allowed && from.due(now, left, a.home) && from.noticed.CompareAndSwap(false, true) {
		a.add(&step[region.Account]{
			run:  func(*region.Account, region.Reading) int64 { a.due = true; return never },
			done: func(error) { from.noticed.Store(false) }, // it may have found that it was not time
		})
	}
	return true, nil
}

// start settles a request's only take from what the account offers. It returns false if there is no offer.
func (s *Store) start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error)) (begun, settled bool, err error) {
	t := &r.Takes[0]
	home, ok := s.escrowed(t)
	if !ok {
		return false, false, nil
	}
	f := s.offered(s.accountOf(t, home), t)
	if f == nil {
		return false, false, nil
	}
	f.ctx, f.now, f.whole, f.done = ctx, now, r, done
	if settled, err = s.opts.Records.Start(ctx, now, b, &f.request, f.finish); !settled {
		return true, false, nil
	}
	settled, err = f.end(err)
	return true, settled, err
}

// ended is called when the records have answered later.
func (f *offered) ended(err error) {
	done := f.done
	if settled, err := f.end(err); settled {
		done(err)
	}
}

// end takes in the answer. It returns false if a step has to decide: the caller gets the answer later.
func (f *offered) end(err error) (settled bool, _ error) {
	s, ctx, now, r, done := f.of, f.ctx, f.now, f.whole, f.done
	settled = true
	if err == nil {
		settled, err = f.settle(&r.Takes[0], &r.Outcomes[0])
	}
	f.release()
	switch {
	case err != nil:
		backend.Fail(r.Outcomes)
		return true, err
	case settled:
		return true, nil
	}
	async.Go(func() error { return s.take(ctx, now, r) }, done)
	return false, nil
}

// takeOffered reads the account, and makes a take from what it offers. It returns false if a step has to decide.
func (s *Store) takeOffered(w *wait, now time.Time, a *account, t *backend.Take, o *backend.Outcome) (settled bool, err error) {
	if t.Hits < 0 {
		return false, nil
	}
	if err := do(w, &a.record, &step[region.Account]{look: true, run: func(*region.Account, region.Reading) int64 { return never }}); err != nil {
		return false, err
	}
	f := s.offered(a, t)
	if f == nil {
		return false, nil
	}
	defer f.release()
	if err := backend.Await(w.ctx, s.opts.Records, now, &f.request); err != nil {
		return false, err
	}
	return f.settle(t, o)
}
