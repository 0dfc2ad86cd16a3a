package backendtest

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
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
	value := func(n int) []byte { return fmt.Appendf(nil, "%08d|what is kept", n) }
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
							if _, err := fmt.Sscanf(string(c.Present[8:]), "%d", &n); err != nil {
								t.Error(err)
								return
							}
						}
						next := fmt.Appendf(nil, "%02d%06d%d", w, i, n+1)
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
			if _, err := fmt.Sscanf(string(c.Present[8:]), "%d", &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		if sum != workers*each {
			t.Errorf("%d changes were kept, want %d", sum, workers*each)
		}
	})
}
