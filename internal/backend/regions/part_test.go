package regions_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

var errAnswer = errors.New("the wrong answer")

// slowBucket is one of 600 in which nothing flows while a test runs.
func slowBucket() descriptor.Limit {
	return descriptor.Limit{Requests: 600, Burst: 600, Window: day, Algorithm: descriptor.TokenBucket}
}

// All regions together never admit more than the burst and what has flowed in since, and they use it.
func TestBucketsAreExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 3, processes: 2, memory: "c"})
	for name, l := range map[string]descriptor.Limit{
		"slow":  slowBucket(),
		"fast":  {Requests: 6000, Burst: 600, Window: descriptor.Window{Unit: descriptor.Minute}, Algorithm: descriptor.TokenBucket},
		"leaky": {Requests: 600, Burst: 600, Window: day, Algorithm: descriptor.LeakyBucket, NoDelay: descriptor.NoDelayAll},
		"hash":  slowBucket(),
	} {
		home := "a"
		if name == "hash" {
			home = ""
		}
		limit := w.limit(name, escrow(home, l))
		t.Run(name, func(t *testing.T) {
			began, admitted := time.Now(), int64(0)
			redistest.Eventually(t, "most of it is used", func(context.Context) error {
				if admitted += w.storm(name); admitted < 570 {
					return fmt.Errorf("%d admitted", admitted)
				}
				return nil
			})
			flowed := int64(time.Since(began).Seconds()*float64(limit.Requests)/limit.Window.Length().Seconds()) + 1
			if most := int64(limit.Capacity()) + flowed; admitted > most {
				t.Errorf("%d admitted, %d are in the bucket and have flowed in", admitted, most)
			}
		})
	}
}

// Tokens of a region that no longer needs them are used by the others.
func TestTokensOfABucketAreReturned(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1, memory: "ab"})
	w.limit("x", escrow("a", slowBucket()))
	a, b := w.of["a"][0], w.of["b"][0]
	admitted := int64(0)
	for _, p := range []*process{a, b} {
		o, err := w.take(p, "x", 1, patience)
		if err != nil || !o.Allowed {
			t.Fatalf("%+v, %v", o, err)
		}
		admitted++
	}
	redistest.Eventually(t, "b uses what a does not need", func(context.Context) error {
		for {
			if o, err := w.take(b, "x", 1, patience); err != nil || !o.Allowed {
				break
			}
			admitted++
		}
		if admitted < 540 { // a keeps 1/16
			return fmt.Errorf("%d admitted", admitted)
		}
		return nil
	})
}

// A region that reaches nobody uses its part, and no more.
func TestBucketsInACut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	w.limit("x", escrow("a", slowBucket()))
	a, b := w.of["a"][0], w.of["b"][0]
	for _, p := range []*process{a, b} {
		if o, err := w.take(p, "x", 1, patience); err != nil || !o.Allowed {
			t.Fatalf("%+v, %v", o, err)
		}
	}
	w.mu.Lock()
	w.cut["b"] = true
	w.mu.Unlock()
	admitted := map[string]int64{}
	for name, p := range map[string]*process{"a": a, "b": b} {
		for {
			o, err := w.take(p, "x", 1, time.Second)
			if err != nil || !o.Allowed {
				break
			}
			admitted[name]++
		}
	}
	if sum := admitted["a"] + admitted["b"] + 2; sum > 600 || admitted["a"] < 100 || admitted["b"] < 100 {
		t.Errorf("%v of 600 were admitted", admitted)
	}
}

// A rule that changes to escrow keeps what its home has counted before, whatever it was. One that changes back admits nothing while a region
// may have its part.
func TestBucketsChangeTheirMode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	a, b := w.of["a"][0], w.of["b"][0]
	for name, before := range map[string]descriptor.Limit{"x": slowBucket(), "y": atHome("a", slowBucket())} {
		w.limit(name, before)
		if o, err := w.take(a, name, 600, patience); err != nil || !o.Allowed {
			t.Fatalf("%s: %+v, %v", name, o, err)
		}
		w.limit(name, escrow("a", slowBucket()))
		for _, p := range []*process{b, a} {
			if o, err := w.take(p, name, 2, patience); err != nil || o.Allowed {
				t.Errorf("%s: %+v, %v: nothing is left", name, o, err)
			}
		}
	}
	w.limit("z", escrow("a", slowBucket()))
	if o, err := w.take(b, "z", 1, patience); err != nil || !o.Allowed {
		t.Fatalf("%+v, %v", o, err)
	}
	w.limit("z", atHome("a", slowBucket()))
	for _, p := range []*process{a, b} {
		if o, err := w.take(p, "z", 1, patience); err == nil {
			t.Errorf("%+v: another region may have its part", o)
		}
	}
}

// What was lowered, blocked or reset at the home soon holds in the other regions. Requests of a caller who is blocked there are denied by
// the limit.
func TestBucketsOfTheHomeCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	l := w.limit("x", escrow("a", slowBucket()))
	b := w.of["b"][0]
	if o, err := w.takeUnder(b, "x", l, 1, patience); err != nil || !o.Allowed || o.Used < 1 || o.Used >= 600 {
		t.Fatalf("%+v, %v", o, err)
	}
	if o, err := w.takeUnder(b, "x", l, 601, patience); err != nil || o.Allowed || o.RetryAfter != backend.Never {
		t.Errorf("%+v, %v: more than the bucket holds", o, err)
	}
	if o, err := w.takeUnder(b, "x", l, 590, patience); err != nil || o.Allowed || o.RetryAfter <= 0 || o.RetryAfter == backend.Never {
		t.Errorf("%+v, %v: more than the part holds", o, err)
	}
	blocked := *l
	blocked.Requests, blocked.Burst = 0, 0
	set := func(l *descriptor.Limit) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.limits["x"] = l
	}
	set(&blocked)
	redistest.Eventually(t, "the caller is blocked", func(context.Context) error {
		if o, err := w.takeUnder(b, "x", l, 1, patience); err != nil || o.Allowed {
			return fmt.Errorf("%+v, %w", o, cmp.Or(err, errAnswer))
		}
		return nil
	})
	set(l)
	redistest.Eventually(t, "it is not blocked any more", func(context.Context) error {
		if o, err := w.takeUnder(b, "x", l, 1, patience); err != nil || !o.Allowed {
			return fmt.Errorf("%+v, %w", o, cmp.Or(err, errAnswer))
		}
		return nil
	})
	small := slowBucket()
	small.Requests, small.Burst = 100, 100
	w.limit("x", escrow("a", small))
	redistest.Eventually(t, "the part fits the lowered limit", func(context.Context) error {
		if o, err := w.takeUnder(b, "x", l, 101, patience); err != nil || o.Allowed {
			return fmt.Errorf("%+v, %w", o, cmp.Or(err, errAnswer))
		}
		return nil
	})
}

// Peek shows the region's part and changes nothing, Reset refills the bucket at its home, and hits that are given back are lost.
func TestBucketsPeekAndReset(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{regions: 2, processes: 1})
	l := w.limit("x", escrow("a", slowBucket()))
	a, b := w.of["a"][0], w.of["b"][0]
	peek := func(p *process) backend.Outcome {
		t.Helper()
		r := &backend.Request{Takes: []backend.Take{{Key: keyOf("x"), Limit: l, Origin: originOf("x")}}, Outcomes: make([]backend.Outcome, 1)}
		if err := p.Peek(t.Context(), time.Now(), r); err != nil {
			t.Fatal(err)
		}
		return r.Outcomes[0]
	}
	if o := peek(b); !o.Allowed || o.Used != 0 {
		t.Errorf("before the first take: %+v", o)
	}
	for {
		o, err := w.take(a, "x", 1, patience)
		if err != nil {
			t.Fatal(err)
		}
		if !o.Allowed {
			break
		}
	}
	if o := peek(a); o.Used != 600 {
		t.Errorf("all is used: %+v", o)
	}
	if o, err := w.take(a, "x", -5, patience); err != nil || o.Used != 600 {
		t.Errorf("%+v, %v", o, err)
	}
	c := []backend.Counter{{Key: keyOf("x"), Limit: l}}
	if err := b.Reset(t.Context(), c); err == nil {
		t.Error("another region than the home has reset the counter")
	}
	if err := a.Reset(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if o, err := w.take(a, "x", 1, patience); err != nil || !o.Allowed {
		t.Errorf("after the reset: %+v, %v", o, err)
	}
}
