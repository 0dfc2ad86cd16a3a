package limiter_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// twoPlans have one counter for each k: 10 a minute, and 30.
func twoPlans(ofFree ...func(*descriptor.Rule)) (plans []descriptor.NodeSpec) {
	for i, change := range [][]func(*descriptor.Rule){ofFree, nil} {
		plans = append(plans, descriptor.NodeSpec{
			Key: "plan", Value: []string{"free", "pro"}[i], Condition: true, Children: []descriptor.NodeSpec{perMinute("k", "", uint64(10+20*i), change...)},
		})
	}
	return plans
}

// bothPlans is a request with a hit under each of the plans, in both orders.
func bothPlans() []*limiter.Request {
	free, pro := limiter.Descriptor{Entries: entries("plan=free", "k=a")}, limiter.Descriptor{Entries: entries("plan=pro", "k=a")}
	return []*limiter.Request{
		{Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{free, pro}}, {Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{pro, free}},
	}
}

// Descriptors of one counter are counted together under the share of the smallest of their limits, in whichever order
// they come.
func TestShareOfTheSmallestLimit(t *testing.T) {
	s := limiter.Settings{Admission: descriptor.AllOrNothing, OnError: descriptor.OnErrorLocal}
	for i, req := range bothPlans() {
		f := newFallback(t, all, s, descriptor.DomainSpec{Children: twoPlans()})
		f.SetReplicas(2)
		passed := 0
		for f.decide(req).Code == limiter.OK {
			passed++
		}
		if passed != 2 {
			t.Errorf("order %d: %d requests of two hits passed of a share of 5", i, passed)
		}
	}
}

// If one of the descriptors counts denied hits, their counter counts them, in whichever order they come.
func TestDeniedHitsOfOneCounter(t *testing.T) {
	for i, req := range bothPlans() {
		f := newFixture(t, limiter.Settings{Admission: descriptor.AllOrNothing}, twoPlans(func(r *descriptor.Rule) { r.Limits[0].CountDenied = descriptor.DeniedCount })...)
		for range 7 {
			f.decide(req)
		}
		if used := f.peek("plan=pro", "k=a").List[0].Used; used != 14 {
			t.Errorf("order %d: %d used, want 14", i, used)
		}
	}
}

// A class has room for its request in a share, as in the whole limit, although hits are kept for other classes.
func TestShareHasRoomForTheClass(t *testing.T) {
	f := newFallback(t, all, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{shared(100)}})
	f.SetReplicas(10)
	f.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for kind, most := range map[string]int64{"critical": 70, "paid": 80, "batch": 50} {
		if s := f.ask(most+1, "kind="+kind); s.Code != limiter.OverLimit {
			t.Errorf("%s: %d of 100 passed", kind, most+1)
		}
	}
	f.want(f.ask(80, "kind=paid"), limiter.OK, 0)
}

// Requests carry limits of different numbers for one counter. Each has an event.
func TestEventsOfRequestsLimits(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("other", "", 1))
	for _, most := range []uint32{1, 1, 3} {
		for range 3 {
			d := limiter.Descriptor{Entries: entries("k=a"), HasLimit: true, Limit: limiter.RequestLimit{Requests: most, Unit: int32(descriptor.Minute)}}
			w.decide(&limiter.Request{Domain: "d", Hits: 1, Descriptors: []limiter.Descriptor{d}})
		}
	}
	w.wantEvents("limits of 1 and 3", "denial request_limit k=a 2/1", "denial request_limit k=a 7/3")
}

// Hits that are reserved under a request's own limit are returned in all replicas, even if they have denied requests
// without a reservation.
func TestRequestsLimitAfterAReservation(t *testing.T) {
	store := memory.New(memory.Options{})
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 100, reservable)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var replicas [2]*limiter.Limiter
	var caches [2]*overlimit.Cache
	for i := range replicas {
		caches[i] = overlimit.New(overlimit.Options{Store: store, Refunded: func(key []byte) { caches[1-i].Forget(key) }})
		replicas[i] = limiter.New(limiter.Options{Store: caches[i]})
		replicas[i].Swap(tree, limiter.Settings{Admission: descriptor.AllOrNothing})
	}
	ask := func(replica int, hits uint64, want limiter.Code, pairs ...string) {
		t.Helper()
		d := limiter.Descriptor{
			Entries: entries(pairs...), HasHits: true, Hits: hits,
			HasLimit: true, Limit: limiter.RequestLimit{Requests: 10, Unit: int32(descriptor.Minute)},
		}
		var got limiter.Decision
		request := limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}
		if err := replicas[replica].Decide(t.Context(), noon, &request, &got); err != nil || got.Code != want {
			t.Errorf("replica %d, %d hits of %v: %s %v, want %s", replica, hits, pairs, got.Code, err, want)
		}
	}
	ask(0, 10, limiter.OK, "k=a", "reserve_id=x")
	ask(1, 1, limiter.OverLimit, "k=a")
	ask(0, 1, limiter.OK, "k=a", "commit_id=x")
	ask(1, 1, limiter.OK, "k=a")
}

// All quota buckets that share a counter have one Key, independent of their other counters and of active times.
func TestKeyOfAQuotaBucket(t *testing.T) {
	plans := twoPlans()
	hour := fixedLimit("hour", 100, hourly)
	r := plans[1].Children[0].Rule
	r.Limits = slices.Insert(r.Limits, 0, hour)
	r.Limits[1].Name = "minute"
	plans = append(plans, perMinute("alone", "", 1))
	f := newFixture(t, limiter.Settings{}, plans...)
	keys := make(map[string]string)
	for _, id := range [][]string{{"plan=free", "k=a"}, {"plan=pro", "k=a"}, {"plan=free", "k=b"}, {"alone=a"}} {
		q, err := f.QuotaBucket(t.Context(), noon, "d", entries(id...))
		if err != nil {
			t.Fatal(err)
		}
		keys[id[0]+id[len(id)-1]] = q.Key
	}
	if keys["plan=freek=a"] != keys["plan=prok=a"] || keys["plan=freek=a"] == keys["plan=freek=b"] || keys["alone=aalone=a"] != f.peek("alone=a").List[0].Key {
		t.Errorf("%v", keys)
	}
}

// Buckets of all classes share the remaining hits, because clients cannot see guarantees.
func TestQuotaBucketsOfClasses(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, shared(100))
	f.ask(5, "kind=critical")
	for _, kind := range []string{"critical", "batch"} {
		q, err := f.QuotaBucket(t.Context(), f.now, "d", entries("kind="+kind))
		if err != nil || q.Enforced[0].Remaining != 95 {
			t.Errorf("%s: %d of 95 left: %v", kind, q.Enforced[0].Remaining, err)
		}
	}
}

// Limits of other names and classes that use one counter have an event each, even if their numbers are the same.
func TestEventsOfNamesAndClasses(t *testing.T) {
	plans := twoPlans(func(r *descriptor.Rule) { r.Name, r.Limits[0].Requests = "free", 30 })
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, plans...)
	w.ask(31, "plan=free", "k=a")
	w.ask(1, "plan=pro", "k=a")
	w.wantEvents("two names", "denial d.plan_free.k free plan=free k=a 31/30", "denial d.plan_pro.k plan=pro k=a 32/30")

	w = newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, shared(100))
	for _, kind := range []string{"critical", "batch", "batch"} {
		w.ask(100, "kind="+kind)
	}
	if all := w.sent(); len(all) != 2 {
		t.Errorf("two classes: events %q", all)
	}
}
