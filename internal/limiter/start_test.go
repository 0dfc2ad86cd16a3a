package limiter_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// later is a store that settles every request in another goroutine.
type later struct{ backend.Store }

// Start implements backend.Store.
func (s later) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request, done func(error)) (bool, error) {
	async.Go(func() error { return backend.Await(ctx, s.Store, now, r) }, done)
	return false, nil
}

func limiterOn(t testing.TB, s backend.Store) *limiter.Limiter {
	t.Helper()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("a", "", 3), perMinute("b", "x*", math.MaxUint32)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: s})
	l.Swap(tree, limiter.Settings{})
	return l
}

// A decision with Start is the same as one with Decide, whether the store answers immediately or later.
func TestStartDecidesLikeDecide(t *testing.T) {
	requests := []*limiter.Request{
		{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("a=1")}, {Entries: entries("b=xyz")}}},
		{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("c=1")}}},
		{Domain: "none", Descriptors: []limiter.Descriptor{{Entries: entries("a=1")}}},
		{Domain: "d"},
		{},
	}
	for name, store := range map[string]backend.Store{"at once": memory.New(memory.Options{}), "later": later{memory.New(memory.Options{})}} {
		waited, begun := limiterOn(t, memory.New(memory.Options{})), limiterOn(t, store)
		for round := range 5 {
			for i, req := range requests {
				var want, got limiter.Decision
				wantErr := waited.Decide(t.Context(), noon, req, &want)
				gotErr := startAndWait(t.Context(), begun, req, &got)
				if (wantErr == nil) != (gotErr == nil) || wantErr != nil && wantErr.Error() != gotErr.Error() {
					t.Errorf("%s, request %d: %v, want %v", name, i, gotErr, wantErr)
				}
				ignoreRules(&want, &got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s, request %d in round %d: %s", name, i, round, diff)
				}
			}
		}
	}
}

// ignoreRules removes the rules of two limiters, which are equal but not the same.
func ignoreRules(all ...*limiter.Decision) {
	for _, d := range all {
		for i := range d.Statuses {
			d.Statuses[i].Rule = nil
		}
	}
}

func startAndWait(ctx context.Context, l *limiter.Limiter, req *limiter.Request, d *limiter.Decision) error {
	answer := make(chan error, 1)
	decided, err := l.Start(ctx, noon, nil, req, d, func(err error) { answer <- err })
	if decided {
		return err
	}
	return <-answer
}

// Decisions that were started together do not share memory.
func TestStartedDecisionsAtOnce(t *testing.T) {
	l := limiterOn(t, later{memory.New(memory.Options{})})
	var admitted sync.Map
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			var d limiter.Decision
			req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("a=" + string(rune('0'+i%10)))}}}
			if err := startAndWait(t.Context(), l, req, &d); err != nil {
				t.Error(err)
			}
			if d.Code == limiter.OK {
				admitted.Store(i, req.Descriptors[0].Entries[0].Value)
			}
		})
	}
	all.Wait()
	n := map[any]int{}
	admitted.Range(func(_, value any) bool { n[value]++; return true })
	for value, got := range n {
		if got != 3 {
			t.Errorf("%v: %d were admitted, want 3", value, got)
		}
	}
	if len(n) != 10 {
		t.Errorf("%d values were admitted, want 10", len(n))
	}
}

// broken is a store that panics.
type broken struct{ backend.Store }

// Start implements backend.Store.
func (broken) Start(context.Context, time.Time, *backend.Batch, *backend.Request, func(error)) (bool, error) {
	panic("broken")
}

// A panic in another goroutine becomes an error of the request: it does not end the process.
func TestStartSurvivesAPanic(t *testing.T) {
	l := limiterOn(t, later{broken{memory.New(memory.Options{})}})
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("a=1")}}}
	err := startAndWait(t.Context(), l, req, new(limiter.Decision))
	if p, ok := errors.AsType[*async.PanicError](err); !ok || p.Value != "broken" {
		t.Errorf("got %v", err)
	}
}

func TestStartDoesNotAllocate(t *testing.T) {
	l := limiterOn(t, memory.New(memory.Options{}))
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("a=1")}, {Entries: entries("b=xyz")}}}
	d := &limiter.Decision{}
	if n := testing.AllocsPerRun(100, func() {
		if decided, err := l.Start(context.Background(), noon, nil, req, d, nil); err != nil || !decided {
			t.Fatal(decided, err)
		}
	}); n > 0 && !racetest.On {
		t.Errorf("%v allocations for a decision that memory answers, want none", n)
	}
}
