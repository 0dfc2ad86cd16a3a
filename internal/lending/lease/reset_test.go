package lease

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// Reset has the same delays as Take.
func (d *distant) Reset(ctx context.Context, counters []backend.Counter) error {
	time.Sleep(d.there) //nolint:forbidigo // virtual time
	err := d.store.Reset(ctx, counters)
	time.Sleep(d.back) //nolint:forbidigo // virtual time
	return err
}

func reset(t *testing.T, to *Leases, key string, l *descriptor.Limit) {
	t.Helper()
	if err := to.Reset(context.Background(), []backend.Counter{{Key: []byte(key), Limit: l}}); err != nil {
		t.Fatal(err)
	}
}

func TestResetVoidsPermits(t *testing.T) {
	voidsPermits(t, func(t *testing.T, to *Leases, key string, l *descriptor.Limit) { reset(t, to, key, l) })
}

// Another replica clears the counter.
func TestVoidVoidsPermits(t *testing.T) {
	voidsPermits(t, func(t *testing.T, to *Leases, key string, l *descriptor.Limit) {
		if err := to.opts.Store.Reset(t.Context(), []backend.Counter{{Key: []byte(key), Limit: l}}); err != nil {
			t.Fatal(err)
		}
		to.Void([]byte(key))
	})
}

// voidsPermits checks the permits that remain after a reset of one of two counters.
func voidsPermits(t *testing.T, reset func(*testing.T, *Leases, string, *descriptor.Limit)) {
	l := leased(t, descriptor.Limit{Requests: 2000, Window: window(1, descriptor.Minute)})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, &distant{there: time.Millisecond, back: time.Millisecond})
		for n := 0; f.replicas[0].Len() < 2 || f.replicas[0].permits() < 20; n++ {
			if n == 2000 {
				t.Fatal("two counters have no permits after 2000 takes")
			}
			f.take(0, []string{"k", "other"}[n%2], l, 1)
			time.Sleep(time.Millisecond) //nolint:forbidigo // virtual time
		}
		held := f.replicas[0].permits()
		reset(t, f.replicas[0], "k", l)
		if n := f.replicas[0].permits(); n == 0 || n >= held || f.replicas[0].Len() != 1 {
			t.Errorf("%d permits of %d counters after the reset, want those of the other counter alone (%d before)", n, f.replicas[0].Len(), held)
		}
		r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l}}, Outcomes: make([]backend.Outcome, 1)}
		if err := backend.Await(t.Context(), f.replicas[0], time.Now(), &r); err != nil || r.Outcomes[0].Used != 0 {
			t.Errorf("%+v in use after the reset, %v", r.Outcomes[0], err)
		}
		c := &f.replicas[0].counts
		if leased, known := c.leased.Load(), c.used.Load()+c.returned.Load()+c.expired.Load()+f.replicas[0].permits(); leased != known {
			t.Errorf("%d permits were leased, and %d are accounted for", leased, known)
		}
		f.replicas[0].VoidAll()
		if n := f.replicas[0].permits(); n != 0 || f.replicas[0].Len() != 0 {
			t.Errorf("%d permits of %d counters after all are void", n, f.replicas[0].Len())
		}
	})
}

// hooked is a store that runs a function before it clears counters.
type hooked struct {
	*memory.Store
	before func()
}

func (h *hooked) Reset(ctx context.Context, counters []backend.Counter) error {
	h.before()
	return h.Store.Reset(ctx, counters)
}

// Permits acquired while the reset was on its way to the store were charged before the reset: they are void, too.
func TestResetVoidsPermitsTakenMeanwhile(t *testing.T) {
	l := leased(t, descriptor.Limit{Requests: 2000, Window: window(1, descriptor.Minute)})
	synctest.Test(t, func(t *testing.T) {
		store := &hooked{Store: memory.New(memory.Options{})}
		f := newFleet(1, &distant{store: store})
		store.before = func() { f.heatUp(t, 0, "k", l) }
		reset(t, f.replicas[0], "k", l)
		if n := f.replicas[0].permits(); n != 0 {
			t.Errorf("%d permits left of what was counted before the reset", n)
		}
	})
}

// After a reset at any moment, takes that start later are admitted once up to the limit. No older permit is used, not
// even a pending one.
func TestResetAtAnyMoment(t *testing.T) {
	const limit = 400
	l := leased(t, descriptor.Limit{Requests: limit, Window: window(1, descriptor.Hour)})
	local := int64(0)
	for seed := range uint64(rapidtest.Cases(10, 60)) {
		random := rand.New(rand.NewPCG(seed, 1))
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(1, &distant{there: 3 * time.Millisecond, back: 5 * time.Millisecond})
			var wg sync.WaitGroup
			var cleared atomic.Bool
			var admitted atomic.Int64 // takes that started after the reset
			take := func() {
				after := cleared.Load()
				r := backend.Request{Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
				if err := backend.Await(t.Context(), f.replicas[0], time.Now(), &r); err != nil {
					t.Error(err)
				}
				if after && r.Outcomes[0].Allowed {
					admitted.Add(1)
				}
			}
			at := time.Duration(100+random.IntN(300)) * time.Millisecond / 2
			wg.Go(func() {
				time.Sleep(at) //nolint:forbidigo // virtual time
				reset(t, f.replicas[0], "k", l)
				cleared.Store(true)
			})
			for range 1500 {
				wg.Go(take)
				time.Sleep(time.Duration(random.IntN(800)) * time.Microsecond) //nolint:forbidigo // virtual time
			}
			wg.Wait()
			if n := admitted.Load(); n > limit {
				t.Errorf("seed %d, reset at %s: %d admitted after it, the limit is %d", seed, at, n, limit)
			}
			c := &f.replicas[0].counts
			if leased, known := c.leased.Load(), c.used.Load()+c.returned.Load()+c.expired.Load()+f.replicas[0].permits(); leased != known {
				t.Errorf("seed %d: %d permits were leased, and %d are accounted for", seed, leased, known)
			}
			local += c.local.Load()
		})
	}
	if local == 0 {
		t.Error("nothing was leased: the test shows nothing")
	}
}
