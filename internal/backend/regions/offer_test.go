package regions_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// counting are records that count what a process does to accounts.
type counting struct {
	backend.Records
	taken, changed atomic.Int64
}

func (c *counting) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error)) (bool, error) {
	c.taken.Add(1)
	return c.Records.Start(ctx, now, b, r, done)
}

func (c *counting) Change(change *backend.RecordChange) {
	if change.Kind == backend.AccountKind {
		c.changed.Add(1)
	}
	c.Records.Change(change)
}

// A take from an account that has room costs one trip to the record, and no step: an account is changed only to ask the home, and to
// apply what it answers.
func TestTakesFromAnOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{regions: 2, processes: 1, memory: "ab"})
		w.limit("x", escrow("a", descriptor.Limit{Requests: 1_000_000, Window: hour}))
		mem := memory.NewRecords(0)
		records := [2]*counting{{Records: mem}, {Records: mem}}
		var b [2]*process
		for i := range b { // two processes with one record
			b[i] = w.start("b", mem, func(o *regions.Options) { o.Records = records[i] })
		}
		w.awaitHomes()
		take := func(i int) {
			o, err := w.take(b[i%2], "x", 1, patience)
			if err != nil || !o.Allowed {
				t.Fatalf("take %d: %+v, %v", i, o, err)
			}
			time.Sleep(2 * time.Millisecond) //nolint:forbidigo // virtual time
		}
		for i := range 5000 {
			take(i)
		}
		for _, r := range records {
			r.taken.Store(0)
			r.changed.Store(0)
		}
		for i := range 2000 { // in 4 s
			take(i)
		}
		for i, r := range records {
			if taken, changed := r.taken.Load(), r.changed.Load(); taken < 1000 || taken > 1020 || changed > 30 {
				t.Errorf("process %d: %d trips for 1000 takes, and %d changes", i, taken, changed)
			}
		}
		o, err := w.take(w.of["a"][0], "x", 0, patience)
		if err != nil || o.Used < 7000 {
			t.Errorf("7000 were admitted, and the home has counted %d: %v", o.Used, err)
		}
	})
}
