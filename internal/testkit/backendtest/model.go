package backendtest

import (
	"context"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Model is the simplest store: a map of states, a list of reservations, and backend.Settle.
type Model struct {
	mu       sync.Mutex
	states   map[string]*backend.State
	reserved []*modelReservation // the oldest first
}

// NewModel returns an empty model.
func NewModel() *Model { return &Model{states: map[string]*backend.State{}} }

// Start settles the takes of one request.
func (m *Model) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request,
	_ func(error)) (settled bool, err error) {
	return true, m.take(ctx, now, r)
}

func (m *Model) take(_ context.Context, now time.Time, r *backend.Request) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	states := make([]*backend.State, len(r.Takes))
	for i, t := range r.Takes {
		if m.states[string(t.Key)] == nil {
			m.states[string(t.Key)] = new(backend.State)
		}
		states[i] = m.states[string(t.Key)]
	}
	for start := 0; start < len(r.Takes); {
		end := r.Group(start)
		found := make([]*modelReservation, end-start)
		for i := range found {
			found[i] = m.look(&r.Takes[start+i], states[start+i], now.UnixMicro())
		}
		backend.Settle(r.Takes[start:end], states[start:end], r.Outcomes[start:end], backend.At(now.UnixMicro()))
		for i := range found {
			m.write(&r.Takes[start+i], found[i], now.UnixMicro())
		}
		start = end
	}
	return nil
}

// Peek judges takes and changes nothing.
func (m *Model) Peek(_ context.Context, now time.Time, r *backend.Request) error {
	for i := range r.Takes {
		s := m.State(r.Takes[i].Key)
		r.Outcomes[i] = backend.Peek(&r.Takes[i], &s, now.UnixMicro())
	}
	return nil
}

// State is the state of a counter.
func (m *Model) State(key []byte) backend.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.states[string(key)]; s != nil {
		return *s
	}
	return backend.State{}
}

// A scale is a span of time and the units of the windows in it. Fixed windows are long enough that a step of the clock
// crosses at most 255 of them: if the clock goes back further than that, a store need not distinguish the windows.
type scale struct {
	span  time.Duration
	units []descriptor.Unit
}

var scales = []scale{
	{4 * time.Second, []descriptor.Unit{descriptor.Millisecond, descriptor.Second, descriptor.Minute}},
	{200 * time.Second, []descriptor.Unit{descriptor.Second, descriptor.Minute, descriptor.Year}},
	{200 * time.Minute, []descriptor.Unit{descriptor.Minute, descriptor.Hour, descriptor.Day}},
	{200 * 24 * time.Hour, []descriptor.Unit{descriptor.Day, descriptor.Week, descriptor.Month, descriptor.Year}},
}

// runModel checks with random requests that a store gives the same answers as the model, and keeps the same states.
// With reservations, some requests are operations on reservations, and the clock does not go back.
func runModel(t *testing.T, open func(t testing.TB) backend.Store, reservations bool) {
	s := open(t)
	rapid.Check(t, func(rt *rapid.T) {
		prefix, m := newCase(), NewModel()
		scale := rapid.SampledFrom(scales).Draw(rt, "scale")
		var keys []backend.Take // counters, for the reads that compare the states
		for range rapid.IntRange(1, 4).Draw(rt, "limits") {
			l := drawLimit(rt, scale.units)
			if reservations && reservable(l) {
				drawReservations(rt, l)
			}
			k := key(prefix, "k", l)
			if !slices.ContainsFunc(keys, func(t backend.Take) bool { return string(t.Key) == string(k) }) {
				keys = append(keys, backend.Take{Key: k, Limit: l, Member: len(keys)})
			}
		}
		// Begin two seconds before the end of a year, or earlier.
		before := min(2_000_000, scale.span.Microseconds()/100)
		now, waits := epoch.UnixMicro()-before, []int64{0}
		latest := now
		for step := range rapid.IntRange(1, 30).Draw(rt, "requests") {
			switch rapid.IntRange(0, 5).Draw(rt, "clock") {
			case 0: // anywhere
				now = epoch.UnixMicro() + rapid.Int64Range(-before, scale.span.Microseconds()).Draw(rt, "now")
			case 1: // around the boundary of a window
				at := epoch.UnixMicro() + rapid.Int64Range(0, scale.span.Microseconds()).Draw(rt, "near")
				_, end := rapid.SampledFrom(keys).Draw(rt, "window").Limit.Window.Bounds(at)
				if end < epoch.Add(scale.span).UnixMicro() {
					now = end + rapid.Int64Range(-1, 1).Draw(rt, "beside")
				}
			case 2: // when an outcome said that something happens
				at := now + rapid.SampledFrom(waits).Draw(rt, "wait") + rapid.Int64Range(-1, 1).Draw(rt, "beside")
				if at < epoch.Add(scale.span).UnixMicro() {
					now = at
				}
			}
			if reservations && rapid.Bool().Draw(rt, "soon") {
				now = latest + rapid.Int64Range(0, 2*time.Minute.Microseconds()).Draw(rt, "pause")
			}
			if reservations {
				now = max(now, latest)
				latest = now
			}
			at := time.UnixMicro(now)
			r := drawRequest(rt, keys)
			if reservations && rapid.Bool().Draw(rt, "reservations") {
				r = drawOperations(rt, keys)
			}
			if !reservations { // a peek need not settle expired reservations
				compare(rt, step, "peek before", s.Peek, m.Peek, at, r)
			}
			compare(rt, step, "request", starting(s), starting(m), at, r)
			waits = append(waits[:0], 0)
			for _, o := range r.Outcomes {
				waits = append(waits, max(0, o.RetryAfter.Microseconds()), o.ResetAfter.Microseconds())
			}

			compare(rt, step, "penalties after", starting(s), starting(m), at, readPenalties(keys))
			reads := &backend.Request{Takes: keys, Outcomes: make([]backend.Outcome, len(keys))}
			compare(rt, step, "reads after", starting(s), starting(m), at, reads)
		}
	})
}

// verb is Start or Peek of a store.
type verb func(context.Context, time.Time, *backend.Request) error

func starting(s backend.Starter) verb {
	return func(ctx context.Context, now time.Time, r *backend.Request) error {
		return backend.Await(ctx, s, now, r)
	}
}

func compare(t *rapid.T, step int, what string, store, model verb, at time.Time, r *backend.Request) {
	want := *r
	want.Takes, want.Outcomes = slices.Clone(r.Takes), make([]backend.Outcome, len(r.Takes))
	for i := range want.Takes {
		if h := want.Takes[i].Reservation; h != nil {
			copied := *h
			want.Takes[i].Reservation = &copied
		}
	}
	if err := model(context.Background(), at, &want); err != nil {
		t.Fatalf("step %d: %v", step, err)
	}
	if err := store(context.Background(), at, r); err != nil {
		t.Fatalf("step %d: %v", step, err)
	}
	for i := range r.Outcomes {
		o, capacity := &r.Outcomes[i], int64(r.Takes[i].Limit.Capacity())
		if o.Used < 0 || o.Before < 0 || o.RetryAfter < backend.Never || o.ResetAfter < 0 || o.Delay < 0 ||
			(o.Allowed && (o.RetryAfter != 0 || r.Takes[i].Hits > 0 && r.Takes[i].Reservation == nil && o.Used > capacity)) {
			t.Fatalf("step %d: %s, %d hits: this cannot be: %s", step, limitText(r.Takes[i].Limit), r.Takes[i].Hits,
				outcomeText(o))
		}
	}
	sameReservation := func(a,
		b backend.Take) bool {
		return reservationText(a.Reservation) == reservationText(b.Reservation)
	}
	if slices.Equal(want.Outcomes, r.Outcomes) && slices.EqualFunc(want.Takes, r.Takes, sameReservation) {
		return
	}
	for i, take := range r.Takes {
		t.Logf("%s at %v, together %v, take %d: %s, member %d, vote %d, count_denied %v\n want %s%s\n got  %s%s",
			what, at.Sub(epoch), r.Together, i, takeText(&take), take.Member, take.Vote, take.CountDenied,
			outcomeText(&want.Outcomes[i]), reservationText(want.Takes[i].Reservation), outcomeText(&r.Outcomes[i]),
			reservationText(take.Reservation))
	}
	t.Fatalf("step %d: the store and the model disagree", step)
}

// drawRequest draws takes of these counters. Some have another number in their limit, as after a change of the rule.
func drawRequest(t *rapid.T, keys []backend.Take) *backend.Request {
	r := &backend.Request{Together: rapid.Bool().Draw(t, "together")}
	n := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, 6)).Draw(t, "takes")
	vote := backend.VoteAll // vote of the member
	for i := range n {
		k := rapid.SampledFrom(keys).Draw(t, "key")
		l := k.Limit
		if rapid.IntRange(0, 4).Draw(t, "changed") == 0 {
			changed := *l
			changed.Requests = drawRequests(t, "changed requests")
			if changed.Compile() == nil {
				l = &changed
			}
		}
		if l.Algorithm == descriptor.SharedWindow {
			of := *l
			drawClass(t, &of)
			l = &of
		}
		capacity := int64(l.Capacity())
		take := backend.Take{
			Key:   k.Key,
			Limit: l,
			Hits: rapid.OneOf(
				rapid.Int64Range(-3, 4), rapid.Int64Range(1, 2),
				rapid.SampledFrom([]int64{capacity, capacity/2 + 1, -capacity / 2, backend.MaxHits, -backend.MaxHits,
					backend.MaxHits - 1}),
			).Draw(t, "hits"),
			CountDenied: rapid.Bool().Draw(t, "count_denied"),
		}
		if (l.Algorithm == descriptor.SlidingLog || l.Algorithm == descriptor.Concurrency) && l.Requests > 1000 {
			take.Hits = min(take.Hits, 500) // the log grows with every hit
		}
		if i > 0 {
			take.Member = r.Takes[len(r.Takes)-1].Member
		}
		if i == 0 || rapid.Bool().Draw(t, "member") {
			take.Member++
			vote = rapid.SampledFrom([]backend.Vote{backend.VoteAll, backend.VoteAny, backend.VoteNone}).Draw(t, "vote")
		}
		if take.Vote = vote; rapid.IntRange(0, 3).Draw(t, "no vote") == 0 {
			take.Vote = backend.VoteNone
		}
		if rapid.IntRange(0, 3).Draw(t, "guarded") == 0 {
			r.Takes = append(r.Takes, drawGuard(t, &take))
		}
		r.Takes = append(r.Takes, take)
	}
	// Sometimes one counter is filled up to the maximum.
	if last := r.Takes[len(r.Takes)-1]; last.Limit.Algorithm == descriptor.FixedWindow &&
		rapid.IntRange(0, 19).Draw(t, "fill") == 0 {
		for range math.MaxUint8 + 5 {
			last.Hits, last.CountDenied, last.Member = backend.MaxHits, true, last.Member+1
			r.Takes = append(r.Takes, last)
		}
	}
	r.Outcomes = make([]backend.Outcome, len(r.Takes))
	return r
}
