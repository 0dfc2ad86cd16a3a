package adapter

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/e2e/differential"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// store writes down what it is asked, and fails as a step says. What does not fail is counted in memory.
type store struct {
	side  *Side
	name  string
	inner backend.Store
	sweep func(time.Time)

	failure differential.Failure
	cached  uint64             // refused takes that are answered as if a cache knew it
	cancel  context.CancelFunc // ends the caller's context
	later   bool               // Start answers in answer
	waiting []func()
}

func (s *store) begin(f differential.Failure, cancel context.CancelFunc) {
	s.failure, s.cancel = f, cancel
}

var errLost = errors.New("the answer is lost")

func (s *store) take(ctx context.Context, now time.Time, r *backend.Request) error {
	return s.settle(s.name, r, func(r *backend.Request) error { return backend.Await(ctx, s.inner, now, r) })
}

// Peek implements backend.Store.
func (s *store) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	return s.settle(s.name+" peek", r, func(r *backend.Request) error { return s.inner.Peek(ctx, now, r) })
}

// Start implements backend.Store.
func (s *store) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, done func(error)) (settled bool, err error) {
	if !s.later {
		return true, s.take(ctx, now, r)
	}
	failure := s.failure
	s.waiting = append(s.waiting, func() {
		s.failure = failure
		if failure.Kind == differential.FailPanic {
			done(&backend.PanicError{Value: "a panic in the store"})
			return
		}
		done(s.take(ctx, now, r))
	})
	return false, nil
}

// answer answers the request at index n, which is the last one.
func (s *store) answer(n int) {
	answer := s.waiting[n]
	s.waiting = s.waiting[:n]
	answer()
}

// Reset implements backend.Store.
func (s *store) Reset(ctx context.Context, counters []backend.Counter) error {
	for i := range counters {
		c := &counters[i]
		s.side.Text = s.side.Text.Line(s.name+" reset").Quoted("key", string(c.Key)).Quoted("rule", pathOf(c.Rule))
		s.side.limit(c.Limit)
	}
	if s.failure.Kind != differential.Works {
		return backend.ErrUnavailable
	}
	return s.inner.Reset(ctx, counters)
}

// settle writes down a request, and lets the store settle it as far as it does not fail.
func (s *store) settle(what string, r *backend.Request, inner func(*backend.Request) error) error {
	s.write(what, r)
	err := s.fail(r, inner)
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		o.Cached = !o.Allowed && !o.Failed && r.Takes[i].Hold == nil && !r.Takes[i].Guards && s.cached>>(i%64)&1 != 0
		t := s.side.Text.Line(" outcome").Bool("allowed", o.Allowed).Bool("cached", o.Cached).Bool("failed", o.Failed)
		s.side.Text = t.Int("before", o.Before).Int("used", o.Used).Time("retry", o.RetryAfter).Time("reset", o.ResetAfter).Time("delay", o.Delay)
	}
	s.side.Text = s.side.Text.Error("error", err)
	return err
}

func (s *store) fail(r *backend.Request, inner func(*backend.Request) error) error {
	switch s.failure.Kind {
	case differential.FailAll:
		backend.Fail(r.Outcomes)
		return backend.ErrUnavailable
	case differential.FailFull:
		backend.Fail(r.Outcomes)
		return backend.ErrFull
	case differential.FailEnded:
		backend.Fail(r.Outcomes)
		s.cancel()
		return context.Canceled
	case differential.FailCounted:
		if err := inner(r); err != nil {
			return err
		}
		backend.Fail(r.Outcomes)
		return errLost
	case differential.FailSome:
		return s.failSome(r, inner)
	default:
		return inner(r)
	}
}

// failSome settles the takes that do not fail, as if they were all. A penalty and the take that it guards are in one place.
func (s *store) failSome(r *backend.Request, inner func(*backend.Request) error) error {
	rest, failed := backend.SubRequest{Request: backend.Request{Together: r.Together, PeekWhenKnown: r.PeekWhenKnown}}, false
	fails := func(i int) bool { return s.failure.Some>>(i%64)&1 != 0 }
	for i := range r.Takes {
		if guard := i > 0 && r.Takes[i-1].Guards; guard && fails(i-1) || !guard && fails(i) {
			r.Outcomes[i], failed = backend.Outcome{Failed: true}, true
			continue
		}
		rest.Add(i, r.Takes[i])
	}
	rest.Prepare()
	if len(rest.Takes) > 0 {
		if err := inner(&rest.Request); err != nil {
			return err
		}
	}
	rest.Answer(r)
	if failed {
		return backend.ErrUnavailable
	}
	return nil
}

// write writes down what the store is asked.
func (s *store) write(what string, r *backend.Request) {
	s.side.Text = s.side.Text.Line(what).Bool("together", r.Together).Bool("peek_when_known", r.PeekWhenKnown)
	for i := range r.Takes {
		k := &r.Takes[i]
		t := s.side.Text.Line(" take").Quoted("key", string(k.Key)).Quoted("rule", pathOf(k.Rule)).Int("hits", k.Hits).Int("member", int64(k.Member))
		t = t.Int("vote", int64(k.Vote)).Bool("count_denied", k.CountDenied).Bool("guards", k.Guards)
		if h := k.Hold; h != nil {
			t = t.Quoted("hold", string(h.ID[:])).Int("op", int64(h.Op)).Int("ttl", h.TTL).Int("least", h.Least).Bool("final", h.Final).Bool("charge_unknown", h.ChargeUnknown)
		}
		s.side.Text = t
		s.side.limit(k.Limit)
	}
}

func pathOf(r *descriptor.Rule) string {
	if r == nil {
		return ""
	}
	return r.Path
}

// limit writes down the numbers of a limit, and what its counter depends on.
func (s *Side) limit(l *descriptor.Limit) {
	t := s.Text.Quoted("limit", l.Name).Uint("requests", l.Requests).Int("unit", int64(l.Window.Unit)).Uint("multiplier", uint64(l.Window.Multiplier))
	t = t.Int("algorithm", int64(l.Algorithm)).Uint("burst", l.Burst).Uint("precision", uint64(l.Precision)).Uint("nodelay", uint64(l.NoDelay)).Int("count", int64(l.CountDenied))
	t = t.Bool("interval", l.Interval).Bool("first_hit", l.FirstHit).Bool("lease", l.Lease).Bool("scheduled", l.Scheduled).Bool("penalty", l.Penalty != nil)
	if l.Window.Location != nil {
		t = t.Quoted("calendar", l.Window.Location.String()).Int("week_start", int64(l.Window.WeekStart))
	}
	if h := l.Reservations; h != nil {
		t = t.Time("hold_ttl", h.TTL).Time("hold_max_ttl", h.MaxTTL).Uint("hold_share", uint64(h.MaxShare)).Int("hold_outstanding", int64(h.MaxOutstanding)).Bool("hold_release", h.Release)
	}
	s.Text = t
}
