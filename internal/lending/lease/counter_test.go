package lease

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var noon = time.Unix(1_800_000_000, 0) // a boundary of minutes

func ms(n float64) time.Time { return noon.Add(time.Duration(n * float64(time.Millisecond))) }

// hot returns a counter under a limit of 1200 a minute, created at noon with the longest life of a lease.
func hot(t *testing.T, l descriptor.Limit) *hotCounter {
	t.Helper()
	if l.Requests == 0 {
		l.Requests, l.Window = 1200, window(1, descriptor.Minute)
	}
	x := leased(t, l)
	m := termsOf(leasedTake(x), 1)
	if m.Kind == backend.NoPermits {
		t.Fatalf("%+v is not leased", l)
	}
	return &hotCounter{rule: *x, limit: m.tighten(x), terms: m, remaining: -1, since: noon}
}

// How limits may be leased: permits live for a tenth of the window, at most half a second; all replicas together hold
// at most a twentieth of the capacity. Buckets are counted without the refill of that time, and entries of logs stay
// longer by that time.
func TestTermsOf(t *testing.T) {
	minute, second := window(1, descriptor.Minute), window(1, descriptor.Second)
	for _, c := range []struct {
		name     string
		limit    descriptor.Limit
		replicas int
		tau      time.Duration // 0: not leased
		most     int64
		gap      uint64
		stretch  int64 // microseconds
	}{
		{"a minute", descriptor.Limit{Requests: 1200, Window: minute}, 1, 500 * time.Millisecond, 60, 0, 0},
		{"shared by three", descriptor.Limit{Requests: 1200, Window: minute}, 3, 500 * time.Millisecond, 20, 0, 0},
		{"a second", descriptor.Limit{Requests: 1200, Window: second}, 1, 100 * time.Millisecond, 60, 0, 0},
		{"the smallest", descriptor.Limit{Requests: 40, Window: second}, 1, 100 * time.Millisecond, 2, 0, 0},
		{"a smaller one", descriptor.Limit{Requests: 39, Window: second}, 1, 0, 0, 0, 0},
		{"a part of a sliding window", descriptor.Limit{Requests: 1200, Window: second, Algorithm: descriptor.SlidingWindow, Precision: 20}, 1, 50 * time.Millisecond, 60, 0, 0},
		{"a log", descriptor.Limit{Requests: 1200, Window: minute, Algorithm: descriptor.SlidingLog}, 1, 500 * time.Millisecond, 60, 0, 500_000},
		{"a log of a day", descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Day), Algorithm: descriptor.SlidingLog}, 1, 500 * time.Millisecond, 60, 0, 500_000},
		{"a bucket that holds back one token", descriptor.Limit{Requests: 120, Burst: 40, Window: minute, Algorithm: descriptor.TokenBucket}, 1, 500 * time.Millisecond, 2, 1, 0},
		{"a bucket", descriptor.Limit{Requests: 1200, Window: minute, Algorithm: descriptor.TokenBucket}, 1, 500 * time.Millisecond, 60, 10, 0},
		{"a part of a token is a token", descriptor.Limit{Requests: 1201, Window: minute, Algorithm: descriptor.TokenBucket}, 1, 500 * time.Millisecond, 60, 11, 0},
		{"a tenth of what fills a small bucket", descriptor.Limit{Requests: 1200, Burst: 60, Window: minute, Algorithm: descriptor.TokenBucket}, 1, 300 * time.Millisecond, 3, 6, 0},
		{"as short as a trip", descriptor.Limit{Requests: 60_000, Burst: 50, Window: minute, Algorithm: descriptor.TokenBucket}, 1, 5 * time.Millisecond, 2, 5, 0},
		{"shorter than a trip", descriptor.Limit{Requests: 60_000, Burst: 49, Window: minute, Algorithm: descriptor.TokenBucket}, 1, 0, 0, 0, 0},
		{"a leaky bucket without a queue", descriptor.Limit{Requests: 1200, Burst: 1199, Window: minute, Algorithm: descriptor.LeakyBucket, NoDelay: descriptor.NoDelayAll}, 1,
			500 * time.Millisecond, 60, 10, 0},
	} {
		l := leased(t, c.limit)
		m := termsOf(leasedTake(l), c.replicas)
		if m.tau != c.tau || m.most != c.most || m.gap != c.gap || m.stretch < c.stretch || m.stretch >= c.stretch+max(l.Arithmetic.Quantum, 1) || (m.Kind == backend.NoPermits) != (c.tau == 0) {
			t.Errorf("%s: %+v, want a life of %s, %d permits, %d fewer in a bucket and %d us longer in a log", c.name, m, c.tau, c.most, c.gap, c.stretch)
		}
		if m.stretch > 0 && m.stretch%l.Arithmetic.Quantum != 0 {
			t.Errorf("%s: %d us are no multiple of the log's %d", c.name, m.stretch, l.Arithmetic.Quantum)
		}
		tight := m.tighten(l)
		if tight.Capacity() != l.Capacity()-c.gap || tight.Arithmetic.Length != l.Arithmetic.Length+m.stretch || m.tightens() != (c.gap > 0 || c.stretch > 0) {
			t.Errorf("%s: the limit is tightened to %+v", c.name, tight)
		}
		l.Lease = false
		if m := termsOf(leasedTake(l), c.replicas); m.Kind != backend.NoPermits || m.tau != 0 {
			t.Errorf("%s: without lease: %+v", c.name, m)
		}
	}
	if m := termsOf(leasedTake(&descriptor.Limit{Requests: 1200, Window: minute, Lease: true}), 1); m.Kind != backend.NoPermits {
		t.Errorf("a limit that was not compiled has the terms %+v", m)
	}
}

// The refill of a bucket is rounded up, and cannot overflow.
func TestRefilled(t *testing.T) {
	minute := window(1, descriptor.Minute)
	for _, c := range []struct {
		requests uint64
		d        time.Duration
		want     int64
	}{
		{60, -time.Second, 0},
		{60, 0, 0},
		{60, 1, 1},
		{60, time.Second, 1},
		{1, time.Microsecond, 1},
		{60, time.Second + 1, 2},
		{60, time.Second + time.Microsecond, 2},
		{60, 2 * time.Second, 2},
		{0, time.Second, 0},
		{1 << 62, time.Minute, backend.MaxCount},
		{1 << 62, time.Microsecond, 76861433641},
		{1 << 63, 1 << 62, backend.MaxCount},
	} {
		if got := refilled(&descriptor.Limit{Requests: c.requests, Window: minute}, c.d); got != c.want {
			t.Errorf("%d a minute refill %d in %s, want %d", c.requests, got, c.d, c.want)
		}
	}
}

// A permit may be used only until both the monotonic clock and the wall clock have reached its end.
func TestBeforeOnBothClocks(t *testing.T) {
	now := time.Now()
	wall := now.Round(0) // without a monotonic reading
	for _, c := range []struct {
		name          string
		now, deadline time.Time
		want          bool
	}{
		{"earlier", noon, noon.Add(1), true},
		{"the same moment", noon, noon, false},
		{"later", noon.Add(1), noon, false},
		{"earlier on both", now, now.Add(1), true},
		{"later on both", now.Add(1), now, false},
		{"without a monotonic reading", wall, now.Add(1), true},
	} {
		if before(c.now, c.deadline) != c.want {
			t.Errorf("%s: %v", c.name, !c.want)
		}
	}
}

// Clocks may drift apart by one part in a thousand.
func TestClocksRunApart(t *testing.T) {
	for d, want := range map[time.Duration][2]time.Duration{
		0: {-1, 1}, 999: {998, 1000}, time.Second: {time.Second - time.Millisecond - 1, time.Second + time.Millisecond + 1},
	} {
		if shortened(d) != want[0] || lengthened(d) != want[1] {
			t.Errorf("%s is shortened to %s and lengthened to %s, want %s and %s", d, shortened(d), lengthened(d), want[0], want[1])
		}
	}
}

// Permits of one limit are not used for takes under another one.
func TestALeaseIsOfOneLimit(t *testing.T) {
	c := hot(t, descriptor.Limit{})
	same := c.rule
	if !c.of(&same) {
		t.Error("a lease does not serve its own limit")
	}
	for i, other := range []descriptor.Limit{same, same, same, same} {
		switch i {
		case 0:
			other.Requests++
		case 1:
			other.Burst++
		case 2:
			other.Algorithm = descriptor.SlidingLog
		case 3:
			other.NoDelay = 7
		}
		if c.of(&other) {
			t.Errorf("a lease of %+v serves %+v", same, other)
		}
	}
}

// Permits of a window may be used during the lease's life, which ends slightly before the window. They count in full
// until the window ends, and then not at all.
func TestLifeOfPermitsOfAWindow(t *testing.T) {
	for _, c := range []struct{ boundary, live, end float64 }{
		{60_000, 499.5, 59_940},
		{300, 299.7, 299.7},
		{-5, 0, 0},
	} {
		k := hot(t, descriptor.Limit{})
		k.boundary, k.early = ms(c.boundary), true
		k.hold(10, noon)
		if k.pool != 10 || k.size != 10 || !k.sent.Equal(noon) || k.generation != 1 || k.early {
			t.Errorf("10 permits are held as %+v", k)
		}
		at := func(x, i float64, alive, worth int64) {
			t.Helper()
			now := ms(x).Add(time.Duration(i))
			if k.alive(now) != alive || k.worth(7, now) != worth || k.unused(now) != max(alive, worth*10/7) {
				t.Errorf("%gms after noon %d permits may be used, 7 are worth %d and all %d, want %d and %d", x, k.alive(now), k.worth(7, now), k.unused(now), alive, worth)
			}
		}
		if c.boundary > 0 {
			at(0, 0, 10, 7)
			at(c.live, -2, 10, 7)
		}
		if c.live < c.end {
			at(c.live, -1, 0, 7)
			at(c.end, -2, 0, 7)
		}
		at(c.end, -1, 0, 0)
		k.pool = 0
		if k.alive(noon) != 0 {
			t.Error("no permits are alive")
		}
	}
}

// Permits of a bucket lose the bucket's refill while they are held. Those of a log are worthless after their life.
func TestLifeOfPermitsOfOthers(t *testing.T) {
	// 20 per second
	k := hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket})
	k.hold(10, noon)
	for _, c := range []struct {
		ms    float64
		worth int64
	}{{0, 9}, {40, 9}, {49, 9}, {50, 8}, {450, 0}, {5000, 0}} {
		if got := k.worth(10, ms(c.ms)); got != c.worth {
			t.Errorf("10 permits of a bucket are worth %d after %gms, want %d", got, c.ms, c.worth)
		}
	}
	if k.alive(ms(499.4)) != 10 || k.alive(ms(499.5)) != 0 || k.unused(ms(450)) != 10 {
		t.Error("permits of a bucket may not be used for half a second")
	}
	k.boundary = ms(100) // no meaning for a bucket
	k.hold(10, noon)
	if k.alive(ms(300)) != 10 {
		t.Error("permits of a bucket end with a window")
	}
	if k.returnable(noon, 40*time.Millisecond) != 9 || k.returnable(noon, 200*time.Millisecond) != 5 {
		t.Errorf("of 10 permits of a bucket %d and %d may be given back", k.returnable(noon, 40*time.Millisecond), k.returnable(noon, 200*time.Millisecond))
	}
	g := hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.SlidingLog})
	g.hold(10, noon)
	if g.worth(10, ms(499)) != 10 || g.worth(10, ms(499.5)) != 0 || g.returnable(noon, 0) != 0 {
		t.Error("permits of a log are worth something after half a second, or may be given back")
	}
	w := hot(t, descriptor.Limit{})
	w.boundary = ms(60_000)
	w.hold(10, noon)
	if w.returnable(noon, 59*time.Second) != 10 || w.returnable(noon, 60*time.Second) != 0 {
		t.Error("permits of a window may be given back when the window is over")
	}
}

// Worthless permits are dropped.
func TestExpire(t *testing.T) {
	k := hot(t, descriptor.Limit{})
	k.boundary = ms(60_000)
	k.hold(10, noon)
	for _, c := range []struct {
		ms           float64
		dropped, now int64
	}{{100, 0, 10}, {1000, 0, 10}, {60_000, 10, 0}, {60_000, 0, 0}} {
		if got := k.expire(ms(c.ms)); got != c.dropped || k.pool != c.now {
			t.Errorf("after %gms %d permits are dropped and %d left, want %d and %d", c.ms, got, k.pool, c.dropped, c.now)
		}
	}
	b := hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket})
	b.hold(5, noon)
	if b.expire(ms(400)) != 0 || b.expire(ms(500)) != 5 {
		t.Error("permits that may still be used are dropped, or others are not")
	}
}

// The number of permits to ask for: the use in half of a lease's life or until the window ends, at most a share of the
// capacity and half of the remaining hits.
func TestWants(t *testing.T) {
	for _, c := range []struct {
		name      string
		rate      float64
		remaining int64
		replicas  int
		boundary  float64 // ms after now; 0 if unknown
		want      int64
	}{
		{"half of what is used in half a second", 100, 1200, 1, 0, 25},
		{"rounded up", 97, 1200, 1, 0, 25},
		{"until the window ends", 100, 1200, 1, 200, 10},
		{"at most a twentieth", 1000, 1200, 1, 0, 60},
		{"of which each process takes its part", 1000, 1200, 3, 0, 20},
		{"at most half of what is left", 100, 24, 1, 0, 12},
		{"of which each process takes its part", 100, 24, 3, 0, 4},
		{"nothing if nothing is left", 100, 0, 1, 0, 0},
		{"nothing if nothing is known", 100, -1, 1, 0, 0},
		{"all of the capacity counts in a new window", 100, 0, 1, -1, 25},
		{"more than can be counted", 1e300, 1200, 1, 0, 60},
	} {
		k := hot(t, descriptor.Limit{})
		k.rate, k.remaining = c.rate, c.remaining
		if k.terms.most = 60 / int64(c.replicas); c.boundary != 0 {
			k.boundary = ms(c.boundary)
		}
		if got := k.want(noon, c.replicas); got != c.want {
			t.Errorf("%s: %d permits, want %d", c.name, got, c.want)
		}
	}
	k := hot(t, descriptor.Limit{Requests: 100, Burst: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket, Interval: true})
	k.rate, k.remaining, k.boundary = 100, 10, ms(-1)
	if got := k.want(noon, 1); got != 5 {
		t.Errorf("an interval begins with what was left: %d permits, want 5", got)
	}
	k = hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket})
	k.rate, k.remaining, k.boundary = 100, 1200, ms(200)
	if got := k.want(noon, 1); got != 25 {
		t.Errorf("a bucket has no windows: %d permits, want 25", got)
	}
	k = hot(t, descriptor.Limit{})
	k.rate, k.remaining, k.waiting = 100, 1200, ms(1)
	if got := k.want(noon, 1); got != 0 {
		t.Errorf("while the store is in trouble %d permits are wanted", got)
	}
	if got := k.want(ms(1), 1); got != 25 {
		t.Errorf("after the trouble %d permits are wanted, want 25", got)
	}
	k.terms.most = 1200
	if got := k.want(ms(1), 1); got != 25 {
		t.Errorf("%d permits are wanted, want 25", got)
	}
	k.rate = 1e6
	if got := k.want(ms(1), 2); got != 30 {
		t.Errorf("two processes have a fortieth each: %d permits, want 30", got)
	}
}

// The rate is an average over a lease's life, updated eight times in that life.
func TestRateOfUse(t *testing.T) {
	k := hot(t, descriptor.Limit{})
	k.rate, k.count = 100, 30
	k.want(ms(62), 1)
	if k.rate != 100 || k.count != 30 || !k.since.Equal(noon) {
		t.Errorf("the rate is measured too soon: %g", k.rate)
	}
	k.want(ms(62.5), 1)
	if near := 100*0.88249690 + 0.11750310*480; k.rate < near-0.001 || k.rate > near+0.001 || k.count != 0 || !k.since.Equal(ms(62.5)) {
		t.Errorf("100 per second, and then 480 for an eighth of the time, are %g, want %g", k.rate, near)
	}
}

// A lease that is used up in a quarter of its life is followed, within that life, by one of twice its size.
func TestALeaseThatWasTooSmall(t *testing.T) {
	for _, c := range []struct {
		name      string
		used, ask float64 // ms
		left      int64
		rate      float64
		want      int64
	}{
		{"early", 124, 130, 0, 12, 20},
		{"early, and more is used", 124, 130, 0, 100, 25},
		{"not early", 125, 130, 0, 12, 3},
		{"early, and its life is over", 124, 500, 0, 12, 3},
		{"early, and its life is almost over", 124, 499, 0, 12, 20},
		{"not used up", 100, 130, 1, 12, 3},
	} {
		k := hot(t, descriptor.Limit{})
		k.boundary = ms(60_000)
		k.hold(10, noon)
		k.take(10-c.left, ms(c.used))
		if k.pool != c.left || k.count != 10-c.left {
			t.Errorf("%s: %d permits are left, and %d used", c.name, k.pool, k.count)
		}
		k.remaining, k.rate, k.count, k.since = 1200, c.rate, 0, ms(c.ask)
		if got := k.want(ms(c.ask), 1); got != c.want {
			t.Errorf("%s: %d permits are wanted, want %d", c.name, got, c.want)
		}
	}
}

// A take from a lease sees the permits of this replica as unused, and the withheld part of a bucket as used.
func TestAnswersFromALease(t *testing.T) {
	k := hot(t, descriptor.Limit{})
	k.used, k.pool, k.more, k.reset = 100, 10, ms(20), ms(60_000.0005)
	if got, want := k.answer(3, noon), (backend.Outcome{Allowed: true, Before: 87, Used: 90, MoreAfter: 20 * time.Millisecond, ResetAfter: time.Minute}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	k.pool = 99
	if got, want := k.answer(3, ms(70_000)), (backend.Outcome{Allowed: true, Before: 0, Used: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	k = hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket})
	k.used, k.pool = 100, 10
	if got := k.answer(3, noon); got.Before != 97 || got.Used != 100 {
		t.Errorf("%d and %d of a bucket are used, want 97 and 100: 10 are held back", got.Before, got.Used)
	}
}

// After the store's answer, the used and the remaining hits are known, and how many permits are void because denied
// hits counted.
func TestSawAnAnswer(t *testing.T) {
	for _, c := range []struct{ used, pool, void, left int64 }{{100, 10, 0, 1100}, {1200, 10, 0, 0}, {1204, 10, 4, 0}, {1300, 10, 10, 0}} {
		k := hot(t, descriptor.Limit{})
		k.pool = c.pool
		o := backend.Outcome{Used: c.used, MoreAfter: 3 * time.Second, ResetAfter: 5 * time.Second}
		if void := k.saw(&o, noon); void != c.void || k.pool != c.pool-c.void || k.remaining != c.left || k.used != c.used {
			t.Errorf("%d used: %d permits are void, %d are held and %d left, want %d, %d and %d", c.used, void, k.pool, k.remaining, c.void, c.pool-c.void, c.left)
		}
		if !k.more.Equal(ms(3000)) || !k.reset.Equal(ms(5000)) || !k.boundary.Equal(ms(5000)) {
			t.Errorf("more fit at %s, the counter is empty at %s, and the window ends at %s", k.more, k.reset, k.boundary)
		}
	}
	k := hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket})
	if k.saw(&backend.Outcome{ResetAfter: time.Second}, noon); !k.boundary.IsZero() {
		t.Error("a bucket has windows")
	}
}

// Two answers are from the same window if it ends at the same time, give or take a trip and clocks that drift apart by
// a thousandth on each side.
func TestSameWindow(t *testing.T) {
	for _, c := range []struct {
		name          string
		window, later float64 // ms
		sent          float64
		want          bool
	}{
		{"the same", 1000, 1000, 0, true},
		{"a trip apart", 1000, 1050, 0, false},
		{"almost a trip apart", 1000, 1049, 0, true},
		{"earlier by a trip", 1050, 1000, 0, false},
		{"earlier by almost a trip", 1049, 1000, 0, true},
		{"apart by what clocks run apart in a second", 1000, 1052, 1000, false},
		{"almost", 1000, 1051, 1000, true},
	} {
		k := hot(t, descriptor.Limit{})
		k.window, k.boundary, k.sent = ms(c.window), ms(c.later), noon
		if k.same(ms(c.sent)) != c.want {
			t.Errorf("%s: %v", c.name, !c.want)
		}
	}
}

// How many permits of the previous lease still count when the store answers another question.
func TestPermitsThatStillCount(t *testing.T) {
	for _, c := range []struct {
		name   string
		cached bool
		live   bool
		leaps  bool // the store answers from another window
		now    float64
		want   int64
	}{
		{"all of a window", false, false, false, 1000, 10},
		{"not when the window is over", false, false, false, 60_000, 0},
		{"not when the store is in another window", false, true, true, 100, 0},
		{"a denial from memory: what was set aside, while it lives", true, true, true, 100, 6},
		{"and nothing after that", true, true, false, 500, 0},
		{"a denial from memory about dormant permits", true, false, false, 100, 0},
	} {
		k := hot(t, descriptor.Limit{})
		k.boundary = ms(60_000)
		k.hold(10, noon)
		if c.leaps {
			k.boundary = ms(10_000)
		}
		p := forwardedTake{aside: 6, live: c.live}
		if got := k.valid(&p, 10, &backend.Outcome{Cached: c.cached}, reply{sent: ms(c.now), now: ms(c.now)}); got != c.want {
			t.Errorf("%s: %d of 10 permits count, want %d", c.name, got, c.want)
		}
	}
	k := hot(t, descriptor.Limit{Requests: 1200, Window: window(1, descriptor.Minute), Algorithm: descriptor.TokenBucket})
	k.hold(10, noon)
	if got := k.valid(&forwardedTake{aside: 6, live: true}, 10, &backend.Outcome{}, reply{sent: ms(400), now: ms(400)}); got != 6 {
		t.Errorf("of 10 permits of a bucket, %d count, want the 6 that may still be used", got)
	}
}

// A counter is hot after four takes within a lease's life. Other counters may use its slot after that time, or if the
// time is in the future because the clock was set back.
func TestHeat(t *testing.T) {
	sh := &shard{}
	const one, other = 1 << 32, 2 << 32 // two counters with the same slot
	tau := 100 * time.Millisecond
	for i, c := range []struct {
		hash uint64
		ms   float64
		hot  bool
	}{
		{one, 0, false}, {one, 1, false}, {one, 2, false}, {other, 3, false}, {one, 99, true}, {one, 99, true},
		{other, 100, false}, {one, 101, false}, {other, 102, false}, {other, 103, false}, {other, 104, true},
		{one, -401, false}, {one, -401, false}, {one, -401, false}, {one, -401, true},
		{other, -801, false}, {one, -801, true},
		{other, -802, false}, {other, -802, false}, {other, -802, false}, {other, -802, true},
	} {
		if sh.warm(c.hash, tau, nearHot, ms(c.ms)) != c.hot {
			t.Errorf("take %d, of counter %d after %gms: hot is %v", i, c.hash>>32, c.ms, !c.hot)
		}
	}
	if sh.warm(one+shardCount, tau, nearHot, ms(-802)) || sh.heat[0].tag != 2 || sh.heat[1].tag != 1 {
		t.Error("another place is not used by another counter")
	}
}
