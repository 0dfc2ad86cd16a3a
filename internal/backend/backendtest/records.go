package backendtest

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// RunRecords runs the suite of records.
func RunRecords(t *testing.T, records backend.Records) {
	t.Helper()
	change := func(t *testing.T, c backend.RecordChange) backend.RecordChange {
		t.Helper()
		done := make(chan struct{})
		c.Done = func() { close(done) }
		records.Change(&c)
		<-done
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		return c
	}
	read := func(t *testing.T, key, kind string) backend.RecordChange {
		t.Helper()
		return change(t, backend.RecordChange{Key: []byte(key), Kind: kind, Read: true})
	}
	value := func(n int) []byte { return fmt.Appendf(nil, "%08d\x00\x00\x00\x00\x00\x00\x00\x00what is kept", n) }
	written := func(t *testing.T, c backend.RecordChange) backend.RecordChange {
		t.Helper()
		if c.NotAfter == 0 {
			c.NotAfter = math.MaxInt64
		}
		c = change(t, c)
		if c.Result != backend.RecordWritten {
			t.Fatalf("result %d, want written; there is %q", c.Result, c.Present)
		}
		return c
	}

	t.Run("compare", func(t *testing.T) {
		key := []byte("records|compare=1|f60")
		if c := read(t, string(key), "a"); c.Result != backend.RecordDiffers || c.Present != nil || c.At == 0 {
			t.Fatalf("a read of nothing: %+v", c)
		}
		written(t, backend.RecordChange{Key: key, Kind: "a", Value: value(1), Lives: time.Minute})
		written(t, backend.RecordChange{Key: key, Kind: "b", Value: value(2), Lives: time.Minute}) // another record of the counter
		if c := change(t, backend.RecordChange{Key: key, Kind: "a", Value: value(3), Lives: time.Minute, NotAfter: math.MaxInt64}); c.Result != backend.RecordDiffers || string(c.Present) != string(value(1)) {
			t.Fatalf("a change of a record that was believed absent: %+v", c)
		}
		written(t, backend.RecordChange{Key: key, Kind: "a", Stamp: value(1)[:8]}) // only compares
		written(t, backend.RecordChange{Key: key, Kind: "a", Stamp: value(1)[:8], Value: value(4), Lives: time.Minute})
		if c := change(t, backend.RecordChange{Key: key, Kind: "a", Stamp: value(1)[:8], NotAfter: math.MaxInt64}); c.Result != backend.RecordDiffers || string(c.Present) != string(value(4)) {
			t.Fatalf("a comparison with an old stamp: %+v", c)
		}
		if c := read(t, string(key), "b"); string(c.Present) != string(value(2)) {
			t.Fatalf("the other record is %q", c.Present)
		}
	})

	t.Run("time", func(t *testing.T) {
		key := []byte("records|time=1|f60")
		now := read(t, string(key), "a").At
		for _, c := range []backend.RecordChange{
			{NotBefore: now + time.Hour.Microseconds(), NotAfter: math.MaxInt64}, // the clock was set back
			{NotAfter: now - 1}, // the caller was paused
		} {
			c.Key, c.Kind, c.Value, c.Lives = key, "a", value(1), time.Minute
			if c = change(t, c); c.Result != backend.RecordUntimely || c.At < now {
				t.Errorf("%d to %d at %d: %+v", c.NotBefore, c.NotAfter, now, c)
			}
		}
		if c := read(t, string(key), "a"); c.Present != nil {
			t.Errorf("there is %q", c.Present)
		}
	})

	// Takes count after the stamp, as long as it is the one that they have seen. A change carries over what it does not know of.
	t.Run("taken", func(t *testing.T) {
		key := []byte("records|taken=1|f60")
		limit := &descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Hour}}
		if err := limit.Compile(); err != nil {
			t.Fatal(err)
		}
		take := func(a backend.Account, hits int64) backend.Outcome {
			t.Helper()
			r := &backend.Request{Takes: []backend.Take{{Key: key, Limit: limit, Hits: hits, Account: &a}}, Outcomes: make([]backend.Outcome, 1)}
			if err := backend.Await(t.Context(), records, time.Now(), r); err != nil {
				t.Fatal(err)
			}
			return r.Outcomes[0]
		}
		taken := func(n int64) {
			t.Helper()
			if head := backend.HeadOf(read(t, string(key), backend.AccountKind).Present); head.Count != n {
				t.Fatalf("%d are taken, want %d", head.Count, n)
			}
		}
		first, second := backend.AppendHead(nil, 7<<40|1), backend.AppendHead(nil, 1<<53-1)
		now := read(t, string(key), backend.AccountKind).At
		a := backend.Account{Stamp: 7<<40 | 1, Left: 10, Until: now + time.Hour.Microseconds()}
		if o := take(a, 1); o.Allowed || o.Before != backend.OtherRecord {
			t.Fatalf("from no record: %+v", o)
		}
		written(t, backend.RecordChange{Key: key, Kind: backend.AccountKind, Value: append(first, "what is kept"...), Lives: time.Minute})
		if o := take(a, 4); !o.Allowed || o.Before != 0 || o.Used != 4 || o.ResetAfter < 50*time.Minute || o.ResetAfter > time.Hour {
			t.Fatalf("the first take: %+v", o)
		}
		for range 3 {
			if o := take(a, 0); !o.Allowed || o.Used != 4 {
				t.Fatalf("no hits: %+v", o)
			}
			if o := take(a, 7); o.Allowed || o.Before != 4 || o.Used != 4 {
				t.Fatalf("more than there is: %+v", o)
			}
		}
		late := a
		late.Until = now
		if o := take(late, 1); o.Allowed || o.Before != 4 || o.ResetAfter > 0 {
			t.Fatalf("after its end: %+v", o)
		}
		if o := take(a, 6); !o.Allowed || o.Used != 10 {
			t.Fatalf("all of it: %+v", o)
		}
		next := backend.RecordChange{Key: key, Kind: backend.AccountKind, Stamp: first[:8], Value: append(second, "what is next"...), Lives: time.Minute, NotAfter: math.MaxInt64}
		for _, known := range []struct{ taken, most int64 }{{0, 9}, {9, 0}, {11, 10}} {
			next.Taken, next.Most = known.taken, known.most
			if c := change(t, next); c.Result != backend.RecordDiffers || backend.HeadOf(c.Present).Count != 10 {
				t.Fatalf("10 are taken, the caller knows of %d and allows %d more: %+v", known.taken, known.most, c)
			}
		}
		if c := change(t, backend.RecordChange{Key: key, Kind: backend.AccountKind, Stamp: first[:8], Taken: 4, NotAfter: math.MaxInt64}); c.Result != backend.RecordWritten || c.More != 6 {
			t.Fatalf("a comparison: %+v", c)
		}
		taken(10)
		next.Taken, next.Most = 4, 6
		if c := written(t, next); c.More != 6 {
			t.Fatalf("%d are carried over, want 6", c.More)
		}
		taken(6)
		if o := take(a, 0); o.Allowed || o.Before != backend.OtherRecord {
			t.Fatalf("by the stamp before: %+v", o)
		}
		a.Stamp = 1<<53 - 1
		if o := take(a, 4); !o.Allowed || o.Used != 10 {
			t.Fatalf("by the next stamp: %+v", o)
		}
		if c := read(t, string(key), backend.AccountKind); string(c.Present[backend.RecordHead:]) != "what is next" {
			t.Fatalf("the record became %q", c.Present)
		}
		var passed atomic.Int64
		var wg sync.WaitGroup
		a.Left = 200
		for range 8 {
			wg.Go(func() {
				for range 50 {
					if take(a, 1).Allowed {
						passed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if passed.Load() != 190 {
			t.Fatalf("%d of 190 takes passed", passed.Load())
		}
		taken(200)
	})

	t.Run("odd keys", func(t *testing.T) {
		for _, key := range []string{"records|{}|1", "a}b{c", "{tag}|x", "\x00\xff", "plain"} {
			written(t, backend.RecordChange{Key: []byte(key), Kind: "a", Value: value(1), Lives: time.Minute})
			if c := read(t, key, "a"); string(c.Present) != string(value(1)) {
				t.Errorf("%q: there is %q", key, c.Present)
			}
		}
	})

	// Many goroutines add to a few records. Nothing may be lost or counted twice.
	t.Run("concurrent", func(t *testing.T) {
		const workers, each, keys = 8, 100, 3
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := range each {
					key := fmt.Appendf(nil, "records|concurrent=%d|f60", i%keys)
					c := read(t, string(key), "a")
					for {
						n := 0
						if c.Present != nil {
							if _, err := fmt.Sscanf(string(c.Present[backend.RecordHead:]), "%d", &n); err != nil {
								t.Error(err)
								return
							}
						}
						next := fmt.Appendf(nil, "%02d%06d--------%d", w, i, n+1)
						c = change(t, backend.RecordChange{
							Key: key, Kind: "a", Stamp: backend.StampOf(c.Present), Value: next, Lives: time.Minute, NotAfter: math.MaxInt64,
						})
						if c.Result == backend.RecordWritten {
							break
						}
					}
				}
			})
		}
		wg.Wait()
		sum := 0
		for i := range keys {
			n := 0
			c := read(t, fmt.Sprintf("records|concurrent=%d|f60", i), "a")
			if _, err := fmt.Sscanf(string(c.Present[backend.RecordHead:]), "%d", &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if sum != workers*each {
			t.Errorf("%d changes were kept, want %d", sum, workers*each)
		}
	})
}
