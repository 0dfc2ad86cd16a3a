package backend

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func drawSlidingWindow(t *rapid.T) *descriptor.Limit {
	l := &descriptor.Limit{
		Algorithm: descriptor.SlidingWindow,
		Requests:  rapid.OneOf(rapid.Uint64Range(1, 100), rapid.Uint64Range(1, 1_000_000)).Draw(t, "requests"),
		Precision: rapid.SampledFrom([]uint32{0, 2, 3, 6, 60}).Draw(t, "precision"),
		Window:    descriptor.Window{Unit: rapid.SampledFrom([]descriptor.Unit{descriptor.Second, descriptor.Minute, descriptor.Day}).Draw(t, "unit")},
	}
	if err := l.Compile(); err != nil {
		t.Skip(err)
	}
	return l
}

// Traffic of exactly the limit, evenly spaced, is never denied, wherever it starts, even on the border of a window, as
// with the whole seconds of an access log.
func TestSlidingWindowAdmitsEvenTraffic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSlidingWindow(t)
		l.Requests = rapid.Uint64Range(1, 200).Draw(t, "limit")
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		length, n := l.Window.Length().Microseconds(), int64(l.Requests)
		begin := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, length)).Draw(t, "begin")
		first := rapid.Int64Range(0, 2*n).Draw(t, "first")
		var s State
		for i := range 3*n + 1 {
			at := begin + (first+i)*length/n // whole microseconds, as a clock shows them
			if o := (slidingWindow{}).apply(l, &s, at, 1, commitAllowed); !o.Allowed {
				t.Fatalf("hit %d at %v is denied: %+v", i, micros(at), o)
			}
		}
	})
}

// The boundary of a permit is the end of the sub-window that it is charged to, however the hits before are distributed.
func TestSlidingWindowBoundary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawSlidingWindow(t)
		length := l.Arithmetic.Length
		var s State
		now := rapid.Int64Range(0, 2*length).Draw(t, "begin") + 1<<50
		for range rapid.IntRange(1, 20).Draw(t, "takes") {
			now += rapid.OneOf(rapid.Int64Range(0, length/4), rapid.Int64Range(0, 3*length), rapid.Int64Range(-length, 0)).Draw(t, "pause")
			hits := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, int64(l.Requests))).Draw(t, "hits")
			o := (slidingWindow{}).apply(l, &s, now, hits, commitAllowed)
			b := Boundary(l, &o)
			if b <= 0 {
				t.Fatalf("%+v at %d: a permit of %+v ends after %v", s, now, o, b)
			}
			if want := micros(s.Start + length - now); o.Allowed && b != want {
				t.Fatalf("%+v at %d: a permit of %+v ends after %v, its sub-window after %v", s, now, o, b, want)
			}
		}
	})
}

// Few hits in the sub-window of now, many before: the boundary was computed from all of them, and lay before now.
func TestSlidingWindowBoundaryAfterManyHits(t *testing.T) {
	l := &descriptor.Limit{
		Algorithm: descriptor.SlidingWindow, Requests: 300, Precision: 6, Window: descriptor.Window{Unit: descriptor.Minute},
	}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	var s State
	minute := time.Minute.Microseconds()
	(slidingWindow{}).apply(l, &s, minute, 200, commitAllowed)
	o := (slidingWindow{}).apply(l, &s, minute+19_000_000, 1, commitAllowed)
	if b := Boundary(l, &o); b != time.Second {
		t.Errorf("a permit that is charged a second before its sub-window ends is said to stay there for %v", b)
	}
}
