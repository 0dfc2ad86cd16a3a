package limiter_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// perUser is a node for an app, with one for its number of users: requests is the limit per minute and user.
func perUser(requests, most uint64, change ...func(*descriptor.Rule)) descriptor.NodeSpec {
	users := perMinute("users", "", requests, append(change, func(r *descriptor.Rule) {
		r.SetScales(&descriptor.Scales{Of: []*descriptor.Scale{{Key: "users", Level: 1, Max: most}}})
	})...)
	users.Condition = true
	return descriptor.NodeSpec{Key: "app", Children: []descriptor.NodeSpec{users}}
}

func TestScale(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perUser(20, 10))
	s := f.ask(1, "app=a", "users=3")
	f.want(s, limiter.OK, 59)
	if s.Limit.Requests != 60 {
		t.Errorf("the limit shown is %d, want 60", s.Limit.Requests)
	}
	f.want(f.ask(1, "app=a", "users=4"), limiter.OK, 78) // another number has the same counter
	f.want(f.ask(-1, "app=a", "users=4"), limiter.OK, 79)
	f.want(f.ask(25, "app=a", "users=1"), limiter.OverLimit, 0)
	for value, left := range map[string]uint64{"10": 200, "11": 200, "99999999999999999999999": 200, "0": 20, "-3": 20, "many": 20, "": 20} {
		f.want(f.ask(0, "app=b", "users="+value), limiter.OK, left)
	}
	c, err := f.Peek(t.Context(), f.now, "d", &limiter.Descriptor{Entries: entries("app=b", "users=5")})
	if err != nil || c.List[0].Remaining != 100 || c.List[0].Words() != `100 per minute, fixed window, by the number of "users", which counts up to 10` {
		t.Errorf("%+v, error %v", c, err)
	}
}

// A limit with a scale gives the same answers as a limit that has the product as its number.
func TestScaleIsAFactorOfTheLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		algorithm := rapid.SampledFrom([]descriptor.Algorithm{descriptor.FixedWindow, descriptor.SlidingWindow, descriptor.SlidingLog, descriptor.TokenBucket, descriptor.LeakyBucket}).Draw(rt, "algorithm")
		requests, burst := rapid.Uint64Range(1, 20).Draw(rt, "requests"), rapid.Uint64Range(1, 20).Draw(rt, "burst")
		n := rapid.Uint64Range(1, 30).Draw(rt, "n")
		settings := limiter.Settings{
			Headers: descriptor.HeadersIETF, Metadata: true, Explain: true,
			Admission: rapid.SampledFrom([]descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing}).Draw(rt, "admission"),
		}
		of := func(factor uint64) func(*descriptor.Rule) {
			return func(r *descriptor.Rule) {
				r.Limits[0].Algorithm, r.Limits[0].Requests = algorithm, requests*factor
				if r.Limits[0].Has(descriptor.SettingBurst) {
					r.Limits[0].Burst = burst * factor
				}
				if algorithm != descriptor.LeakyBucket {
					reservable(r)
				}
			}
		}
		const most = 25
		plain := perUser(0, 1, of(min(n, most)))
		plain.Children[0].Rule.SetScales(nil)
		with := newFixtureOn(t, memory.New(memory.Options{}), settings, perUser(0, most, of(1)))
		without := newFixtureOn(t, memory.New(memory.Options{}), settings, plain)
		users := "users=" + strconv.FormatUint(n, 10)
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			req := limiter.Request{Domain: "d"}
			if algorithm != descriptor.LeakyBucket && rapid.IntRange(0, 3).Draw(rt, "reservation") == 0 {
				h := limiter.Reservation{Op: rapid.SampledFrom([]limiter.ReservationOp{limiter.Reserve, limiter.Commit}).Draw(rt, "step"), Final: true}
				h.ID[0] = rapid.ByteRange(0, 3).Draw(rt, "id")
				req.Reservation = &h
			}
			for range rapid.IntRange(1, 2).Draw(rt, "descriptors") {
				req.Descriptors = append(req.Descriptors, limiter.Descriptor{
					Entries: entries("app="+rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "app"), users), HasHits: true,
					Hits: rapid.Uint64Range(0, 3*n*requests).Draw(rt, "hits"), Refund: req.Reservation == nil && rapid.IntRange(0, 4).Draw(rt, "refund") == 0,
				})
			}
			var a, b limiter.Decision
			errs := [2]error{with.Decide(t.Context(), with.now, &req, &a), without.Decide(t.Context(), without.now, &req, &b)}
			if errs[0] != nil || errs[1] != nil {
				rt.Fatal(errs)
			}
			for i := range a.Statuses { // the rules differ
				a.Statuses[i].Rule, b.Statuses[i].Rule = nil, nil
			}
			if diff := cmp.Diff(b, a); diff != "" {
				rt.Fatalf("%+v\n(-without +with a scale):\n%s", req, diff)
			}
			pause := time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(rt, "pause"))
			with.now, without.now = with.now.Add(pause), without.now.Add(pause)
		}
	})
}

// Numbers that are not used as they are count in a metric.
func TestScaleCorrections(t *testing.T) {
	m := newMeasured(t, 100, perUser(20, 10))
	for _, users := range []string{"5", "many", "0", "11", "10"} {
		m.ask("d", 1, "app=a", "users="+users)
	}
	m.want(2, "ratelimitd_scale_corrections_total", "reason=no_number")
	m.want(1, "ratelimitd_scale_corrections_total", "reason=above_max")
}

// Under `request_override: min`, the limit that a request carries counts together with the product.
func TestScaleBesideTheLimitOfARequest(t *testing.T) {
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{RequestOverride: descriptor.RequestMin}, Children: []descriptor.NodeSpec{perUser(20, 10)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, limiter.Settings{})
	f.Swap(tree, limiter.Settings{})
	for users, want := range map[string]uint64{"2": 40, "3": 50} {
		d := limiter.Descriptor{Entries: entries("app=a", "users="+users), HasLimit: true, Limit: limiter.RequestLimit{Requests: 50, Unit: int32(descriptor.Minute)}}
		if got := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}).Statuses[0].Limit.Requests; got != want {
			t.Errorf("%s users: a limit of %d, want %d", users, got, want)
		}
	}
}

// Without its store, a replica has its share of the product.
func TestShareOfAScaledLimit(t *testing.T) {
	down := func(*backend.Take) bool { return true }
	f := newFallback(t, down, limiter.Settings{OnError: descriptor.OnErrorLocal}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{perUser(20, 10)}})
	f.SetReplicas(4)
	f.want(f.ask(1, "app=a", "users=10"), limiter.OK, 49)
}

// A scale takes no memory for a decision.
func TestScaleDoesNotAllocate(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perUser(1<<20, 1<<10))
	req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries("app=a", "users=57")}, {Entries: entries("app=b", "users=many")}}}
	d := &limiter.Decision{}
	if n := testing.AllocsPerRun(100, func() {
		if err := f.Decide(t.Context(), f.now, req, d); err != nil {
			t.Fatal(err)
		}
	}); n > 0 && !racetest.On {
		t.Errorf("%v allocations for a decision, want none", n)
	}
}
