package redisshares_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/envoymodel"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/redisshares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// world is a few replicas that share one limit in Redis, and their clients, in virtual time.
type world struct {
	testing.TB
	redis *redistest.Server
	set   func(time.Time)
	now   time.Time
	rate  quota.Rate

	processes []*process
	clients   []*client
	made      int
	away      bool // Redis does not answer
	mute      bool // it answers, and the answers are lost

	rateHeld, tokensHeld float64 // the most that clients held at the same time
	level, seen, worst   float64 // a token bucket of the limit's rate and burst; worst is the largest excess
}

type process struct {
	*redisshares.Shares
	bucket *quota.Bucket
	asked  time.Time
	until  time.Time
}

type client struct {
	envoymodel.Client
	of       *process
	sub      *quota.Subscriber
	reported time.Time
	lost     time.Time // when its replica stopped
}

const step = 500 * time.Millisecond

var begin = time.Unix(1_800_000_000, 0)

func newWorld(t testing.TB, r quota.Rate) *world {
	s, set := redistest.StartWithStoppedClock(t, begin)
	return &world{TB: t, redis: s, set: set, now: begin, rate: r}
}

func (w *world) start() *process {
	w.made++
	p := &process{Shares: redisshares.New(redisshares.Options{Client: w.redis.Client(w), Prefix: "quota:", Replica: fmt.Sprint(w.made)})}
	p.bucket = quota.NewSharedBucket(w.now, w.rate)
	p.bucket.SetRemaining(w.rate.Burst)
	w.processes = append(w.processes, p)
	return p
}

// kill stops a replica. Its clients reconnect to the others some seconds later.
func (w *world) kill(i int) {
	p := w.processes[i]
	w.processes = append(w.processes[:i:i], w.processes[i+1:]...)
	for _, c := range w.clients {
		if c.of == p {
			c.of, c.sub, c.lost = nil, nil, w.now
		}
	}
}

// end is kill for a replica that returns the part that its clients do not hold.
func (w *world) end(i int) {
	p := w.processes[i]
	w.kill(i)
	if w.away {
		return
	}
	if _, err := p.Renew(w.Context(), []quota.Ask{p.bucket.End(w.now, "k")}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) join(p *process, demand float64) *client {
	c := &client{Client: envoymodel.Client{Demand: demand}, of: p, reported: w.now}
	c.sub = p.bucket.Join(w.now)
	c.sub.Owner = c
	w.clients = append(w.clients, c)
	return c
}

func (w *world) step(r *rand.Rand) {
	w.now = w.now.Add(step)
	w.set(w.now)
	for _, c := range w.clients {
		c.Step(w.now, step)
		switch {
		case c.of == nil && w.now.Sub(c.lost) >= 3*time.Second:
			c.of = w.processes[r.IntN(len(w.processes))]
			c.sub = c.of.bucket.Join(w.now)
			c.sub.Owner = c
			c.of.bucket.Claim(w.now, c.sub, float64(c.Allowed)/w.now.Sub(c.reported).Seconds())
			fallthrough
		case c.of != nil && w.now.Sub(c.reported) >= 5*time.Second:
			allowed, denied := c.Report()
			c.of.bucket.Report(w.now, c.sub, allowed, denied)
			c.reported = w.now
		}
	}
	for _, p := range w.processes {
		w.serve(p)
	}
	w.check()
}

// serve does the work of package assigner for a bucket.
func (w *world) serve(p *process) {
	every := 5 * time.Second
	if p.bucket.Claims(w.now) || p.bucket.Unsettled() {
		every = time.Second
	}
	if w.now.Sub(p.asked) >= every && !w.away {
		p.asked = w.now
		ask := p.bucket.Ask(w.now, "k")
		shares, err := p.Renew(context.Background(), []quota.Ask{ask})
		if err != nil {
			w.Fatal(err)
		}
		if w.mute { // the answer is lost
			p.bucket.Unanswered(w.now)
		} else {
			p.bucket.Answer(w.now, shares[0])
			p.until = w.now.Add(shares[0].TTL)
		}
	}
	if w.now.Add(quota.TTL + 2*time.Second).Before(p.until) {
		p.bucket.Divide()
	} else {
		p.bucket.Fix(quota.Assignment{})
	}
	for _, s := range p.bucket.Plan(w.now) {
		s.Owner.(*client).Receive(w.now, s.Held)
		s.Sent(w.now)
	}
}

func (w *world) check() {
	rate, tokens, passed := 0.0, 0.0, 0.0
	for _, c := range w.clients {
		r, n := c.Holds(w.now)
		rate, tokens, passed = rate+r, tokens+n, passed+c.Passed
	}
	w.rateHeld, w.tokensHeld = max(w.rateHeld, rate), max(w.tokensHeld, tokens)
	w.level = max(w.level-w.rate.PerSecond*step.Seconds(), 0) + passed - w.seen
	w.seen = passed
	w.worst = max(w.worst, w.level-w.rate.Burst)
}

// bounded fails a test in which clients held or passed more than the limit.
func (w *world) bounded() {
	w.Helper()
	if w.rateHeld > w.rate.PerSecond*(1+1e-9) {
		w.Errorf("clients held %g per second, the limit is %g", w.rateHeld, w.rate.PerSecond)
	}
	if w.tokensHeld > w.rate.Burst*(1+1e-9) {
		w.Errorf("clients held %g tokens, the burst is %g", w.tokensHeld, w.rate.Burst)
	}
	if w.worst > 1e-3 {
		w.Errorf("%g requests more than burst and rate allow", w.worst)
	}
}

func (w *world) passed() (n float64) {
	for _, c := range w.clients {
		n += c.Passed
	}
	return n
}

// worlds returns the number of worlds that TestNeverMoreThanTheLimit simulates.
func worlds(t *testing.T) uint64 {
	text := os.Getenv("WORLDS")
	if text == "" {
		return 8
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("read WORLDS: %v", err)
	}
	return n
}

// nightly adds cases that find the same bugs with more CPU time, if WORLDS asks for many worlds.
func nightly[T any](cases []T, more ...T) []T {
	if os.Getenv("WORLDS") == "" {
		return cases
	}
	return append(cases, more...)
}

// TestNeverMoreThanTheLimit starts and kills replicas, moves clients, and cuts off Redis. The environment variable
// WORLDS sets the number of worlds.
func TestNeverMoreThanTheLimit(t *testing.T) {
	var next atomic.Uint64
	for _, seed := range []uint64{152, 247, 565, 638, 684, 2201, 2668, 2912, 3252, 4560} { // they exceeded the limit once
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { live(t, newWorld(t, quota.Rate{}), seed) })
	}
	for i := range 2 * runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprintf("worker=%d", i), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, quota.Rate{})
			for n := worlds(t); ; {
				seed := next.Add(1) - 1
				if seed >= n {
					return
				}
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { live(t, w, seed) })
			}
		})
	}
}

// live simulates ten minutes in a world with the Redis of another one.
func live(t *testing.T, other *world, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	l := quota.Rate{PerSecond: math.Pow(10, r.Float64()*3), Interval: 100 * time.Second}
	l.Burst = math.Ceil(l.PerSecond * math.Pow(10, -0.3+1.5*r.Float64()))
	if err := other.redis.Client(t).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, redis: other.redis, set: other.set, now: begin, rate: l}
	w.set(begin)
	end := w.kill
	if seed%4 == 0 {
		end = w.end
	}
	for range 3 {
		w.start()
	}
	for range 6 {
		w.join(w.processes[r.IntN(3)], l.PerSecond*r.Float64())
	}
	// answers: how long Redis has answered in all; usable: the same, less a minute after each outage
	var answers, usable time.Duration
	for range int(10 * time.Minute / step) {
		switch r.IntN(240) {
		case 0:
			w.start()
		case 1:
			if len(w.processes) > 1 {
				end(r.IntN(len(w.processes)))
			}
		case 2:
			w.clients[r.IntN(len(w.clients))].Demand = l.PerSecond * 2 * r.Float64()
		case 3:
			w.away = !w.away
		case 4:
			w.mute = !w.mute
		}
		if w.step(r); w.away || w.mute {
			answers = 0
		} else if answers += step; answers > time.Minute {
			usable += step
		}
	}
	w.bounded()
	if could := l.PerSecond * usable.Seconds(); w.passed() < 0.05*could {
		t.Errorf("only %g of %g requests passed", w.passed(), could)
	}
	if t.Failed() {
		t.Logf("rate %g, burst %g", l.PerSecond, l.Burst)
	}
}

// TestSharesFollowDemand runs replicas with different demand, and moves the clients of a replica that stops.
func TestSharesFollowDemand(t *testing.T) {
	l := quota.Rate{PerSecond: 100, Burst: 200, Interval: 10 * time.Second}
	r := rand.New(rand.NewPCG(1, 1))
	w := newWorld(t, l)
	for _, demand := range []float64{10, 200, 200} {
		w.join(w.start(), demand)
	}
	measure := func(d time.Duration) (sum float64, each []float64) {
		for _, c := range w.clients {
			each = append(each, -c.Passed)
		}
		for range int(d / step) {
			w.step(r)
		}
		for i, c := range w.clients {
			each[i] = (each[i] + c.Passed) / d.Seconds()
			sum += each[i]
		}
		return sum, each
	}
	measure(30 * time.Second)
	sum, each := measure(time.Minute)
	t.Logf("three processes: %.1f per second, %.1f", sum, each)
	if sum < 95 || each[0] < 9 || each[1] < 0.7*45 || each[2] < 0.7*45 {
		t.Errorf("%.1f per second: %.1f", sum, each)
	}
	w.kill(2)
	measure(22 * time.Second)
	sum, each = measure(time.Minute)
	t.Logf("two processes: %.1f per second, %.1f", sum, each)
	if sum < 95 || each[0] < 9 || each[1] < 0.7*45 || each[2] < 0.7*45 {
		t.Errorf("after a process ended %.1f per second: %.1f", sum, each)
	}
	if err := w.redis.Client(t).FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	w.rateHeld = 0
	measure(30 * time.Second)
	if w.rateHeld > l.PerSecond*(1+1e-9) {
		t.Errorf("clients held %g per second after Redis lost its data", w.rateHeld)
	}
	if sum, each = measure(time.Minute); sum < 95 {
		t.Errorf("after Redis lost its data %.1f per second: %.1f", sum, each)
	}
}

// All clients belong to one replica, which stops. A replica without clients takes their shares over.
func TestClientsOfAnEndedReplica(t *testing.T) {
	l := quota.Rate{PerSecond: 100, Burst: 100, Interval: 10 * time.Second}
	r := rand.New(rand.NewPCG(1, 1))
	w := newWorld(t, l)
	first := w.start()
	w.start()
	a, b := w.join(first, 120), w.join(first, 120)
	run := func(d time.Duration) (sum float64) {
		before := w.passed()
		for range int(d / step) {
			w.step(r)
		}
		return (w.passed() - before) / d.Seconds()
	}
	run(30 * time.Second)
	w.kill(0)
	moving := run(22 * time.Second)
	after := run(20 * time.Second)
	t.Logf("%.1f per second in the first 22 s, %.1f in the next 20 s", moving, after)
	if moving < 85 || after < 95 {
		t.Errorf("%.1f per second in the first 22 s, %.1f in the next 20 s: %+v %+v", moving, after, a.Held, b.Held)
	}
}

// All replicas are replaced at the same time, twice.
func TestRestartOfAllReplicas(t *testing.T) {
	l := quota.Rate{PerSecond: 100, Burst: 100, Interval: 10 * time.Second}
	r := rand.New(rand.NewPCG(1, 1))
	w := newWorld(t, l)
	w.join(w.start(), 120)
	w.join(w.start(), 120)
	run := func(d time.Duration) (sum float64) {
		before := w.passed()
		for range int(d / step) {
			w.step(r)
		}
		return (w.passed() - before) / d.Seconds()
	}
	run(30 * time.Second)
	for range 2 {
		w.start()
		w.start()
		w.kill(0)
		w.kill(0)
		moving := run(22 * time.Second)
		after := run(20 * time.Second)
		t.Logf("%.1f per second in the first 22 s, %.1f in the next 20 s", moving, after)
		if moving < 85 || after < 95 {
			t.Errorf("%.1f per second in the first 22 s, %.1f in the next 20 s", moving, after)
		}
	}
}

// One replica is killed. Half a minute later, when all its clients are with the other one, a new replica starts and the
// other one stops. The rest of the first share must not prevent the clients from taking the second one along.
func TestRollingRestart(t *testing.T) {
	l := quota.Rate{PerSecond: 100, Burst: 100, Interval: 10 * time.Second}
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, l)
		w.join(w.start(), 120)
		w.join(w.start(), 120)
		run := func(d time.Duration) (sum float64) {
			before := w.passed()
			for range int(d / step) {
				w.step(r)
			}
			return (w.passed() - before) / d.Seconds()
		}
		run(20*time.Second + time.Duration(r.IntN(20))*step)
		w.kill(0)
		first := run(32 * time.Second)
		w.start()
		w.kill(0)
		second := run(50 * time.Second)
		t.Logf("%.1f per second after one was killed, %.1f after the other one ended", first, second)
		if first < 90 || second < 90 {
			t.Errorf("%.1f per second after one was killed, %.1f after the other one ended", first, second)
		}
		w.bounded()
	}
}

// A client that arrived before the last question of a replica did not come from it. A claim stays open only while there
// is a replica that may be gone.
func TestClaimsOfEarlierClients(t *testing.T) {
	s, set := redistest.StartWithStoppedClock(t, begin)
	of := func(name string) func(quota.Ask) quota.Share {
		process := redisshares.New(redisshares.Options{Client: s.Client(t), Prefix: "quota:", Replica: name})
		return func(a quota.Ask) quota.Share {
			a.Key, a.Rate, a.Burst, a.Saved = "k", 100, 100, 100
			shares, err := process.Renew(t.Context(), []quota.Ask{a})
			if err != nil {
				t.Fatal(err)
			}
			return shares[0]
		}
	}
	of("killed")(quota.Ask{Demand: 100})
	claims := of("claims")
	for _, c := range []struct {
		after, age time.Duration
		claimed    bool
		open       bool
	}{
		{after: 4 * time.Second, age: 3 * time.Second, open: true},      // it may be gone
		{after: 13 * time.Second, age: 13500 * time.Millisecond},        // it has asked since
		{after: 14 * time.Second, age: 13 * time.Second, claimed: true}, // nothing remains of it
	} {
		set(begin.Add(c.after))
		x := claims(quota.Ask{ClaimRate: 100, ClaimAge: c.age, Demand: 100, Number: uint64(c.after)})
		if (x.ClaimedRate > 0) != c.claimed || x.ClaimsOpen != c.open {
			t.Errorf("after %v a claim of %v ago gets %g per second; more may come: %t", c.after, c.age, x.ClaimedRate, x.ClaimsOpen)
		}
	}
}

// A replica that stops immediately returns the part that its clients do not hold. The rest is free when it has expired
// at the clients.
func TestEndGivesBack(t *testing.T) {
	s, set := redistest.StartWithStoppedClock(t, begin)
	of := func(name string) func(quota.Ask) quota.Share {
		process := redisshares.New(redisshares.Options{Client: s.Client(t), Prefix: "quota:", Replica: name})
		return func(a quota.Ask) quota.Share {
			a.Key, a.Rate, a.Burst, a.Saved = "k", 100, 100, 100
			shares, err := process.Renew(t.Context(), []quota.Ask{a})
			if err != nil {
				t.Fatal(err)
			}
			return shares[0]
		}
	}
	ends, other := of("ends"), of("other")
	all := ends(quota.Ask{Demand: 100})
	ends(quota.Ask{HeldRate: 20, HeldBurst: 10, Returned: all.Burst - 10, Held: true, Ends: true})
	share := other(quota.Ask{Demand: 100})
	if share.Rate < 75 || share.Rate > 80 || share.Burst < 50 || share.Burst > 90 {
		t.Errorf("the other process has %g per second and %g tokens of the 80 and 90 that were given back", share.Rate, share.Burst)
	}
	set(begin.Add(33 * time.Second))
	if share = other(quota.Ask{Demand: 100, Held: true, HeldRate: share.Rate, HeldBurst: share.Burst}); share.Rate < 95 {
		t.Errorf("when all has expired at the clients the other process has %g per second", share.Rate)
	}
}

// A replica does not learn that its claim was served. Until it does, no other replica gets the claimed part, and the
// answer is repeated.
func TestLostAnswerToAClaim(t *testing.T) {
	s, set := redistest.StartWithStoppedClock(t, begin)
	of := func(name string) func(quota.Ask) quota.Share {
		process := redisshares.New(redisshares.Options{Client: s.Client(t), Prefix: "quota:", Replica: name})
		return func(a quota.Ask) quota.Share {
			a.Key, a.Rate, a.Burst, a.Saved = "k", 100, 100, 100
			shares, err := process.Renew(t.Context(), []quota.Ask{a})
			if err != nil {
				t.Fatal(err)
			}
			return shares[0]
		}
	}
	ended, claims, other := of("ended"), of("claims"), of("other")
	ended(quota.Ask{Demand: 100})
	set(begin.Add(13 * time.Second))
	lost := claims(quota.Ask{ClaimRate: 90, Demand: 90, Number: 1})
	if lost.ClaimedRate < 89 {
		t.Fatalf("the claim got %g per second", lost.ClaimedRate)
	}
	for number := uint64(2); number < 5; number++ {
		if x := other(quota.Ask{Demand: 100}); x.Rate > 11 {
			t.Errorf("another process got %g per second while a client holds %g", x.Rate, lost.ClaimedRate)
		}
		again := claims(quota.Ask{ClaimRate: 90, Demand: 90, Held: true, Number: number})
		if again.ClaimedRate != lost.ClaimedRate || again.ClaimedBurst != lost.ClaimedBurst {
			t.Errorf("question %d is answered with %g and %g, not with %g and %g", number, again.ClaimedRate, again.ClaimedBurst, lost.ClaimedRate, lost.ClaimedBurst)
		}
	}
	known := claims(quota.Ask{Demand: 90, Held: true, HeldRate: lost.ClaimedRate, HeldBurst: lost.ClaimedBurst, Number: 5, Answered: 4})
	if known.ClaimedRate != 0 || known.ClaimedBurst != 0 {
		t.Errorf("after an answer that arrived, %g and %g are claimed", known.ClaimedRate, known.ClaimedBurst)
	}
}

// asker returns a replica that asks for its share of one limit of 100 per second.
func asker(t *testing.T, s *redistest.Server, name string) func(quota.Ask) (quota.Share, error) {
	process := redisshares.New(redisshares.Options{Client: s.Client(t), Prefix: "quota:", Replica: name})
	return func(a quota.Ask) (quota.Share, error) {
		a.Key, a.Rate, a.Burst, a.Saved = "k", 100, 100, 100
		shares, err := process.Renew(t.Context(), []quota.Ask{a})
		return shares[0], err
	}
}

// A replica asks, gives up and asks again on another connection, because a packet was lost. The packet is sent again
// and arrives after the second question. The first question no longer describes the part that the replica holds.
func TestLateQuestion(t *testing.T) {
	s, set := redistest.StartWithStoppedClock(t, begin)
	one, other := asker(t, s, "one"), asker(t, s, "other")
	must := func(share quota.Share, err error) quota.Share {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return share
	}
	must(one(quota.Ask{Number: 1}))
	late := quota.Ask{Number: 2, Held: true, Answered: 1} // its clients have no requests yet
	var held quota.Share
	for number := uint64(3); number < 6; number++ {
		set(begin.Add(time.Duration(number) * time.Second))
		held = must(one(quota.Ask{Number: number, Demand: 100, Held: true, HeldRate: held.Rate, HeldBurst: held.Burst}))
		must(other(quota.Ask{Number: number, Held: number > 3}))
	}
	if held.Rate < 90 {
		t.Fatalf("the process with requests got %g per second", held.Rate)
	}
	if got, err := one(late); err == nil {
		t.Errorf("a question that was overtaken is answered with %g per second", got.Rate)
	}
	set(begin.Add(7 * time.Second)) // tokens are saved at the rate that no replica holds
	if got := must(other(quota.Ask{Number: 6, Demand: 1000, Held: true})); got.Rate+held.Rate > 100*(1+1e-9) || got.Burst+held.Burst > 100*(1+1e-9) {
		t.Errorf("one process holds %g per second and %g tokens, and the other one got %g and %g of 100", held.Rate, held.Burst, got.Rate, got.Burst)
	}
}

// A share expires while the question for its renewal is on its way, and another replica gets the rate before the
// question arrives. A second question with the same time arrives too.
func TestShareThatExpiredMeanwhile(t *testing.T) {
	s, set := redistest.StartWithStoppedClock(t, begin)
	one, other := asker(t, s, "one"), asker(t, s, "other")
	was, err := one(quota.Ask{Demand: 100, Number: 1})
	if err != nil || was.Rate < 95 {
		t.Fatalf("%g per second: %v", was.Rate, err)
	}
	set(begin.Add(46 * time.Second))
	got, err := other(quota.Ask{Demand: 100, Number: 1})
	if err != nil || got.Rate < 95 {
		t.Fatalf("%g per second: %v", got.Rate, err)
	}
	for number := uint64(2); number < 4; number++ {
		again, err := one(quota.Ask{Demand: 100, Number: number, Answered: 1, Held: true, HeldRate: was.Rate, HeldBurst: was.Burst})
		if err != nil || again.Rate+got.Rate > 100*(1+1e-9) || again.Burst+got.Burst > 100*(1+1e-9) {
			t.Errorf("question %d got %g per second and %g tokens, and the other process has %g and %g of 100: %v", number, again.Rate, again.Burst, got.Rate, got.Burst, err)
		}
	}
}

// On a cluster, the limits are on several nodes. A script that Redis has lost is sent again.
func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, redistest.Setup{})
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	s := redisshares.New(redisshares.Options{Client: client, Prefix: "quota:", Replica: "a"})
	asks := make([]quota.Ask, 500)
	for i := range asks {
		asks[i] = quota.Ask{Key: fmt.Sprint("k", i), Rate: 100, Burst: 50, Saved: 50, Demand: 10}
	}
	for range 2 {
		shares, err := s.Renew(t.Context(), asks)
		if err != nil || len(shares) != len(asks) {
			t.Fatalf("%d shares: %v", len(shares), err)
		}
		for i, x := range shares {
			if math.Abs(x.Rate-98) > 1e-9 || x.Replicas != 1 {
				t.Fatalf("share %d is %+v", i, x)
			}
			asks[i].Held, asks[i].HeldRate, asks[i].HeldBurst = true, x.Rate, x.Burst
		}
		if err := client.ForEachMaster(t.Context(), func(ctx context.Context, c *goredis.Client) error { return c.ScriptFlush(ctx).Err() }); err != nil {
			t.Fatal(err)
		}
	}
}

// A cluster node that is down, or does not answer, affects only the limits that it stores.
func TestNodeOfAClusterIsAway(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("hangs=%t", hangs), func(t *testing.T) {
			c := redistest.StartCluster(t, redistest.Setup{})
			for _, n := range c.Nodes { // the other nodes must keep answering
				if err := n.Client(t).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
					t.Fatal(err)
				}
			}
			client, err := redisconn.Dial(redisconn.Options{Type: "CLUSTER", URL: strings.Join(c.Addrs(), ",")})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Close() })
			s := redisshares.New(redisshares.Options{Client: client, Prefix: "quota:", Replica: "a"})
			asks := make([]quota.Ask, 500)
			for i := range asks {
				asks[i] = quota.Ask{Key: fmt.Sprint("k", i), Rate: 100, Burst: 50, Saved: 50, Demand: 10}
			}
			if _, err := s.Renew(t.Context(), asks); err != nil {
				t.Fatal(err)
			}
			away := c.Primary(t, 0)
			for _, n := range append(c.Replicas(t, away), away) { // the replica first: it cannot take over
				if hangs {
					n.Pause(t)
					defer n.Continue(t)
				} else {
					n.Kill(t)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			shares, err := s.Renew(ctx, asks)
			if err == nil || len(shares) != len(asks) {
				t.Fatalf("%d shares without an error", len(shares))
			}
			t.Log(err)
			answered := 0
			for _, x := range shares {
				if x.TTL > 0 && math.Abs(x.Rate-98) < 1e-9 {
					answered++
				}
			}
			if answered < len(asks)/2 || answered == len(asks) { // a node has a third of them
				t.Errorf("%d of %d limits have an answer", answered, len(asks))
			}
		})
	}
}

// A replica with one client takes over the client of a stopped one, and neither has to make room for the other.
func TestOneProcessOfTwoEnds(t *testing.T) {
	l := quota.Rate{PerSecond: 100, Burst: 100, Interval: 10 * time.Second}
	r := rand.New(rand.NewPCG(1, 1))
	w := newWorld(t, l)
	a, b := w.join(w.start(), 120), w.join(w.start(), 120)
	run := func(d time.Duration) (sum float64) {
		before := w.passed()
		for range int(d / step) {
			w.step(r)
		}
		return (w.passed() - before) / d.Seconds()
	}
	run(30 * time.Second)
	w.kill(1)
	if moving, after := run(22*time.Second), run(20*time.Second); moving < 90 || after < 95 {
		t.Errorf("%.1f per second in the first 22 s, %.1f in the next 20 s: %+v %+v", moving, after, a.Held, b.Held)
	}
}

// A client with requests arrives after replicas whose clients have none. These replicas hold nothing, and do not keep
// the limit from it. A client of one of them that starts to send requests gets its part, and the ends of the others
// change nothing.
func TestIdleReplicasDoNotHoldUpOthers(t *testing.T) {
	for _, l := range []quota.Rate{{PerSecond: 1, Burst: 1}, {PerSecond: 1, Burst: 3}, {PerSecond: 1, Burst: 20}, {PerSecond: 100, Burst: 200}} {
		l.Interval = 10 * time.Second
		ofTwo := 0.6 * l.PerSecond
		if l.Burst < 2 {
			ofTwo = 0.3 // they take turns
		}
		for _, idle := range nightly([]int{3}, 0, 1, 10) {
			w := newWorld(t, l)
			run := func(d time.Duration) (perSecond float64) {
				before := w.passed()
				for range int(d / step) {
					w.step(rand.New(rand.NewPCG(1, 2)))
				}
				return (w.passed() - before) / d.Seconds()
			}
			for range idle {
				w.join(w.start(), 0)
			}
			run(2 * time.Minute)
			busy := w.join(w.start(), 10*l.PerSecond)
			run(time.Minute)
			got := run(3 * time.Minute)
			t.Logf("%g/%g with %d idle processes: %.3f", l.PerSecond, l.Burst, idle, got)
			if got < 0.6*l.PerSecond {
				t.Errorf("rate %g, burst %g: %.3f per second pass with %d idle processes", l.PerSecond, l.Burst, got, idle)
			}
			if idle < 2 {
				continue
			}
			w.clients[0].Demand = 10 * l.PerSecond
			run(time.Minute)
			first, second := w.clients[0].Passed, busy.Passed
			got = run(5 * time.Minute)
			first, second = w.clients[0].Passed-first, busy.Passed-second
			t.Logf("two ask: %.3f (%v and %v)", got, first, second)
			if got < ofTwo || first < 0.3*second || second < 0.3*first {
				t.Errorf("rate %g, burst %g, %d idle: %.3f per second pass when a second one asks: %v and %v", l.PerSecond, l.Burst, idle, got, first, second)
			}
			w.kill(1)
			run(time.Minute)
			if got = run(4 * time.Minute); got < ofTwo {
				t.Errorf("rate %g, burst %g, %d idle: %.3f per second pass after the end of one", l.PerSecond, l.Burst, idle, got)
			}
			w.bounded()
		}
	}
}

// The same with limits of one request a minute: replicas wait a long time for a token.
func TestIdleReplicasAndLowRates(t *testing.T) {
	for _, l := range nightly([]quota.Rate{{PerSecond: 1.0 / 60, Burst: 1, Interval: 60_000 * time.Second}}, quota.Rate{PerSecond: 1.0 / 60, Burst: 5, Interval: 60_000 * time.Second}) {
		for _, idle := range nightly([]int{3}, 10) {
			w, r := newWorld(t, l), rand.New(rand.NewPCG(1, 2))
			run := func(d time.Duration) (part float64) {
				before := w.passed()
				for range int(d / step) {
					w.step(r)
				}
				return (w.passed() - before) / d.Seconds() / l.PerSecond
			}
			for range idle {
				w.join(w.start(), 0)
			}
			run(2 * time.Minute)
			w.join(w.start(), 0.2)
			if run(time.Minute); w.passed() < 1 {
				t.Errorf("burst %g: nothing passes in the first minute with %d idle processes", l.Burst, idle)
			}
			if got := run(20 * time.Minute); got < 0.7 {
				t.Errorf("burst %g: %.2f of the rate pass with %d idle processes", l.Burst, got, idle)
			}
			woken := w.clients[0]
			woken.Demand = 0.2
			if got := run(40 * time.Minute); got < 0.4 || woken.Passed < 1 {
				t.Errorf("burst %g, %d idle: %.2f of the rate pass when a second one asks, which gets %g requests", l.Burst, idle, got, woken.Passed)
			}
			for range idle - 1 { // all that have no requests
				w.kill(1)
			}
			run(time.Minute)
			if got := run(40 * time.Minute); got < 0.4 {
				t.Errorf("burst %g: %.2f of the rate pass after %d idle processes have ended", l.Burst, got, idle-1)
			}
			w.bounded()
		}
	}
}
