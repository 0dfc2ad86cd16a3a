package backendtest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const (
	workers = 64
	limited = 640 // hits that are allowed in total
)

// runConcurrent checks that exactly the limit is allowed, however many goroutines take at the same time.
func runConcurrent(t *testing.T, open func(t testing.TB) backend.Store) {
	for name, l := range EveryAlgorithm(limited) {
		t.Run(name, func(t *testing.T) {
			s, k := open(t), key(newCase(), "k", l)
			const each = 2 * limited / workers // twice as many hits as may pass
			var admitted atomic.Int64
			together(t, func(int) error {
				r := &backend.Request{Takes: make([]backend.Take, 1), Outcomes: make([]backend.Outcome, 1)}
				for range each {
					r.Takes[0] = backend.Take{Key: k, Limit: l, Hits: 1}
					if err := backend.Await(t.Context(), s, epoch, r); err != nil {
						return err
					}
					if r.Outcomes[0].Allowed {
						admitted.Add(1)
					}
				}
				return nil
			})
			if admitted.Load() != limited {
				t.Errorf("%d admitted, the limit is %d", admitted.Load(), limited)
			}
			if o := one(t, s, epoch, backend.Take{Key: k, Limit: l}); o.Used != limited {
				t.Errorf("%d in use after all", o.Used)
			}
		})
		t.Run(name+", all or nothing", func(t *testing.T) { allOrNothing(t, open(t), l) })
	}

	t.Run("hits and refunds", func(t *testing.T) {
		s, key := open(t), newCase()+"k"
		const each = 20
		together(t, func(int) error {
			r := &backend.Request{Takes: make([]backend.Take, 1), Outcomes: make([]backend.Outcome, 1)}
			for range each {
				for _, hits := range []int64{3, -2} {
					r.Takes[0] = backend.Take{Key: []byte(key), Limit: Limit("1000000/1h"), Hits: hits}
					if err := backend.Await(t.Context(), s, epoch, r); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if o := one(t, s, epoch, backend.Take{Key: []byte(key), Limit: Limit("1000000/1h")}); o.Used != workers*each {
			t.Errorf("%d in use, want %d", o.Used, workers*each)
		}
	})
}

// allOrNothing sends requests that take one hit of a shared counter and one hit of the worker's own counter. If the
// shared counter denies, nothing may be counted on the other one.
func allOrNothing(t *testing.T, s backend.Store, sharedLimit *descriptor.Limit) {
	const each = 2 * limited / workers
	prefix := newCase()
	shared, ownLimits := key(prefix, "shared", sharedLimit), slices.Collect(maps.Values(EveryAlgorithm(each)))
	own := func(worker int) backend.Take {
		l := ownLimits[worker%len(ownLimits)]
		return backend.Take{Key: key(prefix, fmt.Sprint("own", worker), l), Limit: l}
	}
	var admitted [workers]int64
	together(t, func(worker int) error {
		r := &backend.Request{Together: true, Outcomes: make([]backend.Outcome, 2)}
		for i := range each {
			r.Takes = []backend.Take{own(worker), {Key: shared, Limit: sharedLimit}}
			if i%2 == 1 { // the other order, to provoke a store that locks one by one
				slices.Reverse(r.Takes)
			}
			r.Takes[0].Hits, r.Takes[1].Hits, r.Takes[1].Member = 1, 1, 1
			if err := backend.Await(t.Context(), s, epoch, r); err != nil {
				return err
			}
			if r.Outcomes[0].Allowed && r.Outcomes[1].Allowed {
				admitted[worker]++
			}
		}
		return nil
	})
	sum := int64(0)
	for worker, n := range admitted {
		sum += n
		if o := one(t, s, epoch, own(worker)); o.Used != n {
			t.Errorf("worker %d: %d in use, %d were admitted", worker, o.Used, n)
		}
	}
	if sum != limited {
		t.Errorf("%d admitted, the limit is %d", sum, limited)
	}
}

// together runs f in many goroutines that start at the same time.
func together(t *testing.T, f func(worker int) error) {
	t.Helper()
	var all sync.WaitGroup
	begin := make(chan struct{})
	for worker := range workers {
		all.Go(func() {
			<-begin
			if err := f(worker); err != nil {
				t.Errorf("worker %d: %v", worker, err)
			}
		})
	}
	close(begin)
	all.Wait()
}
