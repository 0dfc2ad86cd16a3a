package quota

import (
	"testing"
	"time"
)

// The store does not answer a question with a lower number than an earlier one of this replica. So numbers ascend even
// when the clock is set back, and when a bucket is forgotten and created again while the store still remembers its last
// question.
func TestNumbersAscend(t *testing.T) {
	b := NewSharedBucket(start, hundred)
	last := uint64(0)
	ask := func(at time.Time) {
		t.Helper()
		a := b.Ask(at, "k")
		if a.Number <= last {
			t.Errorf("question %d comes after question %d", a.Number, last)
		}
		last = a.Number
	}
	for range 100 {
		ask(start)
	}
	ask(start.Add(-time.Hour))
	b = NewSharedBucket(start.Add(time.Second), hundred)
	ask(start.Add(time.Second))
	if before := last; before != uint64(start.Add(time.Second).UnixMicro()) {
		t.Errorf("the first number of a bucket is %d, want the time in microseconds", before)
	}
	if a := b.Ask(start, "k"); a.Number != last+1 {
		t.Errorf("question %d comes after question %d, want the next number", a.Number, last)
	}
}

// Only a replica that has had a share reports that it holds one. The saved tokens of a new limit matter only before
// that.
func TestAsksForABeginning(t *testing.T) {
	for _, c := range []struct{ remaining, want float64 }{{-5, 0}, {30, 30}, {500, 100}} {
		k := kit{t, NewSharedBucket(start, hundred)}
		k.b.SetRemaining(c.remaining)
		a := k.b.Ask(start, "k")
		if a.Key != "k" || a.Rate != 100 || a.Burst != 100 || a.Saved != c.want || a.Held || a.Ends || a.Answered != 0 {
			t.Errorf("%g remain: asks %+v", c.remaining, a)
		}
		k.b.Answer(start, Share{Rate: 100, Burst: 100, FairRate: 100, FairBurst: 100, Replicas: 1})
		if next := k.b.Ask(start, "k"); !next.Held || next.Answered != a.Number {
			t.Errorf("after an answer to question %d: asks %+v", a.Number, next)
		}
	}
}

// A replica with more tokens than its fair part returns the saved ones among them.
func TestReturnsWhatIsAboveTheFairPart(t *testing.T) {
	for _, c := range []struct{ fair, returned, held float64 }{{150, 0, 60}, {100, 0, 60}, {70, 30, 30}, {20, 60, 0}} {
		k := kit{t, NewSharedBucket(start, hundred)}
		k.b.SetShare(start, Share{Rate: 100, Burst: 100, FairRate: 100, FairBurst: c.fair, Saved: 10, Replicas: 2})
		a := k.b.Ask(after(0.5), "k") // 50 are saved in this time
		if !near(a.Returned, c.returned) || !near(a.HeldBurst, c.held) || a.HeldRate != 0 {
			t.Errorf("fair %g: returns %g and holds %g and %g per second, want %g, %g and 0", c.fair, a.Returned, a.HeldBurst, a.HeldRate, c.returned, c.held)
		}
		k.out(0, 0, c.held)
	}
}

// The part that a replica cannot return is the part that its clients may still use.
func TestHoldsWhatClientsMayUse(t *testing.T) {
	k := newSharedKit(t, 44)
	k.b.Join(start)
	k.plan(0)                   // hands out all tokens, and 49.7 of 50 per second
	a := k.b.Ask(after(2), "k") // 0.3 per second is saved
	k.is("the rate that is held", a.HeldRate, 49.7)
	k.is("the burst that is held", a.HeldBurst, 44+0.6)
	a = k.b.Ask(after(31), "k")
	k.is("the rate that is held when all has expired", a.HeldRate, 0)
	k.is("the burst that is held when all has expired", a.HeldBurst, 6) // more than 50 were never held or saved
}

// Newcomers together count with a quarter of the limit, in proportion to their number.
func TestDemandOfNewcomers(t *testing.T) {
	k := kit{t, NewSharedBucket(start, hundred)}
	k.b.Join(start).Measured(20)
	k.b.Join(start)
	k.b.Join(start)
	k.b.Join(start)
	k.is("the demand", k.b.Ask(start, "k").Demand, 20+3*100.0/4/4)
}

// Claims are added up, at most to the whole limit. The age is that of the oldest.
func TestAsksForClaims(t *testing.T) {
	for _, c := range []struct {
		rates []float64
		want  float64
	}{{[]float64{30, 20}, 50}, {[]float64{80, 70}, 100}} {
		k := kit{t, NewSharedBucket(start, hundred)}
		for i, rate := range c.rates {
			at := after(float64(2 - 2*i)) // the one that joined last has waited longest
			k.b.Claim(at, k.b.Join(at), rate)
		}
		k.b.Join(start)
		a := k.b.Ask(after(3), "k")
		k.is("the rate that is claimed", a.ClaimRate, c.want)
		if a.ClaimAge != 3*time.Second {
			t.Errorf("the oldest claim is %s old, want 3s", a.ClaimAge)
		}
		k.b.Claim(after(2.5), k.b.Join(after(2.5)), 1)
		if a := k.b.Ask(after(3), "k"); a.ClaimAge != 3*time.Second {
			t.Errorf("the oldest claim is %s old after another one, want 3s", a.ClaimAge)
		}
	}
	k := kit{t, NewSharedBucket(start, hundred)}
	k.b.Claim(start, k.b.Join(start), 0)
	k.is("the claim of a client that was seen to use nothing", k.b.Ask(start, "k").ClaimRate, 1.0/(365*24*3600))
}

// A client waits 14 s for its claim, or until it has nine tenths of it.
func TestAClaimEnds(t *testing.T) {
	claim := func() (kit, *Subscriber) {
		k := kit{t, NewSharedBucket(start, hundred)}
		s := k.b.Join(start)
		k.b.Claim(start, s, 50)
		return k, s
	}
	k, _ := claim()
	k.true("a claim is open before 14s", k.b.Claims(after(14).Add(-1)))
	k.true("a claim is over after 14s", !k.b.Claims(after(14)))
	k.is("the rate that is claimed after 14s", k.b.Ask(after(14), "k").ClaimRate, 0)
	for _, c := range []struct {
		got  float64
		open bool
	}{{44, true}, {45, false}, {46, false}} {
		k, _ := claim()
		k.b.Ask(start, "k")
		k.b.Answer(start, Share{ClaimedRate: c.got, ClaimsOpen: true})
		k.true("a claim is open until it has nine tenths", k.b.Claims(start) == c.open)
	}
	k, _ = claim()
	k.b.Ask(after(1), "k")
	k.b.Claim(after(2), k.b.Join(after(2)), 7) // unknown to the store
	k.b.Answer(after(3), Share{})
	k.is("the rate that is claimed when nothing can be claimed any more", k.b.Ask(after(3), "k").ClaimRate, 7)
	k, _ = claim()
	k.b.Ask(start, "k")
	k.b.Answer(after(3), Share{})
	k.true("a claim of the same moment as the question is answered by it", !k.b.Claims(after(3)))
}

// A granted part is divided in proportion to the open claims of clients, and counts as held until it expires at the
// clients.
func TestGrants(t *testing.T) {
	k := kit{t, NewSharedBucket(start, hundred)}
	x, y := k.b.Join(start), k.b.Join(start)
	k.b.Claim(start, x, 60)
	k.b.Claim(after(1), y, 30)
	k.b.Join(start) // claims nothing
	share := Share{Rate: 45, Burst: 9, FairRate: 45, FairBurst: 9, ClaimedRate: 45, ClaimedBurst: 9, ClaimsOpen: true, Replicas: 2}
	k.b.Ask(after(2), "k")
	k.b.Answer(after(2), share)
	k.out(45, 9, 0)
	k.is("the part of the first", x.rate(), 30)
	k.is("its tokens", x.burst(), 6)
	k.is("the part of the second", y.rate(), 15)
	k.is("its tokens", y.burst(), 3)
	k.is("what is still claimed", k.b.Ask(after(3), "k").ClaimRate, 45)
	share.ClaimedRate, share.ClaimedBurst, share.Rate, share.Burst = 15, 0, 60, 9
	k.b.Answer(after(3), share) // 30 and 15 are missing: 10 and 5 arrive
	k.out(60, 9, 0)
	k.is("the part of the first", x.rate(), 40)
	k.is("the part of the second", y.rate(), 20)
	k.is("what is held before the first expires", k.b.Ask(after(31).Add(-1), "k").HeldRate, 60)
	k.is("what is held when the first has expired", k.b.Ask(after(31), "k").HeldRate, 20)
	k.is("what is held before the second expires", k.b.Ask(after(32).Add(-1), "k").HeldRate, 20)
	k.is("what is held when the second has expired", k.b.Ask(after(32), "k").HeldRate, 0)
}

// A grant for which nobody waits any longer is lost until it has certainly expired: the clients are elsewhere and hold
// it.
func TestAGrantForNobodyIsLost(t *testing.T) {
	k := kit{t, NewSharedBucket(start, hundred)}
	k.b.Join(start)
	k.b.Ask(start, "k")
	k.b.Answer(start, Share{Rate: 40, Burst: 9, FairRate: 40, FairBurst: 9, ClaimedRate: 40, ClaimedBurst: 5, Replicas: 2})
	k.out(40, 5, 0)
	k.is("what is held before 31s", k.b.Ask(after(31).Add(-1), "k").HeldRate, 40)
	a := k.b.Ask(after(31), "k")
	k.is("what is held after 31s", a.HeldRate, 0)
	k.is("tokens after 31s", a.HeldBurst, 0)
}

// A low rate tells little about the client's assignment, and a tenth is never certain.
func TestUncertainty(t *testing.T) {
	for _, c := range []struct{ rate, want float64 }{{0, 1}, {0.6, 0.5}, {3, 0.25}, {19.8, 0.1}, {1000, 0.1}} {
		if got := uncertainty(c.rate); !near(got, c.want) {
			t.Errorf("a claim of %g per second is uncertain to %g, want %g", c.rate, got, c.want)
		}
	}
}

// For 3 s after a grant its uncertain part is not handed out. Another answer does not end that time.
func TestTheUncertainPartIsHandedOutLater(t *testing.T) {
	k := kit{t, NewSharedBucket(start, hundred)}
	for _, rate := range []float64{3, 1000} {
		k.b.Claim(start, k.b.Join(start), rate)
	}
	k.b.Ask(start, "k")
	share := Share{Rate: 60, Burst: 9, FairRate: 60, FairBurst: 9, ClaimedRate: 50.15, ClaimsOpen: true, Replicas: 2}
	k.b.Answer(start, share)
	share.ClaimedRate = 0
	k.b.Answer(after(1), share)
	for _, c := range []struct {
		at   time.Time
		want float64
	}{{start, 60 - 0.15*0.25 - 50*0.1}, {after(3).Add(-1), 60 - 0.15*0.25 - 50*0.1}, {after(3), 60}} {
		k.b.now = c.at
		k.is("what may be handed out", k.b.certainRate(), c.want)
	}
	k.b.Ask(after(1), "k")
	share.ClaimedRate = 95.285
	k.b.Answer(after(1), share)
	k.b.now = after(3.5)
	k.is("what may be handed out after a second grant", k.b.certainRate(), 60-0.285*0.25-95*0.1)
}

// A replica whose question had no answer keeps only the part that it reported as held.
func TestUnanswered(t *testing.T) {
	k := newSharedKit(t, 0)
	k.b.lost = append(k.b.lost, loss{rate: 20, burst: 10, expires: after(30)})
	k.b.sum()
	k.b.Ask(after(0.5), "k") // 15 are saved
	k.b.Unanswered(after(1)) // saves 15 more, unknown to the store
	if s := k.b.Share(); s.Rate != 20 || s.Burst != 25 {
		t.Errorf("a process that held 20 per second and 25 tokens keeps %+v", s)
	}
	k.out(20, 10, 15)
	k.b.SetShare(after(1), Share{Rate: 15, Burst: 12, FairRate: 50, FairBurst: 50})
	k.b.Unanswered(after(2))
	if s := k.b.Share(); s.Rate != 15 || s.Burst != 12 {
		t.Errorf("a share of 15 per second and 12 tokens becomes %+v", s)
	}
	k = newSharedKit(t, 0)
	k.b.Ask(start, "k")
	k.b.Unanswered(after(1)) // 50 were saved before it lost its share
	k.out(0, 0, 0)
	k.b.SetShare(after(1), Share{Rate: 50, Burst: 50, FairRate: 50, FairBurst: 50})
	k.out(0, 0, 0)
	k = newSharedKit(t, 0)
	k.b.SetShare(start, Share{Rate: 50, Burst: 50, FairRate: 50, FairBurst: 50})
	k.b.lost = append(k.b.lost, loss{rate: 20, burst: 10, expires: after(30)})
	k.b.sum()
	k.b.Ask(start, "k")
	k.b.lost = nil
	k.b.sum()
	k.b.Unanswered(after(0.1))
	k.out(0, 0, 5)
}

// A replica that stops keeps only the part that its clients hold: it returns all saved tokens, and asks for nothing.
func TestEnd(t *testing.T) {
	k := newSharedKit(t, 30)
	k.b.lost = append(k.b.lost, loss{rate: 20, burst: 10, expires: after(30)})
	k.b.sum()
	k.b.Join(start).Measured(20)
	k.b.Claim(start, k.b.Join(start), 5)
	k.b.share.FairBurst = 45
	a := k.b.End(after(0.1), "k") // 3 more are saved
	if !a.Ends || a.Demand != 0 || a.ClaimRate != 0 || a.ClaimAge != 0 || a.Key != "k" || !near(a.HeldRate, 20) || !near(a.HeldBurst, 10) || !near(a.Returned, 33) {
		t.Errorf("the last question is %+v", a)
	}
	k.out(20, 10, 0)
}

// Shares move while a replica has clearly more or less than its fair part, or a client waits for its first token.
func TestUnsettled(t *testing.T) {
	for _, c := range []struct {
		rate    float64
		waiting bool
		want    bool
	}{{97, false, true}, {98, false, false}, {100, false, false}, {102, false, false}, {103, false, true}, {100, true, true}} {
		b := NewSharedBucket(start, hundred)
		b.SetShare(start, Share{Rate: c.rate, FairRate: 100})
		b.waiting = c.waiting
		if b.Unsettled() != c.want {
			t.Errorf("a share of %g with the fair part 100, waiting %v: %v", c.rate, c.waiting, !c.want)
		}
	}
}
