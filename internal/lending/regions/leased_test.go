package regions_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

func leased(n int, more string) string {
	return fmt.Sprintf("domain: d\ndescriptors:\n  - {key: k, overridable: true, rate_limit: {unit: minute, requests_per_unit: %d, lease: true, regions: {home: eu}%s}}\n", n, more)
}

// Clients wait for 20 ms, as Envoy does, and the home is 80 ms away. A replica with permits answers its requests. Once
// the limit is used up, one request per replica and window may go unanswered. The regions get about the same number of
// hits.
func TestExhaustedLimitsWithLeases(t *testing.T) {
	racetest.Sequential(t)
	for _, rule := range [][2]string{
		{"fixed window", leased(600, "")}, {"sliding window", leased(600, ", algorithm: sliding_window")},
		{"with a trial limit", "domain: d\ndescriptors:\n  - key: k\n    rate_limits:\n" +
			"      - {name: a, unit: minute, requests_per_unit: 600, lease: true, regions: {home: eu}}\n" +
			"      - {name: trial, shadow: true, unit: hour, requests_per_unit: 6000, lease: true, regions: {home: eu}}\n"},
	} {
		for _, c := range []struct {
			hits   int64
			demand float64
		}{{1, 0.8}, {1, 1.5}, {1, 10}, {7, 1.5}} {
			got := (&exhausted{rule: rule[1], hits: c.hits, demand: c.demand, patience: 20 * time.Millisecond}).run(t)
			all := got.hits["eu"] + got.hits["us"] + got.hits["ap"]
			part := func(name string) string { return fmt.Sprintf("%.0f %%", 100*got.hits[name]/all) }
			t.Logf("| %s | %d | %g | %.2f %% | %s | %s | %s | %.0f %% |", rule[0], c.hits, c.demand, 100*got.unanswered/got.asked, part("eu"), part("us"), part("ap"), 100*all/1200)
			const windows, replicas = 2, 4
			if got.unanswered > 0.01*got.asked+windows*replicas || all > 1200 || all < 0.9*min(c.demand, 1)*1200 {
				t.Errorf("%s, %d hits, demand of %g limits: %+v", rule[0], c.hits, c.demand, got)
			}
			if far := got.hits["us"] + got.hits["ap"]; far < 0.4*all {
				t.Errorf("%s, %d hits, demand of %g limits: %v", rule[0], c.hits, c.demand, got.hits)
			}
		}
	}
}

// The home is cut off, answers are lost, clients give up, and replicas hold permits of the previous window. No minute
// has more hits than the limit.
func TestLeasesAcrossRegionsNeverAdmitMore(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			const limit = 120
			w := newWorld(t, leased(limit, ""), "ap eu us", 2)
			random := rand.New(rand.NewPCG(seed, 1))
			var mu sync.Mutex
			passed := make(map[time.Time]int64)
			var asked sync.WaitGroup
			for began := time.Now(); time.Since(began) < 4*time.Minute; pass(time.Duration(random.ExpFloat64() * float64(100*time.Millisecond))) {
				switch random.IntN(60) {
				case 0:
					w.setCut("eu", true)
				case 1, 2:
					w.setCut("eu", false)
				case 3:
					w.setLost(true)
				case 4, 5:
					w.setLost(false)
				}
				r, hits := w.of[w.names[random.IntN(3)]][random.IntN(2)], 1+random.Int64N(4)
				asked.Go(func() {
					d, err := r.within(20*time.Millisecond, hits, "k=a")
					mu.Lock()
					defer mu.Unlock()
					if now := time.Now(); err == nil && d.Code == limiter.OK && now.Sub(now.Truncate(time.Minute)) >= 20*time.Millisecond {
						passed[now.Truncate(time.Minute)] += hits
					}
				})
			}
			asked.Wait()
			total := int64(0)
			for minute, n := range passed {
				if total += n; n > limit {
					t.Errorf("seed %d: %d hits in the minute %s, of %d", seed, n, minute, limit)
				}
			}
			if total < limit {
				t.Errorf("seed %d: only %d hits in four minutes", seed, total)
			}
		})
	}
}

// warm lets a replica far from the home acquire permits, and returns how many hits it has requested.
func (r *replica) warm() (hits int64) {
	for range 20 {
		if _, err := r.ask(1, "k=a"); err != nil {
			r.w.t.Fatal(err)
		}
		hits++
		pass(100 * time.Millisecond)
	}
	return hits
}

// quick asks and reports whether the answer came without a trip.
func (r *replica) quick() (limiter.Code, bool) {
	began := time.Now()
	d, err := r.ask(1, "k=a")
	if err != nil {
		r.w.t.Fatal(err)
	}
	return d.Code, time.Since(began) == 0
}

// A block at the home affects permits within a second and a trip, and so does its end. Answers from permits have the
// home's numbers.
func TestChangesAtHomeVoidPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, leased(6000, ""), "eu us", 1)
		nextMinute()
		us := w.in("us")
		us.warm()
		if code, quick := us.quick(); code != limiter.OK || !quick {
			t.Fatalf("%s, without a trip: %v", code, quick)
		}
		// the first one, and the one that asked for permits
		if st := us.store.Status(); st.Waited != 2 || st.Leased != 20 || st.Unanswered != 0 {
			t.Errorf("%+v", st)
		}
		w.in("eu").override("d.k", override.Numbers{Kind: override.Blocked}, "k=a")
		pass(1200 * time.Millisecond)
		if code, _ := us.quick(); code != limiter.OverLimit {
			t.Fatalf("%s after a block", code)
		}
		w.in("eu").override("d.k", override.Numbers{Kind: override.Replace, Requests: 9000}, "k=a")
		pass(1200 * time.Millisecond)
		us.warm()
		d, err := us.ask(1, "k=a")
		if err != nil || d.Statuses[0].Remaining < 8000 {
			t.Errorf("%+v, %v: want the numbers of the home's override", d.Statuses, err)
		}
	})
}

// The home's limit is lower than in this region's rule, and was used up. In the next window, requests without permits
// wait for the home: they are not denied as if the limit was still used up.
func TestPermitsOfALowerNumberThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, leased(6000, ""), "eu us", 1)
		w.in("eu").load(leased(100, ""))
		nextMinute()
		us := w.in("us")
		for range 130 {
			if _, err := us.ask(1, "k=a"); err != nil {
				t.Fatal(err)
			}
			pass(100 * time.Millisecond)
		}
		nextMinute()
		pass(time.Second)
		for i := range 40 {
			if d, err := us.ask(1, "k=a"); err != nil || d.Code != limiter.OK {
				t.Fatalf("request %d: %s, %v", i, d.Code, err)
			}
		}
	})
}

// A replica returns its permits when it stops, and when it has been idle for long.
func TestPermitsGoHome(t *testing.T) {
	for _, stops := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			rule := "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: hour, requests_per_unit: 6000, lease: true, regions: {home: eu}}}\n"
			w := newWorld(t, rule, "eu us", 1)
			pass(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			us := w.in("us")
			hits := us.warm()
			held := func() uint64 {
				d, err := w.in("eu").ask(0, "k=a")
				if err != nil {
					t.Fatal(err)
				}
				return 6000 - d.Statuses[0].Remaining
			}
			if held() <= uint64(hits) {
				t.Fatal("no permits are held")
			}
			if stops {
				us.stop()
			} else {
				pass(11 * time.Minute)
			}
			if n := held(); n != uint64(hits) {
				t.Errorf("the home counts %d hits, and %d were asked for; stopped: %v", n, hits, stops)
			}
		})
	}
}

// The home counts by another algorithm, or nothing at present: permits are worthless, and a request makes one trip.
func TestNoPermitsOfOtherLimits(t *testing.T) {
	for name, there := range map[string]string{
		"another algorithm": "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: minute, requests_per_unit: 600, algorithm: token_bucket, regions: {home: eu}}}\n",
		"unlimited":         "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unlimited: true}}\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, leased(600, ""), "eu us", 1)
			w.in("eu").load(there)
			nextMinute()
			us := w.in("us")
			for i := range 40 {
				began := time.Now()
				_, err := us.ask(1, "k=a")
				if took := time.Since(began); took > 2*w.trip || took == 0 && i > 0 && err == nil {
					t.Fatalf("%s: request %d took %s, %v", name, i, took, err)
				}
				pass(100 * time.Millisecond)
			}
		})
	}
}
