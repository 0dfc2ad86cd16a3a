package matrix

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/envoymodel"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

// inLibrary compares package ratelimit with a Limiter, for the operations that the package offers: hits and looks.
func inLibrary(t *testing.T, f *feature) (why string) {
	t.Helper()
	if f.ask != nil {
		return "package ratelimit takes no limit from a request"
	}
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.Open(t.Context(), ratelimit.Options{Files: fstest.MapFS{"rules.yaml": {Data: []byte(f.file(&plain))}}, Strict: true})
		if err != nil {
			_, why, _ = strings.Cut(err.Error(), ": ")
			return
		}
		defer func() { _ = l.Close() }()
		reference, _ := newSystem(t, f, &plain, "")
		for round := range rounds {
			for _, n := range amounts {
				for _, caller := range f.callers {
					if n < 0 {
						continue
					}
					req := &limits.Request{Domain: "d", Descriptors: []limits.Descriptor{{}}, Amount: limits.Amount{Hits: uint64(n), Peek: n == 0}}
					for _, e := range entriesOf(caller) {
						req.Descriptors[0].Entries = append(req.Descriptors[0].Entries, limits.Entry{Key: e.Key, Value: e.Value})
					}
					got, err := l.Decide(t.Context(), req)
					if _, ok := errors.AsType[*limits.ConcurrencyError](err); ok {
						why = "`Decide` takes no place that nobody gives back: call `Acquire` or `Reserve`"
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					want, _ := reference.decide(time.Now(), &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{f.descriptor(caller, n)}})
					if allowed := want.Code == limiter.OK; n != 0 && got.Allowed != allowed || got.Statuses[0].Remaining != want.Statuses[0].Remaining || got.Delay != want.Delay {
						t.Fatalf("round %d, %s %d: %+v, want %s", round, caller, n, got, textOf(&want))
					}
				}
			}
			time.Sleep(between) //nolint:forbidigo // virtual time
		}
	})
	return why
}

// asQuotaBuckets starts an Envoy for each customer. All of them ask for more than the limits allow. For each counter it
// compares the requests that pass with the promise in docs/do/quota.md.
func asQuotaBuckets(t *testing.T, f *feature) string {
	t.Helper()
	var order []string
	for _, e := range entriesOf(f.callers[0]) {
		order = append(order, strconv.Quote(e.Key))
	}
	tree, why := treeOf(f, &way{top: "quota_buckets: {order: [" + strings.Join(order, ", ") + "]}"})
	if tree == nil {
		return why
	}
	synctest.Test(t, func(t *testing.T) { quotaBuckets(t, f, tree) })
	return ""
}

const lasts, tick = 30 * time.Second, 100 * time.Millisecond

// envoy is one client with one bucket.
type envoy struct {
	envoymodel.Client
	id       []descriptor.Entry
	stream   *assigner.Stream
	told     chan assigner.Action
	cost     float64
	counters []string
	reported time.Time
}

func quotaBuckets(t *testing.T, f *feature, tree *descriptor.Tree) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(tree, limiter.Settings{})
	a := assigner.New(assigner.Options{Limiter: l})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()

	most := make(map[string]float64) // hits that may pass, by counter: the smallest limit counts
	passable := false
	var envoys []*envoy
	for _, caller := range f.callers {
		e := &envoy{Client: envoymodel.Client{Demand: 20}, id: entriesOf(caller), stream: a.Open("envoy"), told: make(chan assigner.Action, 1000)}
		q, err := l.QuotaBucket(ctx, time.Now(), "d", e.id)
		if err != nil {
			t.Fatal(err)
		}
		e.cost = float64(max(q.HitCost, 1))
		passable = passable || len(q.Enforced) == 0 && !q.Blocked
		for _, k := range q.Enforced {
			if k.Limit.Algorithm == descriptor.Concurrency {
				continue // it has no rate, so the client decides by its own configuration
			}
			capacity, rate := float64(k.Limit.Capacity()), float64(k.Limit.Requests)/k.Limit.Window.Length().Seconds()
			bound := capacity + rate*lasts.Seconds()
			if k.Limit.Window.Length() >= 2*time.Minute {
				bound += capacity * 10 / 35 // requests that pass before reports are counted
			} else if k.Limit.Slides() {
				bound *= 2
			}
			if before, ok := most[k.Key]; !ok || bound < before {
				most[k.Key] = bound
			}
			e.counters = append(e.counters, k.Key)
			passable = passable || capacity >= e.cost
		}
		go func() {
			for {
				all, err := e.stream.Next(ctx, nil)
				if errors.Is(err, context.Canceled) {
					return
				}
				e.stream.Sent(time.Now())
				for _, x := range all {
					e.told <- x
				}
			}
		}()
		envoys = append(envoys, e)
	}
	for range int(lasts / tick) {
		time.Sleep(tick) //nolint:forbidigo // virtual time
		synctest.Wait()
		for _, e := range envoys {
			e.step(time.Now())
		}
	}
	hits, passed := make(map[string]float64), 0.0
	for _, e := range envoys {
		passed += e.Passed + e.Outside
		for _, key := range e.counters {
			hits[key] += e.Passed * e.cost
		}
		e.stream.Close(time.Now())
	}
	for key, n := range hits {
		if n > math.Ceil(most[key]) {
			t.Errorf("%.0f hits passed of the counter %s, at most %.1f may", n, key, most[key])
		}
	}
	if passable && passed == 0 {
		t.Error("nothing passed")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func (e *envoy) step(now time.Time) {
	for len(e.told) > 0 {
		if a := <-e.told; !a.Abandon {
			e.Receive(now, a.Assignment)
		}
	}
	e.Step(now, tick)
	if first := e.reported.IsZero(); first || now.Sub(e.reported) >= 5*time.Second {
		elapsed := now.Sub(e.reported).Truncate(time.Second)
		if first {
			elapsed = 0
		}
		allowed, denied := e.Report()
		e.reported = now
		e.stream.Report(now, "d", []assigner.Usage{{ID: e.id, Elapsed: elapsed, Allowed: allowed, Denied: denied}})
	}
}
