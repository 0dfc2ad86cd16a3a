package quota_test

import (
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// fate is the list of a client's events of a day, in order. They affect all its buckets.
type fate struct {
	at   time.Duration
	what int // a case of world.befall
}

// TestDay lets 1,000 clients share many buckets for a day of virtual time: 10,000 buckets with RATELIMITD_SOAK,
// otherwise some of them.
func TestDay(t *testing.T) {
	buckets := 20
	if os.Getenv("RATELIMITD_SOAK") != "" {
		buckets = 10_000
	}
	if testing.Short() {
		buckets = 4
	}
	fates := make([][]fate, 1000)
	for i := range fates {
		r := rand.New(rand.NewPCG(uint64(i), 2))
		for at := time.Duration(0); at < 24*time.Hour; {
			at += time.Duration(r.ExpFloat64() * float64(2*time.Hour))
			fates[i] = append(fates[i], fate{at, r.IntN(4)})
		}
	}
	var next, requests atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for {
				n := next.Add(1) - 1
				if n >= int64(buckets) || t.Failed() {
					return
				}
				requests.Add(day(t, uint64(n), fates))
			}
		})
	}
	all.Wait()
	t.Logf("%d buckets, %d requests passed", buckets, requests.Load())
}

// day simulates the day of one bucket. It returns the number of passed requests.
func day(t *testing.T, seed uint64, fates [][]fate) int64 {
	r := rand.New(rand.NewPCG(seed, 3))
	l := quota.Rate{PerSecond: math.Pow(10, -2+r.Float64()*5)}
	l.Burst = math.Ceil(l.PerSecond * math.Pow(10, -0.5+3*r.Float64()))
	l.Interval = quota.IntervalFor(l.PerSecond)
	w := newWorld(l, seed)
	w.tick = time.Second
	c := bound{l: l}
	begin := w.now
	type life struct {
		*envoy
		fates []fate
	}
	var lives []*life
	for range 1 + r.IntN(8) {
		lives = append(lives, &life{w.join(0), fates[r.IntN(len(fates))]})
	}
	for w.now.Sub(begin) < 24*time.Hour {
		for _, x := range lives {
			if r.IntN(1200) == 0 {
				x.Demand = l.PerSecond * math.Pow(10, -2+3*r.Float64()) * float64(min(r.IntN(4), 1))
			}
			for len(x.fates) > 0 && w.now.Sub(begin) >= x.fates[0].at {
				x.envoy = w.befall(x.envoy, x.fates[0].what)
				x.fates = x.fates[1:]
			}
		}
		w.step()
		c.check(w)
		w.bury()
	}
	if c.report(t, w); t.Failed() {
		t.Logf("this was bucket %d", seed)
	}
	return int64(w.admitted())
}

// befall changes a client in a random way, and returns the client that takes its place.
func (w *world) befall(e *envoy, what int) *envoy {
	switch what {
	case 0: // it is killed, and another one arrives
		w.leave(e)
		return w.join(e.Demand)
	case 1: // its stream breaks
		return w.reconnect(e)
	default: // it hangs, or recovers
		e.hung = !e.hung
		e.outbox = nil // a report takes less than a step of this world
		return e
	}
}

// bury forgets clients that are gone and whose assignments have expired. Their passed requests still count.
func (w *world) bury() {
	for len(w.gone) > 0 && w.now.Sub(w.gone[0].left) > 2*quota.TTL {
		w.buried += w.gone[0].Passed
		w.gone = w.gone[1:]
	}
}
