package assembly_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// front is the layer of another region, which is asked first.
type front struct {
	backend.Store
	cleared chan struct{}
}

func (f *front) Cleared() { f.cleared <- struct{}{} }

// A process that shares a Redis keeps denials, and drops them when another process resets the counter or gives hits
// back. The layer of regions is the first of the chain, and learns of the reset.
func TestProcessesForgetTogether(t *testing.T) {
	server := redistest.Start(t)
	var all [2]*assembly.Counters
	asked := make(chan struct{}, 100)
	for i := range all {
		work := new(assembly.Background)
		o := assembly.Options{
			Redis: &assembly.Redis{Connect: redisconn.Options{URL: server.Addr}, Timeout: time.Minute}, DenialBytes: 1 << 20,
			Regions: func(here backend.Store) (assembly.Regions, error) { return &front{here, asked}, nil },
		}
		var err error
		if all[i], err = assembly.Open(&work.Tasks, o); err != nil {
			t.Fatal(err)
		}
		work.Begin(t.Context())
		t.Cleanup(func() {
			if err := work.End(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, first := all[0].Store.(*front); !first {
		t.Errorf("decisions ask %T first, want the layer of regions", all[0].Store)
	}
	limit := descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Year}}
	rule := &descriptor.Rule{Domain: "d", Limits: []descriptor.Limit{limit}}
	take := func(of *assembly.Counters, hits int64) bool {
		t.Helper()
		r := backend.Request{
			Takes:    []backend.Take{{Key: []byte("k"), Limit: &rule.Limits[0], Rule: rule, Hits: hits}},
			Outcomes: make([]backend.Outcome, 1),
		}
		if err := backend.Await(t.Context(), of.Store, time.Now(), &r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes[0].Allowed
	}
	used := func() {
		t.Helper()
		take(all[0], 1)
		redistest.Eventually(t, "both processes deny, and the other one remembers it", func(context.Context) error {
			if take(all[0], 1) || take(all[1], 1) {
				t.Fatal("a used counter admits hits")
			}
			if all[1].Denials.Len() != 1 { // the cache drops its denials when it starts to receive resets
				return errors.New("the denial is not remembered")
			}
			return nil
		})
	}
	forgotten := func(context.Context) error {
		if all[1].Denials.Len() > 0 {
			return errors.New("the denial is still remembered")
		}
		return nil
	}
	used()
	if err := all[0].Reset(t.Context(), []backend.Counter{{Key: []byte("k"), Limit: &rule.Limits[0]}}); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the other process forgets a counter that was reset", forgotten)
	<-asked
	used()
	take(all[0], -1)
	redistest.Eventually(t, "the other process forgets a counter with room", forgotten)
	if !take(all[1], 1) {
		t.Error("a counter with room admits no hit")
	}
}
