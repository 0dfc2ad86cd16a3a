package quota

import (
	"testing"
	"time"
)

// A bucket starts with the given saved tokens, at most its burst.
func TestBeginsWithSavedTokens(t *testing.T) {
	for _, c := range []struct{ saved, want float64 }{{-5, 0}, {50, 50}, {500, 100}} {
		k := newKit(t, hundred, c.saved)
		k.out(0, 0, c.want)
		if s := k.b.Share(); s != (Share{Rate: 100, Burst: 100, FairRate: 100, FairBurst: 100, Replicas: 1}) || k.b.Rate() != hundred {
			t.Errorf("the share of the only process is %+v of %+v", s, k.b.Rate())
		}
	}
	k := kit{t, NewSharedBucket(start, hundred)}
	k.b.save(after(1))
	k.out(0, 0, 0)
}

// A new rate applies from now on. Saved tokens stay, up to the new burst. Envoy ignores a change of the interval.
func TestSetRate(t *testing.T) {
	for _, c := range []struct{ rate, burst, saved float64 }{{50, 20, 20}, {1000, 1000, 30}} {
		k := newKit(t, hundred, 10)
		k.b.SetRate(after(0.2), Rate{PerSecond: c.rate, Burst: c.burst, Interval: time.Second})
		k.out(0, 0, c.saved)
		if r := k.b.Rate(); r != (Rate{PerSecond: c.rate, Burst: c.burst, Interval: hundred.Interval}) {
			t.Errorf("the rate is %+v", r)
		}
		if s := k.b.Share(); s.Rate != c.rate || s.FairRate != c.rate || s.Burst != c.burst || s.FairBurst != c.burst {
			t.Errorf("the share of the only process is %+v", s)
		}
	}
	k := newSharedKit(t, 10)
	k.b.SetWholeRate(Rate{PerSecond: 10, Burst: 5, Interval: time.Second})
	if s := k.b.Share(); s.Rate != 50 || s.Burst != 50 || k.b.Rate() != (Rate{PerSecond: 10, Burst: 5, Interval: hundred.Interval}) {
		t.Errorf("a new rate of the whole limit makes the share %+v of %+v", s, k.b.Rate())
	}
}

// A slowed limit slows its replicas' shares with it. Slow never raises a rate.
func TestSlow(t *testing.T) {
	k := newSharedKit(t, 10)
	k.b.SetShare(start, Share{Rate: 60, Burst: 50, FairRate: 50, FairBurst: 50})
	k.b.Slow(after(0.1), 25)
	k.out(0, 0, 16)
	if s := k.b.Share(); s.Rate != 15 || s.FairRate != 12.5 || s.Burst != 50 || k.b.Rate().PerSecond != 25 {
		t.Errorf("a quarter of 60 and 50 per second is %+v of %+v", s, k.b.Rate())
	}
	k.b.Slow(after(0.1), 30)
	if s := k.b.Share(); s.Rate != 15 || k.b.Rate().PerSecond != 25 {
		t.Errorf("a limit of 25 per second that is slowed down to 30 is %+v of %+v", s, k.b.Rate())
	}
}

// Tokens that come with a share are added to the saved ones, up to the new burst.
func TestSetShare(t *testing.T) {
	for _, c := range []struct{ burst, saved float64 }{{50, 18}, {12, 12}} {
		k := newSharedKit(t, 10)
		k.b.SetShare(after(0.1), Share{Rate: 70, Burst: c.burst, FairRate: 70, FairBurst: 70, Saved: 3, Replicas: 3})
		k.out(0, 0, c.saved)
		if s := k.b.Share(); s.Rate != 70 || s.Burst != c.burst || s.Replicas != 3 {
			t.Errorf("the share is %+v", s)
		}
	}
}

// All subscribers get a fixed assignment, until the rate is divided again. With None, they keep their assignments.
func TestFix(t *testing.T) {
	k := newKit(t, hundred, 100)
	x, y := k.b.Join(start), k.b.Join(start)
	if _, fixed := k.b.Fixed(); fixed {
		t.Error("a new bucket has a fixed assignment")
	}
	k.b.waiting = true
	all := Assignment{Kind: AllowAll, TTL: 10 * time.Second}
	k.b.Fix(all)
	if a, fixed := k.b.Fixed(); a != all || !fixed || k.plan(0) != 2 || x.Held != all || y.Held != all {
		t.Errorf("with a fixed assignment subscribers hold %+v and %+v", x.Held, y.Held)
	}
	k.true("a bucket with a fixed assignment needs no plan", !k.b.NeedsPlan())
	k.true("a fixed assignment is not sent again before half its time", k.plan(5-1e-9) == 0)
	k.true("a fixed assignment is renewed after half its time", k.plan(5) == 2)
	k.b.Fix(Assignment{})
	k.true("nobody is told of no assignment", k.plan(12) == 0)
	k.b.settle(after(12))
	k.true("an assignment that is not over is to be renewed", k.b.Renewal().Equal(after(10)))
	if x.Held != all {
		t.Errorf("with no assignment subscribers hold %+v", x.Held)
	}
	k.true("with no assignment nothing is waited for", !k.b.NeedsPlan())
	k.b.Divide()
	if _, fixed := k.b.Fixed(); fixed || k.plan(12) != 2 || x.Held.Kind != Tokens || y.Held.Kind != Tokens {
		t.Errorf("after a fixed assignment subscribers hold %+v and %+v", x.Held, y.Held)
	}
}

// While there is nothing to divide, all requests are denied, and the bucket waits.
func TestNothingToDivide(t *testing.T) {
	for _, s := range []Share{{}, {Burst: 100, FairBurst: 100}, {Rate: 100, FairRate: 100, Burst: 0.5, FairBurst: 0.5}} {
		k := kit{t, NewSharedBucket(start, hundred)}
		x, y := k.b.Join(start), k.b.Join(start)
		k.b.SetShare(start, s)
		k.plan(0)
		k.holds(x, 0, 0)
		k.holds(y, 0, 0)
		if x.Held.Kind != DenyAll || !k.b.NeedsPlan() || !k.b.Unsettled() {
			t.Errorf("%+v: subscribers hold %+v, and the bucket does not wait", s, x.Held)
		}
		k.b.SetShare(start, Share{Rate: 100, Burst: 100, FairRate: 100, FairBurst: 100, Saved: 100, Replicas: 1})
		k.plan(0)
		if x.Held.Kind != Tokens || y.Held.Kind != Tokens || k.b.NeedsPlan() {
			t.Errorf("%+v: with tokens, subscribers hold %+v and %+v", s, x.Held, y.Held)
		}
	}
	one := Share{Rate: 100, FairRate: 100, Burst: 1, FairBurst: 1, Saved: 1}
	k := kit{t, NewSharedBucket(start, hundred)}
	x := k.b.Join(start)
	k.b.SetShare(start, one)
	k.plan(0)
	k.true("a single token is handed out", x.Held.MaxTokens == 1)
}

// A plan after a report may change something while a subscriber waits, has nothing, or has not confirmed that it was
// lowered.
func TestWhatAReportMayChange(t *testing.T) {
	k := newKit(t, hundred, 100)
	s := k.b.Join(start)
	needs := func(what string, want bool) {
		t.Helper()
		k.true(what+": another plan", k.b.NeedsPlan() == want)
		k.true(what+": a plan after the report", k.b.Report(after(1), s, 0, 0) == want)
	}
	needs("without an assignment", true)
	k.plan(1)
	needs("with an assignment", false)
	k.b.waiting = true
	needs("while one waits", true)
	k.b.waiting = false
	k.b.SetRate(after(1), Rate{PerSecond: 50, Burst: 50})
	k.plan(1)
	needs("with an assignment that was lowered", true)
	k.b.Fix(s.Held)
	k.true("with a fixed assignment", !k.b.NeedsPlan())
	k.b.Divide()
	k.b.Report(after(2), s, 0, 0)
	needs("after the report that confirms it", false)
	k.b.Leave(after(2), s)
	k.true("without subscribers", !k.b.NeedsPlan())
}

// An assignment is renewed after half its TTL. Renewal returns the first time of all.
func TestRenewal(t *testing.T) {
	k := newKit(t, hundred, 100)
	k.true("nothing is to be renewed at first", k.b.Renewal().IsZero())
	k.b.Fix(Assignment{Kind: AllowAll, TTL: 30 * time.Second})
	var all []*Subscriber
	for i := range 3 {
		all = append(all, k.b.Join(after(float64(i))))
		k.plan(float64(i))
	}
	all[0].Sent(after(1.5))
	k.b.Join(after(2))
	if at := k.b.Renewal(); !at.Equal(after(16)) {
		t.Errorf("the first renewal is after %s, want 16s: the second subscriber was told after 1s", at.Sub(start))
	}
	k.b.Leave(after(2), all[1])
	if at := k.b.Renewal(); !at.Equal(after(16.5)) {
		t.Errorf("the first renewal is after %s, want 16.5s", at.Sub(start))
	}
	k.b.settle(after(100))
	k.true("what has expired is not renewed", k.b.Renewal().IsZero())
	k = newKit(t, hundred, 100)
	k.b.Join(start)
	k.plan(0)
	k.true("an assignment is not renewed before 15s", k.plan(15-1e-9) == 0)
	k.true("it is renewed after 15s", len(k.b.Plan(after(15))) == 1)
	k.true("one that has not been written yet is not written twice", k.plan(16) == 0)
	k.true("one that has not been written is not to be renewed", k.b.Renewal().IsZero())
}

// The assignment of a subscriber that left is lost until it has certainly expired at the client: a second after its
// TTL.
func TestLeave(t *testing.T) {
	k := newKit(t, hundred, 100)
	s := k.b.Join(start)
	k.plan(0)
	k.out(98, 88, 12)
	k.b.Leave(after(1), s)
	k.out(98, 88, 12)
	k.b.settle(after(31).Add(-1))
	k.out(98, 88, 12)
	k.b.settle(after(31))
	k.out(0, 0, 12)

	k = newKit(t, hundred, 100) // the assignment was not recorded as written, but may still arrive
	s = k.b.Join(start)
	k.b.Plan(start)
	k.b.Leave(after(1), s)
	k.b.settle(after(32).Add(-1))
	k.out(98, 88, 12)
	k.b.settle(after(32))
	k.out(0, 0, 12)

	k = newKit(t, hundred, 100) // the client may still use an earlier assignment that lasts longer
	s = k.b.Join(start)
	k.plan(0)
	k.b.Fix(Assignment{Kind: DenyAll, TTL: 5 * time.Second})
	k.plan(1)
	k.b.Leave(after(2), s)
	k.b.settle(after(31).Add(-1))
	k.out(98, 88, 12)
	k.b.settle(after(31))
	k.out(0, 0, 12)

	k = newKit(t, hundred, 0) // an expired assignment is not lost; until now its rate was not saved
	s = k.b.Join(start)
	k.plan(0.2)
	k.b.Leave(after(40), s)
	k.out(0, 0, 2*(40-0.2))
}

// A subscriber that held nothing leaves no loss.
func TestLeaveWithNothing(t *testing.T) {
	k := newKit(t, hundred, 100)
	s := k.b.Join(start)
	k.true("a bucket with a subscriber is not like a new one", !k.b.Full(start))
	k.b.Leave(start, s)
	k.true("a bucket that nobody held anything of is like a new one", k.b.Full(start))
	k.b.saved = 99
	k.true("a bucket that lacks a token is not like a new one", !k.b.Full(start))
	k.true("a bucket fills in time", k.b.Full(after(0.02)))
	k.b.Ask(after(0.02), "k")
	k.b.Answer(after(0.02), Share{Rate: 100, Burst: 100, FairRate: 100, FairBurst: 100, ClaimedRate: 10})
	k.true("a bucket that a lost client holds a rate of is not like a new one", !k.b.Full(after(1)))
}

// A subscriber that must forget the bucket returns its rate and tokens immediately.
func TestForget(t *testing.T) {
	k := newKit(t, hundred, 88)
	x := k.b.Join(start)
	k.plan(0)
	y := k.b.Join(start)
	k.b.Forget(after(1), x)
	k.out(0, 0, 2) // 2 per second were saved until then
	if all := k.b.Subscribers(); len(all) != 1 || all[0] != y {
		t.Errorf("%d subscribers are left", len(all))
	}
	k.b.Forget(after(1), y)
	k.true("no subscriber is left", len(k.b.Subscribers()) == 0)
}

// A client that returns gets the assignment of the smallest lost client, if that includes a token and has not expired.
// It keeps the assignment until it expires, and its bucket costs no tokens that the client already has.
func TestReturn(t *testing.T) {
	back := func(losses ...loss) (kit, *Subscriber, bool) {
		k := newKit(t, hundred, 10)
		k.b.lost = losses
		k.b.sum()
		s := k.b.Join(after(0.1))
		return k, s, k.b.Return(after(0.1), s, 7)
	}
	k, s, found := back(loss{rate: 30, burst: 20, expires: after(20)}, loss{rate: 10, burst: 8, expires: after(20)}, loss{rate: 20, burst: 1, expires: after(20)},
		loss{rate: 5, burst: 0.5, expires: after(20)}, loss{rate: 5, burst: 9, expires: after(0.1)})
	if !found || s.rate() != 10 || s.burst() != 8 || s.Demand != 7 || len(k.b.lost) != 4 {
		t.Errorf("a client got back %g per second and %g tokens, %v", s.rate(), s.burst(), found)
	}
	k.out(70, 38.5, 10+3)
	k.plan(0.1)
	k.holds(s, 45, 21) // 35 more per second were free, and 13 tokens
	k.is("what is saved when its bucket is paid for", k.b.saved, 0)
	k.true("its demand is known", s.reports == 1)

	k, s, _ = back(loss{rate: 10, burst: 8, expires: after(20)})
	k.b.settle(after(20).Add(-1))
	k.is("what it holds before that expires", s.rate(), 10)
	k.b.settle(after(20))
	k.is("what it holds when that has expired", s.rate(), 0)
	k.b.save(after(20))
	k.b.saved = 3
	k.b.Report(after(20), s, 1, 0)
	k.plan(20)
	k.true("what has expired brings no tokens", s.Held.MaxTokens == 3)

	k, _, found = back(loss{rate: 10, burst: 1, expires: after(20)}, loss{rate: 10, burst: 2, expires: after(20)})
	k.true("of two equal ones it gets the first", found && k.b.lost[0].burst == 2)
	for _, l := range [][]loss{nil, {{rate: 5, burst: 0.5, expires: after(20)}}, {{rate: 5, burst: 9, expires: after(0.1)}}} {
		k, s, found = back(l...)
		if found || s.rate() != 0 || s.Demand != 0 || len(k.b.lost) != len(l) {
			t.Errorf("of %+v a client gets back %g per second, %v", l, s.rate(), found)
		}
	}
}

// Tokens are saved at the rate that no client may use, up to the burst less the tokens that clients may have.
func TestSaves(t *testing.T) {
	k := newKit(t, hundred, 0)
	for _, c := range []struct{ seconds, rate, burst, saved float64 }{
		{0.1, 60, 50, 10},  // nothing was held before
		{0.2, 60, 50, 14},  // 40 per second
		{0.3, 130, 50, 18}, // 40
		{0.4, 130, 50, 18}, // more is held than there is
		{0.4, 60, 90, 10},  // more tokens are held
		{0.3, 0, 90, 10},   // the clock is set back
		{0.4, 0, 0, 10},    // and is right again: that time is not counted twice
		{0.5, 0, 150, 0},   // too much is held
		{0.6, 0, 100, 0}, {1, 0, 0, 0}, {3, 0, 0, 100},
	} {
		k.b.save(after(c.seconds))
		k.b.lost = []loss{{rate: c.rate, burst: c.burst}}
		k.b.sum()
		k.b.capSaved()
		k.out(c.rate, c.burst, c.saved)
	}
}

// Tokens that a client lost are not saved while clients already hold the whole burst.
func TestSavesNoMoreThanTheShare(t *testing.T) {
	k := newKit(t, hundred, 0)
	s := k.client(98, 88, 10)
	k.b.SetShare(start, Share{Rate: 100, FairRate: 100, Burst: 20, FairBurst: 20})
	k.plan(0)
	k.b.Report(after(1), s, 0, 0) // it had 88 tokens, and has 18
	k.out(98, 18, 2)
}

// Until the next plan, expired assignments still count: the client's clock and this one may differ.
func TestExpiryCountsFromThePlan(t *testing.T) {
	k := newKit(t, hundred, 88)
	s := k.b.Join(start)
	k.plan(0) // 98 per second, and all tokens
	k.out(98, 88, 0)
	k.b.Plan(after(33)) // 2 per second were saved, up to 12
	k.is("what is saved", k.b.saved+float64(s.Held.MaxTokens), 12)
	k = newKit(t, hundred, 88)
	k.b.Join(start)
	k.plan(0)
	k.b.Fix(Assignment{Kind: DenyAll, TTL: 30 * time.Second})
	k.plan(33)
	k.out(0, 0, 12)
}
