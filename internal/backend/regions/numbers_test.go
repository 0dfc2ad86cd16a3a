package regions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// services are two regions of one process each, whose limiters decide by the same rules, in virtual time.
type services struct {
	t  *testing.T
	of map[string]*service
}

type service struct {
	*limiter.Limiter
	*regions.Store
}

func newServices(t *testing.T, limit string) *services {
	t.Helper()
	return newServicesOn(t, limit, memory.NewRecords(0))
}

// newServicesOn returns services whose region a has these records.
func newServicesOn(t *testing.T, limit string, ofA backend.Records) *services {
	t.Helper()
	rules := "domain: d\ndescriptors: [{key: caller, " + limit + "}]\n"
	tree, errs := config.Compile([]config.File{{Name: "d.yaml", Data: []byte(rules)}}, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	w := &services{t: t, of: make(map[string]*service)}
	var all []*regions.Store
	names := []string{"a", "b"}
	for name, records := range map[string]backend.Records{"a": ofA, "b": memory.NewRecords(0)} {
		s, err := regions.New(regions.Options{
			Region: name, Regions: names, Epoch: 1, Peers: calls{w, name}, Logger: slog.New(slog.DiscardHandler), Store: memory.New(memory.Options{}), Records: records,
		})
		if err != nil {
			t.Fatal(err)
		}
		l := limiter.New(limiter.Options{Store: s, NoMetrics: true})
		l.Swap(tree, limiter.Settings{})
		s.SetResolver(l)
		s.SetRules(tree.Rules)
		w.of[name], all = &service{l, s}, append(all, s)
	}
	runAll(t, all)
	return w
}

// calls is how one region reaches the other.
type calls struct {
	w    *services
	from string
}

func (c calls) Exchange(ctx context.Context, to string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
	time.Sleep(trip)       //nolint:forbidigo // virtual time
	defer time.Sleep(trip) //nolint:forbidigo // virtual time
	return c.w.of[to].Answer(ctx, c.from, epoch, queries)
}

func (c calls) Consent(ctx context.Context, to string, e *region.Epoch) (bool, error) {
	return c.w.of[to].Consent(ctx, c.from, e)
}

// override gives a caller other numbers in all regions.
func (w *services) override(caller string, requests uint64) {
	set := (&override.Set{}).With(1, []override.Change{{
		Identity: override.Identity{Domain: "d", Rule: "d.caller", Entries: []descriptor.Entry{{Key: "caller", Value: caller}}},
		Numbers:  override.Numbers{Kind: override.Replace, Requests: requests},
	}})
	for _, s := range w.of {
		s.SetOverrides(set)
	}
}

func descriptorOf(caller string, more ...descriptor.Entry) limiter.Descriptor {
	return limiter.Descriptor{Entries: append([]descriptor.Entry{{Key: "caller", Value: caller}}, more...)}
}

// ask asks a region for hits, and returns how many it admits: all or none.
func (w *services) ask(name string, hits uint64, d limiter.Descriptor) uint64 {
	w.t.Helper()
	d.HasHits, d.Hits = true, hits
	var out limiter.Decision
	if err := w.of[name].Decide(w.t.Context(), time.Now(), &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}, &out); err != nil {
		w.t.Errorf("region %s: %v", name, err)
	}
	if out.Code != limiter.OK {
		return 0
	}
	return hits
}

// A bucket in escrow whose caller has an override is divided by the numbers of the override, also after the decisions that used them. The
// home and the other regions together admit what is in it and what flows in.
func TestBucketsWithOtherNumbers(t *testing.T) {
	for name, limit := range map[string]string{
		"token bucket": "algorithm: token_bucket",
		"leaky bucket": "algorithm: leaky_bucket, nodelay: all",
	} {
		for _, asked := range [][]string{{"a"}, {"b"}, {"a", "b"}} {
			t.Run(fmt.Sprint(name, " ", asked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const requests, seconds = 4000, 240
					w := newServices(t, "overridable: true, rate_limit: {unit: day, requests_per_unit: 1000, regions: {mode: escrow, home: a}, "+limit+"}")
					w.override("ann", requests)
					admitted := uint64(0)
					for i := range 10 * seconds {
						for _, in := range asked {
							if in == "a" && i/600%2 == 1 {
								continue // for a minute region a asks for nothing, and its part moves to region b
							}
							admitted += w.ask(in, 10, descriptorOf("ann"))
							w.ask(in, 1, descriptorOf("bob")) // a later decision, by other numbers
						}
						time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
					}
					most := uint64(requests + 1 + requests*seconds/86_400 + 1)
					if admitted > most || admitted < requests*9/10 {
						t.Errorf("%d hits passed in %v, of %d and what flows in", admitted, asked, requests)
					}
				})
			})
		}
	}
}

// What other regions have counted is known also of limits that have other numbers for the caller.
func TestTalliesWithOtherNumbers(t *testing.T) {
	for name, c := range map[string]struct {
		limit string
		d     limiter.Descriptor
	}{
		"override": {"overridable: true, rate_limit: {unit: day, requests_per_unit: 10, regions: {mode: eventual}}", descriptorOf("ann")},
		"scale": {
			"descriptors: [{key: users, condition: true, rate_limit: {unit: day, requests_per_unit: 10, scale: {by: users, max: 100}, regions: {mode: eventual}}}]",
			descriptorOf("ann", descriptor.Entry{Key: "users", Value: "10"}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newServices(t, c.limit)
				w.override("ann", 100)
				if w.ask("a", 60, c.d) == 0 {
					t.Fatal("60 hits of 100 were denied")
				}
				for _, name := range []string{"b", "a"} {
					w.ask(name, 0, c.d)         // asks
					time.Sleep(2 * time.Second) //nolint:forbidigo // virtual time
				}
				if w.ask("b", 41, c.d) > 0 {
					t.Error("41 hits passed after 60 of 100 in another region")
				}
				if w.ask("b", 40, c.d) == 0 {
					t.Error("40 hits were denied after 60 of 100 in another region")
				}
			})
		})
	}
}

// A peek at a counter before its first take changes nothing: later takes ask the other regions as usual. A peek without Origin shows what
// this region has counted, or is an error.
func TestLookBeforeTheFirstTake(t *testing.T) {
	for _, limit := range []string{
		"regions: {mode: escrow, home: a}",
		"algorithm: token_bucket, regions: {mode: escrow, home: a}",
		"regions: {mode: eventual}",
	} {
		t.Run(limit, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newServices(t, "rate_limit: {unit: day, requests_per_unit: 1000, "+limit+"}")
				d := descriptorOf("ann")
				c, err := w.of["a"].Limiter.Peek(t.Context(), time.Now(), "d", &d)
				if err != nil {
					t.Fatal(err)
				}
				l := &c.List[0].Limit
				r := &backend.Request{Takes: []backend.Take{{Key: []byte(c.List[0].Key), Limit: l}}, Outcomes: make([]backend.Outcome, 1)}
				if err := w.of["b"].Store.Peek(t.Context(), time.Now(), r); (err == nil) != (l.Regions.Mode == descriptor.Eventual) {
					t.Errorf("without an origin: %+v, %v", r.Outcomes[0], err)
				}
				if c, err := w.of["b"].Limiter.Peek(t.Context(), time.Now(), "d", &d); err != nil || c.List[0].Used != 0 {
					t.Fatalf("%+v, %v", c, err)
				}
				admitted := map[string]uint64{}
				for _, name := range slices.Repeat([]string{"a", "b"}, 100) {
					admitted[name] += w.ask(name, 10, d)
					time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
				}
				if sum := admitted["a"] + admitted["b"]; sum < 980 || sum > 1020 {
					t.Errorf("%v hits passed of 1000", admitted)
				}
			})
		})
	}
}

// panicking is records of which one kind of one counter cannot be used.
type panicking struct {
	backend.Records
	kind, key string
}

func (b panicking) Change(c *backend.RecordChange) {
	if c.Kind == b.kind && strings.Contains(string(c.Key), b.key) {
		panic("broken")
	}
	b.Records.Change(c)
}

// A panic while the home divides a bucket is one of the request that waits for it, and other buckets are as before.
func TestPanicOfADivision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newServicesOn(t, "rate_limit: {unit: day, requests_per_unit: 1000, algorithm: token_bucket, regions: {mode: escrow, home: a}}", panicking{memory.NewRecords(0), "home", "ann"})
		var err error
		func() {
			defer async.Recover(&err)
			w.ask("a", 1, descriptorOf("ann"))
		}()
		if p, ok := errors.AsType[*async.PanicError](err); !ok || p.Value != "broken" {
			t.Errorf("%v, want a panic", err)
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // virtual time
		if w.ask("a", 1, descriptorOf("bob")) == 0 {
			t.Error("another caller was denied")
		}
	})
}
