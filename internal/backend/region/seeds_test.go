package region_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/simkit"
)

// compiled returns a limit that is ready to be counted.
func compiled(l descriptor.Limit) descriptor.Limit {
	if err := l.Compile(); err != nil {
		panic(err)
	}
	return l
}

func seconds(n uint32) descriptor.Window {
	return descriptor.Window{Unit: descriptor.Second, Multiplier: n}
}

// kind is a way to limit.
type kind struct {
	name  string
	limit func(n uint64, window uint32) descriptor.Limit
}

// kinds are the limits of which permits are granted.
var kinds = []kind{
	{"fixed window", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: seconds(w)}
	}},
	{"calendar", func(n uint64, _ uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: descriptor.Window{Unit: descriptor.Day, Location: time.UTC}}
	}},
	{"first hit", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: seconds(w), FirstHit: true}
	}},
	{"sliding window", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: seconds(w), Algorithm: descriptor.SlidingWindow}
	}},
	{"sliding window of 4", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: seconds(w), Algorithm: descriptor.SlidingWindow, Precision: 4}
	}},
	{"sliding log", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: seconds(2 * w), Algorithm: descriptor.SlidingLog}
	}},
	{"interval", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Burst: n, Window: seconds(w), Algorithm: descriptor.TokenBucket, Interval: true}
	}},
	{"interval, first hit", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n / 2, Burst: n, Window: seconds(w / 2), Algorithm: descriptor.TokenBucket, Interval: true, FirstHit: true}
	}},
	{"interval, large burst", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n / 2, Burst: n, Window: seconds(w / 2), Algorithm: descriptor.TokenBucket, Interval: true}
	}},
}

// buckets are the limits that are divided.
var buckets = []kind{
	{"token bucket", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Window: seconds(w), Algorithm: descriptor.TokenBucket}
	}},
	{"token bucket, large burst", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Burst: 2 * n, Window: seconds(w), Algorithm: descriptor.TokenBucket}
	}},
	{"leaky bucket", func(n uint64, w uint32) descriptor.Limit {
		return descriptor.Limit{Requests: n, Burst: n, Window: seconds(w), Algorithm: descriptor.LeakyBucket, NoDelay: descriptor.NoDelayAll}
	}},
}

// traffic is requests of a region at random moments, at a rate that changes.
func traffic(r *rand.Rand, s *setup, reg, counter int, perSecond func(at int64) float64, hits func() int64) (steps []step) {
	for at := 2 * sec; at < s.length; {
		rate := perSecond(at)
		if rate <= 0 {
			at += sec
			continue
		}
		d := int64(r.ExpFloat64() / rate * float64(sec))
		if d > 5*sec {
			at += 5 * sec
			continue
		}
		at += d
		steps = append(steps, step{at: at, what: "request", region: reg, replica: r.IntN(s.replicas), counter: counter, n: hits()})
	}
	return steps
}

// draw makes a system and what happens in it from a seed.
func draw(seed uint64) (setup, []step) {
	r := rand.New(rand.NewPCG(seed, 2))
	s := setup{
		seed: seed, regions: 2 + r.IntN(4), replicas: 1 + r.IntN(3), rtt: []int64{20, 80, 200}[r.IntN(3)] * ms,
		deadline: []int64{20, 500}[r.IntN(2)] * ms, bad: r.IntN(3) > 0, length: 4 * minute, added: r.IntN(5) == 0,
	}
	for range 1 + r.IntN(2) {
		k := kinds[r.IntN(len(kinds))]
		n := uint64(leastFor(s.regions) + r.IntN(400))
		c := counted{name: k.name, limit: compiled(k.limit(n, []uint32{10, 30, 60}[r.IntN(3)])), mode: "escrow"}
		if r.IntN(6) == 0 {
			c.mode = "home"
		}
		if r.IntN(4) == 0 {
			k := buckets[r.IntN(len(buckets))]
			c = counted{name: k.name, limit: compiled(k.limit(n, []uint32{10, 60}[r.IntN(2)])), mode: []string{"share", "share", "home"}[r.IntN(3)]}
		}
		s.counters = append(s.counters, c)
	}
	var steps []step
	for c := range s.counters {
		l := &s.counters[c].limit
		seconds := l.Window.Length().Seconds()
		if l.Window.Location != nil {
			seconds = 120
		}
		fair := min(float64(l.Requests)/seconds/float64(s.regions), 30)
		large := r.IntN(8) == 0
		for reg := range s.regions {
			var factors []float64
			for range s.length/(20*sec) + 1 {
				factors = append(factors, []float64{0, 0.1, 0.5, 1, 2, 4}[r.IntN(6)])
			}
			steps = append(steps, traffic(r, &s, reg, c, func(at int64) float64 { return fair * factors[at/(20*sec)] }, func() int64 {
				if large && r.IntN(4) == 0 {
					return 1 + r.Int64N(10)
				}
				return 1
			})...)
		}
	}
	steps = append(steps, faults(r, &s)...)
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return s, steps
}

func leastFor(regions int) int { return 40 * regions }

// faults draws what goes wrong.
func faults(r *rand.Rand, s *setup) (steps []step) {
	what := []string{"cut", "cut", "alone", "pause", "kill", "flush", "failover", "clock", "drift", "move", "rules"}
	moved := false
	for range r.IntN(7) {
		f := step{at: 5*sec + r.Int64N(s.length-10*sec), what: what[r.IntN(len(what))], region: r.IntN(s.regions), replica: r.IntN(s.replicas)}
		switch f.what {
		case "cut":
			f.other, f.n = r.IntN(s.regions), r.Int64N(90*sec)
		case "alone":
			f.n = r.Int64N(90 * sec)
		case "pause":
			f.n = r.Int64N(60 * sec)
		case "kill":
			f.n = r.Int64N(30 * sec)
		case "failover":
			f.n = r.Int64N(5 * sec)
			if r.IntN(2) == 0 {
				f.other = r.IntN(4000) - 2000
			}
		case "clock":
			f.n = int64(math.Pow(10, 3+5*r.Float64())) * int64(1-2*r.IntN(2))
		case "drift":
			f.n = r.Int64N(2001) - 1000
		case "move":
			if moved {
				continue
			}
			moved = true
			f.other = 0
			if r.IntN(2) == 0 {
				f.other = 1
			}
		case "rules":
			f.counter, f.n = r.IntN(len(s.counters)), int64(leastFor(s.regions)+r.IntN(400))
		}
		steps = append(steps, f)
	}
	if !moved && r.IntN(4) == 0 { // the home is cut off, and the operator makes another one the home
		at := 5*sec + r.Int64N(s.length/3)
		steps = append(steps, step{at: at, what: "alone", n: 20*sec + r.Int64N(2*minute)}, step{at: at + r.Int64N(20*sec), what: "move", region: 1 + r.IntN(s.regions-1), other: r.IntN(8) / 7})
	}
	if s.added {
		steps = append(steps, step{at: 5*sec + r.Int64N(s.length/2), what: "move", region: 0})
	}
	return steps
}

// fails runs a history and returns what is wrong.
func fails(s setup, steps []step) []string { return s.run(steps, nil).seen.problems }

// explain prints the shortest history that still fails.
func explain(t *testing.T, s setup, steps []step, problems []string) {
	t.Helper()
	if testing.Short() {
		t.Errorf("seed %d: %s", s.seed, problems[0])
		return
	}
	short := simkit.Reduce(steps, 400, func(part []step) bool { return len(fails(s, part)) > 0 })
	var trace bytes.Buffer
	w := s.run(short, &trace)
	var b strings.Builder
	for _, c := range s.counters {
		fmt.Fprintf(&b, "counter %q %s: %d in %s\n", c.name, c.mode, c.limit.Capacity(), c.limit.Window.Length())
	}
	lines := strings.Split(trace.String(), "\n")
	lines = lines[max(0, len(lines)-60):]
	requests, faults := 0, ""
	for _, x := range short {
		if x.what == "request" {
			requests++
		} else {
			faults += x.String() + "\n"
		}
	}
	t.Errorf("seed %d, %d regions of %d, rtt %d ms, bad network %v: %s\n%sShortest history: %d requests and\n%sIts end:\n%s\n%s", s.seed, s.regions, s.replicas,
		s.rtt/ms, s.bad, problems[0], b.String(), requests, faults, strings.Join(lines, "\n"), w.seen.problems[0])
}

// runSeeds runs some seeds, and explains the first failure.
func runSeeds(t *testing.T, from, n uint64) {
	t.Helper()
	began := time.Now()
	histories := make(map[uint64]bool)
	asked, questions, simulated := int64(0), 0, int64(0)
	for seed := from; seed < from+n; seed++ {
		s, steps := draw(seed)
		w := s.run(steps, nil)
		histories[w.Hash()] = true
		for _, c := range w.seen.counts {
			asked += c.asked
		}
		questions += w.questions
		simulated += s.length
		if len(w.seen.problems) > 0 {
			explain(t, s, steps, w.seen.problems)
			return
		}
	}
	if len(histories) != int(n) {
		t.Errorf("%d seeds have %d histories", n, len(histories))
	}
	hours := float64(simulated) / float64(60*minute)
	t.Logf("%d seeds, %d requests, %d questions, %.0f simulated hours, %.1f of them per minute", n, asked, questions, hours, hours/time.Since(began).Minutes())
}

func TestSeeds(t *testing.T) {
	n := uint64(30)
	if testing.Short() {
		n = 10
	}
	runSeeds(t, 0, n)
	runSeeds(t, 201976, 1) // the home's clock is set ahead by 91 ms, and a full bucket has four tokens more
}

func TestSameSeedSameHistory(t *testing.T) {
	s, steps := draw(7)
	var first, second bytes.Buffer
	a, b := s.run(steps, &first), s.run(steps, &second)
	if a.Hash() != b.Hash() || !bytes.Equal(first.Bytes(), second.Bytes()) || first.Len() == 0 {
		t.Error("two runs of a seed differ")
	}
}

// TestSeedsSoak begins with the seed in REGION_SEED, or with 1000.
func TestSeedsSoak(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("NOT RUN without RATELIMITD_SOAK=1: it takes minutes")
	}
	first := uint64(1000)
	if v := os.Getenv("REGION_SEED"); v != "" {
		var err error
		if first, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	runSeeds(t, first, 2000)
}
