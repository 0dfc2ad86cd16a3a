package backendtest

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var update = flag.Bool("update", false, "write the outcomes into the suite's scripts")

// Run runs the suite on the stores that open returns. open may return the same store each time.
func Run(t *testing.T, open func(t testing.TB) backend.Store) {
	t.Run("scripts", func(t *testing.T) { runScripts(t, open, "testdata") })
	t.Run("vectors", func(t *testing.T) { runVectors(t, open) })
	t.Run("edges", func(t *testing.T) { runEdges(t, open(t)) })
	t.Run("concurrent", func(t *testing.T) { runConcurrent(t, open) })
	t.Run("model", func(t *testing.T) { runModel(t, open, false) })
	t.Run("numbers", func(t *testing.T) { SoakNumbers(t, open(t), 10_000, 1) })
	t.Run("bounds", func(t *testing.T) { runBounds(t, open) })
	t.Run("refunds", func(t *testing.T) { runRefunds(t, open) })
	t.Run("tight", func(t *testing.T) { runTight(t, open) })
	t.Run("clock", func(t *testing.T) { runClock(t, open) })
	t.Run("penalties", func(t *testing.T) { runPenalties(t, open) })
	t.Run("reset", func(t *testing.T) { runReset(t, open) })
}

// epoch is the instant from which the suite's times are counted. It is a whole number of years of 365 days after the
// start of 1970, so that windows of every unit except the week and the month start there.
var epoch = time.Unix(58*365*24*3600, 0)

var cases atomic.Int64

// newCase returns a prefix for keys that no other case uses.
func newCase() string { return fmt.Sprintf("case%d|", cases.Add(1)) }

// runEdges tests edge cases that need no script.
func runEdges(t *testing.T, s backend.Store) {
	t.Run("nothing to take", func(t *testing.T) {
		if err := backend.Await(t.Context(), s, epoch, &backend.Request{}); err != nil {
			t.Fatal(err)
		}
	})

	t.Run("keys of any bytes", func(t *testing.T) {
		prefix := newCase()
		keys := []string{"", "a", "a\x00", "\r\n", "{a}", "ключ", "\xff\xfe", " a", "a "}
		for round := int64(1); round <= 2; round++ {
			for _, k := range keys {
				o := one(t, s, epoch, backend.Take{Key: []byte(prefix + k), Limit: Limit("2/1m"), Hits: 1})
				if want := round - 1; !o.Allowed || o.Before != want {
					t.Fatalf("round %d, key %q: %+v", round, k, o)
				}
			}
		}
	})

	t.Run("the caller's bytes are not kept", func(t *testing.T) {
		key := []byte(newCase() + "aaaa")
		one(t, s, epoch, backend.Take{Key: key, Limit: Limit("10/1m"), Hits: 3})
		copy(key[len(key)-4:], "bbbb")
		if o := one(t, s, epoch, backend.Take{Key: key, Limit: Limit("10/1m"), Hits: 1}); o.Before != 0 {
			t.Fatalf("another key found %d hits", o.Before)
		}
	})

	t.Run("a thousand takes", func(t *testing.T) {
		prefix, n := newCase(), 1500
		for _, together := range []bool{false, true} {
			r := &backend.Request{Together: together, Outcomes: make([]backend.Outcome, 2*n)}
			for i := range 2 * n {
				key := fmt.Appendf(nil, "%s%d", prefix, i%n)
				r.Takes = append(r.Takes, backend.Take{Key: key, Limit: Limit("10/1h"), Hits: 1, Member: i})
			}
			if err := backend.Await(t.Context(), s, epoch, r); err != nil {
				t.Fatal(err)
			}
			first := int64(0)
			if together {
				first = 2
			}
			for i, o := range r.Outcomes {
				if want := first + int64(i/n); !o.Allowed || o.Before != want || o.Used != want+1 {
					t.Fatalf("take %d: %+v", i, o)
				}
			}
		}
	})

	for limit, most := range map[string]int64{"4294967295/1h": 1<<40 - 1, "9007199254740991/1h": backend.MaxCount} {
		testMost(t, s, Limit(limit), most)
	}
}

// testMost fills a counter beyond the most that it counts.
func testMost(t *testing.T, s backend.Store, l *descriptor.Limit, most int64) {
	t.Run(fmt.Sprintf("the most that can be counted under %d", l.Requests), func(t *testing.T) {
		hits := most/256 + 1
		take := backend.Take{Key: []byte(newCase() + "k"), Limit: l, Hits: hits, CountDenied: true}
		r := &backend.Request{}
		for i := range 300 {
			take.Member = i
			r.Takes = append(r.Takes, take)
		}
		r.Outcomes = make([]backend.Outcome, len(r.Takes))
		for range 2 {
			if err := backend.Await(t.Context(), s, epoch, r); err != nil {
				t.Fatal(err)
			}
			if o := r.Outcomes[299]; o.Allowed || o.Used != most {
				t.Fatalf("%+v", o)
			}
		}
		take.Hits = -hits
		if o := one(t, s, epoch, take); !o.Allowed || o.Used != most-hits {
			t.Fatalf("%+v", o)
		}
	})
}

// failer is a test, or a check of package rapid.
type failer interface {
	Helper()
	Fatal(args ...any)
}

// one makes one take.
func one(t failer, s backend.Store, now time.Time, take backend.Take) backend.Outcome {
	t.Helper()
	r := &backend.Request{Takes: []backend.Take{take}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(context.Background(), s, now, r); err != nil {
		t.Fatal(err)
	}
	return r.Outcomes[0]
}
