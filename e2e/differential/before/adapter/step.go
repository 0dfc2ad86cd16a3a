package adapter

import (
	"context"
	"errors"
	"iter"

	"github.com/ratelimitd/ratelimitd/e2e/differential"
	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/e2e/differential/before/limiter"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Step takes one step.
func (s *Side) Step(step *differential.Step) {
	if step.Resolve {
		s.resolve()
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if step.Ended {
		cancel()
	}
	s.store.begin(step.Store, cancel)
	s.store.cached = step.Cached
	if s.local != nil {
		s.local.begin(step.Local, cancel)
	}
	first := func() *limiter.Descriptor {
		s.request = requestOf(&step.Request)
		return &s.request.Descriptors[0]
	}
	switch step.Kind {
	case differential.Decide:
		s.request = requestOf(&step.Request)
		err := s.limiter.Decide(ctx, step.Now, &s.request, &s.decision)
		s.decided("decide", &s.decision, err)
	case differential.Begin, differential.BeginLater:
		s.start(step)
	case differential.Allow:
		d := &step.Request.Descriptors[0]
		var pairs []string
		for _, e := range d.Entries {
			pairs = append(pairs, e.Key, e.Value)
		}
		allowed, delay, plain, err := s.limiter.AllowPlain(ctx, step.Now, step.Request.Domain, pairs)
		s.Text = s.Text.Line("allow").Bool("plain", plain).Bool("allowed", allowed).Time("delay", delay).Error("error", err)
	case differential.Peek:
		d := first()
		s.explain(step.Request.Domain, d.Entries)
		c, err := s.limiter.Peek(ctx, step.Now, step.Request.Domain, d)
		s.counters("peek", &c, err)
	case differential.PeekWith:
		d := first()
		c, err := s.limiter.PeekWith(ctx, step.Now, step.Request.Domain, d, s.sets[step.Set])
		s.counters("peek with", &c, err)
	case differential.Reset:
		d := first()
		c, err := s.limiter.Reset(ctx, step.Now, step.Request.Domain, d)
		s.counters("reset", &c, err)
	case differential.QuotaBucket:
		d := first()
		q, err := s.limiter.QuotaBucket(ctx, step.Now, step.Request.Domain, d.Entries)
		s.quotaBucket(&q, err)
	case differential.Swap:
		s.limiter.Swap(s.trees[step.Version], s.settings[step.Version])
	case differential.SetOverrides:
		s.limiter.SetOverrides(s.sets[step.Set])
	case differential.SetReplicas:
		s.limiter.SetReplicas(step.Replicas)
	case differential.Sweep:
		s.store.sweep(step.Now)
		if s.local != nil {
			s.local.sweep(step.Now)
		}
	}
	if s.hot != nil && step.Kind == differential.Sweep {
		s.hot.Rotate(step.Now)
	}
}

// start begins a decision. If its store is to answer later, that is when resolve is called.
func (s *Side) start(step *differential.Step) {
	s.begun++
	w := &waiting{number: s.begun, request: requestOf(&step.Request)}
	s.store.later = step.Kind == differential.BeginLater
	done := make(chan error, 1)
	decided, err := s.limiter.Start(context.Background(), step.Now, nil, &w.request, &w.decision, func(err error) { done <- err })
	switch {
	case decided:
		s.decided("begin", &w.decision, err)
	case s.store.later && len(s.waiting) < len(s.store.waiting):
		w.done = done
		s.waiting = append(s.waiting, w)
		s.Text = s.Text.Line("waits")
	default: // a goroutine of the limiter decides
		err = <-done
		s.decided("begun", &w.decision, err)
	}
	s.store.later = false
}

// resolve lets the store answer everything that waits, the last one first.
func (s *Side) resolve() {
	for n := len(s.waiting) - 1; n >= 0; n-- {
		w := s.waiting[n]
		s.store.answer(n)
		err := <-w.done
		s.Text = s.Text.Line("answered").Int("number", int64(w.number))
		s.decided("begun", &w.decision, err)
	}
	s.waiting = s.waiting[:0]
}

var errUnready = errors.New("not ready")

func requestOf(r *differential.Request) limiter.Request {
	to := limiter.Request{Domain: r.Domain, Hits: r.Hits}
	switch r.Purpose {
	case differential.Count:
	case differential.Look:
		to.Purpose = limiter.Look
	case differential.Passed:
		to.Purpose = limiter.Charge
	}
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		one := limiter.Descriptor{Entries: entriesOf(d.Entries), Hits: d.Hits, HasHits: d.HasHits, Refund: d.Refund}
		for _, a := range d.Amounts {
			one.Amounts = append(one.Amounts, descriptor.Amount{Name: a.Name, Units: a.Units})
		}
		if d.Limit != nil {
			one.HasLimit, one.Limit = true, limiter.RequestLimit{Requests: d.Limit.Requests, Unit: d.Limit.Unit, Multiplier: d.Limit.Multiplier}
		}
		to.Descriptors = append(to.Descriptors, one)
	}
	if h := r.Hold; h != nil {
		to.Hold = &limiter.Hold{
			Op: [...]backend.HoldOp{backend.HoldReserve, backend.HoldCommit, backend.HoldExtend}[h.Op],
			ID: h.ID, TTL: h.TTL, Least: h.Least, Final: h.Final, ChargeUnknown: h.ChargeUnknown,
		}
		if h.Unready {
			to.Hold.Unready = errUnready
		}
	}
	return to
}

func entriesOf(all []differential.Entry) (to []descriptor.Entry) {
	for _, e := range all {
		to = append(to, descriptor.Entry{Key: e.Key, Value: e.Value})
	}
	return to
}

func overridesOf(all []differential.Override) *override.Set {
	each := func(yield func(*override.Identity, override.Numbers) bool) {
		for i := range all {
			o := &all[i]
			id := &override.Identity{Domain: o.Domain, Rule: o.Rule, Limit: o.Limit, Entries: entriesOf(o.Entries)}
			kind := [...]override.Kind{override.Replace, override.Scale, override.Unlimited, override.Blocked}[o.Kind]
			if !yield(id, override.Numbers{Kind: kind, Requests: o.Requests, Burst: o.Burst, NotBefore: o.NotBefore, ExpiresAt: o.ExpiresAt}) {
				return
			}
		}
	}
	return override.NewSet(1, iter.Seq2[*override.Identity, override.Numbers](each))
}
