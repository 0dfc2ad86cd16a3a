package region_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// A limit that is lowered at the home reaches every region within about a second, although an account asks less often than that while it hears that
// the home's rules have not changed: also while the processes of the home have different rules, and next to processes of a version that does not
// know this. A message that is lost costs as long as an account waits for an answer.
func TestLoweredLimitsReachAllRegions(t *testing.T) {
	seeds := uint64(5)
	if os.Getenv("RATELIMITD_SOAK") != "" {
		seeds = 200
	}
	for _, c := range []struct {
		name string
		old  int
		lost float64
		most int64
	}{
		{"all know the rules", 0, 0, 1500 * ms},
		{"none knows them", 1, 0, 1500 * ms},
		{"every second one does", 2, 0, 1500 * ms},
		{"messages are lost", 0, 0.02, 4 * sec},
	} {
		worst, questions := int64(0), 0
		for seed := range seeds {
			s, steps := rollouts(seed)
			s.old = c.old
			s.weaken = func(w *world) { w.net.Lost = c.lost }
			w := s.run(steps, nil)
			if len(w.seen.problems) > 0 {
				t.Fatalf("%s, seed %d: %s", c.name, seed, w.seen.problems[0])
			}
			if w.seen.settled < 10 {
				t.Errorf("%s, seed %d: only %d changes", c.name, seed, w.seen.settled)
			}
			questions += w.questions
			worst = max(worst, w.seen.lag-2*s.rtt)
		}
		t.Logf("%-22s %4d ms and two trips, %d questions", c.name, worst/ms, questions)
		if worst > c.most {
			t.Errorf("%s: a request was admitted under the old limit for %d ms and two trips", c.name, worst/ms)
		}
	}
}

// While the rules do not change, most questions about counters in use are not asked.
func TestQuestionsOfKnownRules(t *testing.T) {
	var questions [2]int
	for old := range questions {
		s, _ := rollouts(1)
		s.regions, s.counters, s.old, s.length = 2, nil, old, 40*sec
		var steps []step
		r := rand.New(rand.NewPCG(5, 6))
		for c := range 30 {
			s.counters = append(s.counters, counted{name: fmt.Sprint(c), limit: compiled(kinds[0].limit(20_000, 60)), mode: "escrow"})
			steps = append(steps, traffic(r, &s, 1, c, func(int64) float64 { return 5 }, func() int64 { return 1 })...)
		}
		slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
		questions[old] = s.run(steps, nil).questions
	}
	t.Logf("%d questions, %d of processes that do not know the rules of an answer", questions[0], questions[1])
	if questions[0] > questions[1]/2 {
		t.Errorf("%d questions, %d of processes that do not know the rules of an answer", questions[0], questions[1])
	}
}

// rollouts draws a system whose limits change every ten seconds.
func rollouts(seed uint64) (setup, []step) {
	r := rand.New(rand.NewPCG(seed, 4))
	s := setup{seed: seed, regions: 2 + r.IntN(2), replicas: 2, rtt: []int64{20, 80, 200}[r.IntN(3)] * ms, deadline: 500 * ms, length: 2*60*sec + 10*sec}
	var steps []step
	for c := range 4 {
		k := kinds[r.IntN(3)]
		s.counters = append(s.counters, counted{name: fmt.Sprint(c, " ", k.name), limit: compiled(k.limit(20_000, 60)), mode: "escrow"})
		for reg := range s.regions {
			steps = append(steps, traffic(r, &s, reg, c, func(int64) float64 { return 8 }, func() int64 { return 1 })...)
		}
	}
	for at := 10 * sec; at < s.length-10*sec; at += 10 * sec {
		steps = append(steps, step{at: at, what: "rules", counter: r.IntN(4), n: 10_000 + r.Int64N(10_000)})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return s, steps
}
