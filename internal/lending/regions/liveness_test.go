package regions_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// exhausted runs requests in three regions with two replicas each against a rule of 600 a minute with the home eu. All
// regions send the same load.
type exhausted struct {
	rule     string
	hits     int64         // hits of each request
	demand   float64       // load of all regions, as a multiple of the limit
	patience time.Duration // how long a client waits for an answer
}

// result counts the answers in the two minutes after the limit was used up for the first time.
type result struct {
	denied, unanswered, asked float64            // requests outside the home
	hits                      map[string]float64 // admitted hits by region
}

func (e *exhausted) run(t *testing.T) *result {
	const minutes = 3
	got := &result{hits: make(map[string]float64)}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, e.rule, "ap eu us", 2)
		nextMinute()
		random := rand.New(rand.NewPCG(1, 2))
		perSecond := e.demand * 600 / float64(e.hits) / 60
		var mu sync.Mutex
		var asked sync.WaitGroup
		for began := time.Now(); time.Since(began) < minutes*time.Minute; pass(time.Duration(random.ExpFloat64() / perSecond * float64(time.Second))) {
			name := w.names[random.IntN(3)]
			r, counts := w.of[name][random.IntN(2)], time.Since(began) > time.Minute
			asked.Go(func() {
				d, err := r.within(e.patience, e.hits, "k=a")
				mu.Lock()
				defer mu.Unlock()
				if !counts {
					return
				}
				if err == nil && d.Code == limiter.OK {
					got.hits[name] += float64(e.hits)
				}
				if name == "eu" {
					return
				}
				if got.asked++; err != nil {
					got.unanswered++
				} else if d.Code != limiter.OK {
					got.denied++
				}
			})
		}
		asked.Wait()
	})
	return got
}

// exhaustedRules are the rules under test, by name. Their windows are all long compared with a trip.
func exhaustedRules() [][2]string {
	one := func(more string) string {
		return "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: minute, requests_per_unit: 600, regions: {home: eu}" + more + "}}\n"
	}
	return [][2]string{
		{"fixed window", one("")}, {"sliding window", one(", algorithm: sliding_window")}, {"sliding log", one(", algorithm: sliding_log")},
		{"token bucket", one(", algorithm: token_bucket")},
		{"with a trial limit", "domain: d\ndescriptors:\n  - key: k\n    rate_limits:\n      - {name: a, unit: minute, requests_per_unit: 600, regions: {home: eu}}\n" +
			"      - {name: trial, shadow: true, unit: hour, requests_per_unit: 600, regions: {home: eu}}\n"},
	}
}

// Clients wait for 20 ms, as Envoy does, and the home is 80 ms away. Requests have no answer only while hits may
// remain, so there are about as many of those as hits that may pass. All others are denied immediately, even where hits
// become free one at a time.
func TestExhaustedLimitsFarFromHome(t *testing.T) {
	racetest.Sequential(t)
	for _, rule := range exhaustedRules() {
		for _, c := range []struct {
			hits   int64
			demand float64
		}{{1, 1.5}, {1, 10}, {1, 100}, {7, 10}} {
			got := (&exhausted{rule: rule[1], hits: c.hits, demand: c.demand, patience: 20 * time.Millisecond}).run(t)
			none, may := 100*got.unanswered/got.asked, 100/c.demand
			t.Logf("| %s | %d | %g | %.1f %% | %.1f %% |", rule[0], c.hits, c.demand, none, may)
			if none > 1.25*may+1 || got.denied+got.unanswered < got.asked {
				t.Errorf("%s, %d hits, demand of %g limits: %.1f %% have no answer, and %.1f %% may pass; %+v", rule[0], c.hits, c.demand, none, may, got)
			}
		}
	}
}

// Clients wait for the home. The limit is fully used. The other regions get as much as the home if many hits become
// free at the same time, and less if requests at the home take each hit as soon as it is free.
func TestPartsOfRegions(t *testing.T) {
	racetest.Sequential(t)
	for _, rule := range exhaustedRules() {
		for _, demand := range []float64{1.5, 10} {
			got := (&exhausted{rule: rule[1], hits: 1, demand: demand, patience: time.Second}).run(t)
			all := got.hits["eu"] + got.hits["us"] + got.hits["ap"]
			part := func(name string) string { return fmt.Sprintf("%.0f %%", 100*got.hits[name]/all) }
			t.Logf("| %s | %g | %s | %s | %s | %.0f %% |", rule[0], demand, part("eu"), part("us"), part("ap"), 100*all/1200)
			if all < 0.9*1200 || got.unanswered > 0 {
				t.Errorf("%s, demand of %g limits: %+v of 1200", rule[0], demand, got)
			}
			if far := got.hits["us"] + got.hits["ap"]; rule[0] == "fixed window" && far < 0.6*all || far == 0 {
				t.Errorf("%s, demand of %g limits: %v", rule[0], demand, got.hits)
			}
		}
	}
}
