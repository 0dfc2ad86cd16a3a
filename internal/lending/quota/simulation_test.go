package quota_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/envoymodel"
)

// envoy is a client with delayed messages.
type envoy struct {
	envoymodel.Client
	hung bool // it neither reads nor reports, but decides

	sub      *quota.Subscriber
	reported time.Time
	left     time.Time
	inbox    []written
	outbox   []report
}

type written struct {
	at time.Time
	a  quota.Assignment
}

type report struct {
	at              time.Time
	allowed, denied uint64
}

// step lets time pass, and requests arrive.
func (e *envoy) step(now time.Time, dt time.Duration) {
	for len(e.inbox) > 0 && !e.inbox[0].at.After(now) && !e.hung {
		e.Receive(now, e.inbox[0].a)
		e.inbox = e.inbox[1:]
	}
	e.Step(now, dt)
}

// world is a bucket with clients, messages on their way, and a virtual clock.
type world struct {
	b       *quota.Bucket
	now     time.Time
	r       *rand.Rand
	envoys  []*envoy
	gone    []*envoy // cut off from the server, still deciding
	planned time.Time

	tick     time.Duration
	delay    time.Duration // longest delay of a message: half of a round trip in the bucket's model
	buried   float64       // passed requests of forgotten clients
	messages int
}

func newWorld(l quota.Rate, seed uint64) *world {
	start := time.Unix(1_800_000_000, 0)
	return &world{b: quota.NewBucket(start, l, l.Burst), now: start, tick: tick, r: rand.New(rand.NewPCG(seed, 1)), delay: 490 * time.Millisecond}
}

func (w *world) join(demand float64) *envoy {
	e := &envoy{Client: envoymodel.Client{Demand: demand}, reported: w.now.Add(-time.Duration(w.r.IntN(5000)) * time.Millisecond)}
	e.sub = w.b.Join(w.now)
	w.envoys = append(w.envoys, e)
	return e
}

// leave disconnects a client from the server. The client still decides with its assignment.
func (w *world) leave(e *envoy) {
	w.b.Leave(w.now, e.sub)
	w.envoys = slices.DeleteFunc(w.envoys, func(x *envoy) bool { return x == e })
	e.left = w.now
	w.gone = append(w.gone, e)
}

// reconnect breaks the stream of a client, which returns immediately with its assignment. It returns the new state of
// the client.
func (w *world) reconnect(e *envoy) *envoy {
	w.leave(e)
	w.gone = w.gone[:len(w.gone)-1]
	back := *e
	back.inbox, back.outbox, back.Allowed, back.Denied, back.sub = nil, nil, 0, 0, w.b.Join(w.now)
	if rate, _ := e.Holds(w.now); rate > 0 {
		w.b.Return(w.now, back.sub, rate)
	}
	w.envoys = append(w.envoys, &back)
	return &back
}

const tick = 100 * time.Millisecond

func (w *world) step() {
	w.now = w.now.Add(w.tick)
	for _, e := range w.envoys {
		e.step(w.now, w.tick)
		if w.now.Sub(e.reported) >= 5*time.Second && !e.hung {
			e.reported = w.now
			allowed, denied := e.Report()
			e.outbox = append(e.outbox, report{w.now.Add(w.latency()), allowed, denied})
		}
		for len(e.outbox) > 0 && !e.outbox[0].at.After(w.now) {
			w.b.Report(w.now, e.sub, e.outbox[0].allowed, e.outbox[0].denied)
			e.outbox = e.outbox[1:]
		}
	}
	for _, e := range w.gone {
		e.step(w.now, w.tick)
	}
	if w.now.Sub(w.planned) < time.Second {
		return
	}
	w.planned = w.now
	for _, s := range w.b.Plan(w.now) {
		i := slices.IndexFunc(w.envoys, func(e *envoy) bool { return e.sub == s })
		e := w.envoys[i]
		s.Sent(w.now)
		e.inbox = append(e.inbox, written{w.now.Add(w.latency()), s.Held})
		w.messages++
	}
}

func (w *world) latency() time.Duration { return time.Duration(w.r.Int64N(int64(w.delay))) }

func (w *world) admitted() (sum float64) {
	sum = w.buried
	for _, e := range w.envoys {
		sum += e.Passed
	}
	for _, e := range w.gone {
		sum += e.Passed
	}
	return sum
}

// bound checks that never more passes than the burst and the rate allow. It uses the level of a bucket of that size.
type bound struct {
	l     quota.Rate
	level float64
	seen  float64
	worst float64

	rate, tokens float64 // the most that clients held at the same time
}

func (c *bound) check(w *world) {
	c.level = max(c.level-c.l.PerSecond*w.tick.Seconds(), 0)
	sum := w.admitted()
	c.level += sum - c.seen
	c.seen = sum
	c.worst = max(c.worst, c.level-c.l.Burst)
	rate, tokens := 0.0, 0.0
	for _, all := range [][]*envoy{w.envoys, w.gone} {
		for _, e := range all {
			r, n := e.Holds(w.now)
			rate, tokens = rate+r, tokens+n
		}
	}
	c.rate, c.tokens = max(c.rate, rate), max(c.tokens, tokens)
}

// report fails a test in which clients passed or held too much.
func (c *bound) report(t *testing.T, w *world) {
	t.Helper()
	const rounding = 1e-9
	if c.worst > 1e-3+1e-6*w.admitted() {
		t.Errorf("%+v: %g requests more than the bound", c.l, c.worst)
	}
	if c.rate > c.l.PerSecond*(1+rounding) || c.tokens > c.l.Burst*(1+rounding) {
		t.Errorf("%+v: clients held %g per second and %g tokens at once", c.l, c.rate, c.tokens)
	}
}

// TestNeverMoreThanTheBound lets clients join, leave, hang, be cut off and change their demand.
func TestNeverMoreThanTheBound(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		l := quota.Rate{PerSecond: math.Pow(10, -1+r.Float64()*4)}
		l.Burst = math.Ceil(l.PerSecond * math.Pow(10, -0.5+2*r.Float64()))
		l.Interval = quota.IntervalFor(l.PerSecond)
		t.Run(fmt.Sprintf("seed=%d/rate=%.3g/burst=%g", seed, l.PerSecond, l.Burst), func(t *testing.T) {
			w := newWorld(l, seed)
			c := bound{l: l}
			for range 1 + r.IntN(6) {
				w.join(l.PerSecond * 2 * r.Float64())
			}
			for range int(20 * time.Minute / tick) {
				if n := len(w.envoys); n > 0 && r.IntN(600) == 0 {
					e := w.envoys[r.IntN(n)]
					switch r.IntN(5) {
					case 0:
						w.leave(e)
					case 1: // its stream breaks, and it returns with its assignment
						w.reconnect(e)
					case 2:
						e.hung = !e.hung
					default:
						e.Demand = l.PerSecond * math.Pow(10, -2+3*r.Float64()) * float64(r.IntN(2))
					}
				}
				if r.IntN(900) == 0 && len(w.envoys) < 12 {
					w.join(l.PerSecond * 2 * r.Float64())
				}
				w.step()
				c.check(w)
			}
			c.report(t, w)
			if w.admitted() == 0 {
				t.Error("nothing was admitted")
			}
		})
	}
}

// TestFairAndUsed runs clients of different demand, one after the other, and compares their rates.
func TestFairAndUsed(t *testing.T) {
	for _, l := range []quota.Rate{{PerSecond: 100, Burst: 100}, {PerSecond: 10, Burst: 600}, {PerSecond: 1.0 / 6, Burst: 10}, {PerSecond: 1000, Burst: 1000}, {PerSecond: 5, Burst: 5}} {
		for _, demands := range [][]float64{{2}, {0.5, 0.5}, {1, 1}, {2, 2, 2}, {0.1, 0.1, 2}, {0.02, 0.5, 3, 3}} {
			t.Run(fmt.Sprint(l.PerSecond, "/", l.Burst, demands), func(t *testing.T) {
				l.Interval = quota.IntervalFor(l.PerSecond)
				w := newWorld(l, 1)
				var all []*envoy
				for _, d := range demands {
					all = append(all, w.join(d*l.PerSecond))
					for range int(20 * time.Second / tick) {
						w.step()
					}
				}
				warm := max(time.Minute, time.Duration(60/l.PerSecond)*time.Second)
				for range int(warm / tick) {
					w.step()
				}
				before, wantedBefore := make([]float64, len(all)), make([]float64, len(all))
				for i, e := range all {
					before[i], wantedBefore[i] = e.Passed, e.Wanted
				}
				messages := w.messages
				span := max(2*time.Minute, time.Duration(200/l.PerSecond)*time.Second)
				for range int(span / tick) {
					w.step()
				}
				wants, fair := make([]float64, len(all)), make([]float64, len(all))
				sum, wanted := 0.0, 0.0
				for i, e := range all {
					wants[i] = (e.Wanted - wantedBefore[i]) / span.Seconds()
					wanted += wants[i]
				}
				quota.Divide(min(l.PerSecond, wanted), wants, fair)
				for i, e := range all {
					got := (e.Passed - before[i]) / span.Seconds()
					sum += got
					if wants[i]*span.Seconds() >= 20 && got < 0.7*fair[i]-2/span.Seconds() { // too few requests for a measurement
						t.Errorf("client %d of %v got %.3g, its fair part is %.3g: %+v", i, demands, got, fair[i], e.Held)
					}
				}
				part := 0.95
				if l.Burst < 5*float64(len(all)) { // a bucket of few tokens loses refill while no request arrives
					part = 0.85
				}
				if most := min(l.PerSecond, wanted); sum < part*most-2/span.Seconds() {
					t.Errorf("%.4g of %.4g per second were used", sum, most)
				}
				if n := float64(w.messages-messages) / span.Minutes() / float64(len(all)); n > 6 {
					t.Errorf("%.1f messages per minute and client", n)
				}
			})
		}
	}
}

// TestDivide checks the definition of water-filling on random wants.
func TestDivide(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		n := 1 + r.IntN(8)
		wants, parts := make([]float64, n), make([]float64, n)
		wanted := 0.0
		for i := range wants {
			wants[i] = float64(r.IntN(4)) * r.Float64() * 10
			wanted += wants[i]
		}
		total := r.Float64() * 30
		quota.Divide(total, wants, parts)
		sum := 0.0
		for _, p := range parts {
			sum += p
		}
		if math.Abs(sum-total) > 1e-9*(1+total) {
			t.Fatalf("%v of %g is %v: the sum is %g", wants, total, parts, sum)
		}
		for i := range parts {
			switch {
			case wanted <= total && parts[i] < wants[i]-1e-9:
				t.Fatalf("%v of %g is %v: there is enough, and one gets less than it wants", wants, total, parts)
			case wanted > total && parts[i] > wants[i]+1e-9:
				t.Fatalf("%v of %g is %v: one gets more than it wants", wants, total, parts)
			}
			for k := range parts {
				if wanted > total && parts[i] < wants[i]-1e-9 && cmp.Compare(parts[k], parts[i]+1e-9) > 0 {
					t.Fatalf("%v of %g is %v: one gets less than another and less than it wants", wants, total, parts)
				}
			}
		}
	}
}
