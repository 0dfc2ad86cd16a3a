package region

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// What was taken from offers was taken from permits that are still valid, the oldest first, as far as these suffice; the rest from those that
// have expired since, beginning with the last.
func TestSpent(t *testing.T) {
	grants := []Grant{
		{Number: 1, Permits: 10, Used: 4, Expires: noon + 1*second},
		{Number: 2, Permits: 10, Returned: 7, Expires: noon + 3*second},
		{Number: 3, Permits: 10, Expires: noon + 8*second},
		{Number: 4, Permits: 10, Expires: noon + 9*second},
	}
	for _, c := range []struct {
		now, hits int64
		used      [4]int64
	}{
		{noon, 0, [4]int64{4, 0, 0, 0}},
		{noon, 7, [4]int64{10, 1, 0, 0}},
		{noon, 29, [4]int64{10, 3, 10, 10}},
		{noon + 3*second, 5, [4]int64{4, 0, 5, 0}},
		{noon + 3*second, 20, [4]int64{4, 0, 10, 10}},
		{noon + 3*second, 22, [4]int64{4, 2, 10, 10}},
		{noon + 3*second, 25, [4]int64{6, 3, 10, 10}},
		{noon + 3*second, 99, [4]int64{10, 3, 10, 10}}, // a record that has lost writes
		{noon + 9*second, 15, [4]int64{4, 0, 5, 10}},
	} {
		a := Account{Grants: append([]Grant(nil), grants...)}
		a.demand = demand{count: 3, last: noon - second}
		a.Spent(c.now, c.hits, c.now)
		for i, want := range c.used {
			if got := a.Grants[i].Used; got != want {
				t.Errorf("%d hits at %d: %d of grant %d are used, want %d", c.hits, c.now-noon, got, i+1, want)
			}
		}
		if c.hits > 0 && (a.demand.count != 3+c.hits || a.demand.last != c.now) {
			t.Errorf("%d hits at %d: demand %+v", c.hits, c.now-noon, a.demand)
		}
		if c.hits == 0 && a.demand.last != noon-second {
			t.Error("an account of which nothing was taken is in use")
		}
	}
	a := Account{demand: demand{last: noon}}
	if a.Spent(noon-second, 1, noon-second); a.demand.last != noon {
		t.Error("the last take was earlier than it was")
	}
}

// An offer ends when a step could find something else: when the first permits expire, and when it is time to ask.
func TestOffer(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	if o := s.a.Offer(noon); o.Left != 0 || o.Until != never {
		t.Errorf("of nothing: %+v", o)
	}
	s.hold(noon, 20)
	s.hold(noon+2*second, 30)
	s.take(noon+2*second, 5, true)
	now := int64(noon + 2*second)
	o := s.a.Offer(now)
	if o.Left != 45 || o.Until != s.a.Grants[0].Expires || o.Low != s.a.demand.size/2 || o.Remaining != s.a.Remaining || o.Full {
		t.Errorf("%+v of %+v", o, s.a)
	}
	if o := s.a.Offer(s.a.Grants[0].Expires); o.Left != 30 || o.Until != s.a.Grants[1].Expires {
		t.Errorf("after the first permits have expired: %+v", o)
	}
	// It is time for a step when Due says so: for an account in use, whatever is left.
	known := uint64(0)
	for _, change := range []func(){
		func() {},
		func() { s.a.Rules, known = 7, 7 },
		func() { known = 8 },
		func() { s.a.Again = now + 3*second },
		func() { s.a.Full = true },
		func() { s.a.Waiting = true },
	} {
		change()
		for left := int64(1); left <= 45; left++ {
			for at := now; at < now+5*second; at += second / 20 {
				b, o := s.a, s.a.Offer(now)
				b.Grants = append([]Grant(nil), s.a.Grants...)
				b.Spent(at, 45-left, at)
				b.demand.last = at
				b.demand.rate = 100 // it has nothing to return
				due := left < o.Low && at >= o.Again || at >= o.Due && (o.Rules == 0 || o.Rules != known)
				if want := b.Due(Reading{Now: at, Rules: known}, 0); due != want {
					t.Fatalf("%d left after %d us: due %v, want %v: %+v", left, at-now, due, want, o)
				}
			}
		}
	}
	if o := s.a.Offer(now); !o.Full || o.Again != now+3*second {
		t.Errorf("%+v of a full one", o)
	}
}
