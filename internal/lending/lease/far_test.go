package lease

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Counters that are used twice and never again take the places of others for half a minute, not for the length of their window.
func TestFarCountersMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8
		store := memory.New(memory.Options{})
		l := New(Options{Store: store, Timeout: time.Second, MaxLeases: most, Far: &Far{
			Store: store, MayAsk: func(time.Time) bool { return true }, Denied: func(*backend.Take, *backend.Outcome) {}, Waited: func(int, bool) {},
		}})
		limit := descriptor.Limit{Requests: 1000, Window: descriptor.Window{Unit: descriptor.Day}, Lease: true}
		if err := limit.Compile(); err != nil {
			t.Fatal(err)
		}
		ask := func(key string) {
			t.Helper()
			r := backend.Request{
				Takes:    []backend.Take{{Key: []byte(key), Limit: &limit, Hits: 1, Origin: &backend.Origin{Domain: "d"}}},
				Outcomes: make([]backend.Outcome, 1),
			}
			if err := backend.Await(t.Context(), l, time.Now(), &r); err != nil || !r.Outcomes[0].Allowed {
				t.Fatalf("%s: %+v, %v", key, r.Outcomes[0], err)
			}
		}
		hot := func(key string) bool {
			for range 3 {
				ask(key)
				synctest.Wait()
			}
			return l.Leased([]byte(key))
		}
		for i := range most {
			if !hot(fmt.Sprint("flood", i)) {
				t.Fatal("no permits")
			}
		}
		if hot("customer") {
			t.Fatal("there was no place")
		}
		time.Sleep(31 * time.Second) //nolint:forbidigo // virtual time
		l.Sweep(context.Background(), time.Now())
		if !hot("customer") {
			t.Error("no place after half a minute")
		}
	})
}
