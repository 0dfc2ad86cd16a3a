package region

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// When the home's limit was lowered, an account gives up what it holds with the first answer that says so, and its next question returns it.
func TestLoweredLimit(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	now := int64(noon)
	q := s.ask(now, 100)
	ans := s.c.Exchange(at(now), s.l, s.d, &q)
	if !s.a.Apply(at(now), &ans) || s.a.Left(now) != 100 {
		t.Fatalf("%d permits of %+v", s.a.Left(now), ans)
	}
	s.a.Take(at(now), 60)

	lower := *s.l
	lower.Requests = 80
	if err := lower.Compile(); err != nil {
		t.Fatal(err)
	}
	now += second / 2
	q = s.ask(now, 50)
	ans = s.c.Exchange(at(now), &lower, s.d, &q)
	if ans.Limit != 80 || ans.Result != Full {
		t.Fatalf("%+v: the account holds all that is left", ans)
	}
	if !s.a.Apply(at(now), &ans) || s.a.Left(now) != 0 {
		t.Fatalf("%d permits are left; they may exceed the new limit", s.a.Left(now))
	}

	now += second
	q = s.ask(now, 30)
	ans = s.c.Exchange(at(now), &lower, s.d, &q)
	if !s.a.Apply(at(now), &ans) || s.a.Left(now) != 20 {
		t.Errorf("%d permits after %+v: 60 of 80 were used", s.a.Left(now), ans)
	}

	now += second // a higher limit takes nothing away
	q = s.ask(now, 40)
	ans = s.c.Exchange(at(now), s.l, s.d, &q)
	if !s.a.Apply(at(now), &ans) || s.a.Left(now) < 40 {
		t.Errorf("%d permits after %+v", s.a.Left(now), ans)
	}
}

// While an account holds permits and is used, it asks once a second. Such a question reports, and is granted nothing; and it does not look like
// a grant that was used up fast.
func TestRefresh(t *testing.T) {
	s := newSystem(t, descriptor.Limit{Requests: 60_000})
	now := int64(noon)
	q := s.ask(now, 1000)
	ans := s.c.Exchange(at(now), s.l, s.d, &q)
	s.a.Apply(at(now), &ans)
	for range 4 {
		now += refresh - 1
		if s.a.Take(at(now), 10).Due {
			t.Fatal("it asks again within a second")
		}
		now++
		if !s.a.Take(at(now), 10).Due {
			t.Fatal("it does not ask after a second")
		}
		q = s.ask(now, 0)
		if q.Want > 0 || q.Need > 0 {
			t.Fatalf("%+v: it needs nothing", q)
		}
		ans = s.c.Exchange(at(now), s.l, s.d, &q)
		s.a.Apply(at(now), &ans)
	}
	s.a.Take(at(now), s.a.Left(now)-1) // half empty
	now += 10_000
	if s.a.Take(at(now), 1); !s.a.due(at(now), 0) {
		t.Fatal("it is empty and does not ask")
	}
	if q = s.ask(now, 0); q.Want <= 0 || q.Want >= 2*s.a.demand.size {
		t.Errorf("it wants %d: the last grant of %d lasted for 4 s", q.Want, s.a.demand.size)
	}
}

// While the home's rules are known to be those of the last answer, an account asks less often. It asks once a second if they are others, or
// not known, or if the home does not say by which it answers.
func TestRefreshOfKnownRules(t *testing.T) {
	for _, c := range []struct {
		answer, known uint64
		after         int64
	}{{0, 0, refresh}, {0, 7, refresh}, {7, 0, refresh}, {7, 8, refresh}, {7, 7, rarely}} {
		s := newSystem(t, descriptor.Limit{Requests: 60_000})
		q := s.ask(noon, 1000)
		ans := s.c.Exchange(at(noon), s.l, s.d, &q)
		ans.Rules = c.answer
		s.a.Apply(at(noon), &ans)
		r := at(noon + c.after - 1)
		r.Rules = c.known
		if s.a.Take(r, 10).Due {
			t.Errorf("%+v: it asks earlier", c)
		}
		r.Now++
		if !s.a.Take(r, 10).Due {
			t.Errorf("%+v: it does not ask", c)
		}
		if q, ok := s.a.Ask(r, "b", s.d.Epoch, 0, 9); !ok || q.Want > 0 {
			t.Errorf("%+v: %+v, %v", c, q, ok)
		}
		ans = Answer{Epoch: ans.Epoch, Incarnation: ans.Incarnation, Number: ans.Number + 1, Nonce: 9, Result: Enough, Limit: ans.Limit}
		if s.a.Apply(r, &ans); s.a.Rules != 0 {
			t.Errorf("%+v: by rules %d after an answer that names none", c, s.a.Rules)
		}
	}
}

// Hits that are given back can be used again, as long as the grant that they are from may be used.
func TestGiveBack(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	now := int64(noon)
	q := s.ask(now, 100)
	ans := s.c.Exchange(at(now), s.l, s.d, &q)
	s.a.Apply(at(now), &ans)
	s.a.Take(at(now), 60)
	if s.a.GiveBack(at(now), 61) || s.a.Left(now) != 40 {
		t.Errorf("more was given back than used: %d permits", s.a.Left(now))
	}
	if !s.a.GiveBack(at(now), 10) || s.a.Left(now) != 50 {
		t.Errorf("%d permits", s.a.Left(now))
	}
	end := s.a.Grants[0].Expires
	if s.a.GiveBack(at(end), 10) || s.a.Left(end) != 0 {
		t.Errorf("%d permits of a grant that has ended", s.a.Left(end))
	}
	if s.a.GiveBack(at(now), 10) || s.a.Left(now) > 0 { // the clock was set back: everything was given up
		t.Errorf("%d permits after the clock was set back", s.a.Left(now))
	}
}

// A home that is reset forgets what was used, and not what other regions hold. A home that begins takes over what its region has
// counted.
func TestResetAndInherit(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	now := int64(noon)
	if !s.c.Fresh() {
		t.Error("a new counter was used before")
	}
	s.c.Inherit(at(now), s.l, s.d, 100)
	if o, ok := s.c.Take(at(now), s.l, s.d, 1); !ok || o.Used != 101 || s.c.Fresh() {
		t.Fatalf("%+v: 100 were used before", o)
	}
	q := s.ask(now, 50)
	ans := s.c.Exchange(at(now), s.l, s.d, &q)
	s.a.Apply(at(now), &ans)
	s.a.Take(at(now), 30)
	now += 2 * second // it returns 20, and reports 30 as used
	q = s.ask(now, 0)
	ans = s.c.Exchange(at(now), s.l, s.d, &q)
	s.a.Apply(at(now), &ans)
	if o, _ := s.c.Take(at(now), s.l, s.d, 0); o.Used != 131 {
		t.Fatalf("%d used, want 131", o.Used)
	}
	q = s.ask(now+second, 40)
	if ans = s.c.Exchange(at(now+second), s.l, s.d, &q); ans.Permits < 40 {
		t.Fatalf("%+v", ans)
	}
	if !s.c.Reset(at(now+second), s.l, s.d) {
		t.Fatal("the home does not act")
	}
	if o, _ := s.c.Take(at(now+second), s.l, s.d, 0); o.Used != ans.Permits {
		t.Errorf("%d used, want the %d that the account may use", o.Used, ans.Permits)
	}
	if s.c.Expires(now, s.l) < now+minuteLong || s.a.Expires(now) < now+pastLife {
		t.Errorf("the records end at %d and %d, now is %d", s.c.Expires(now, s.l), s.a.Expires(now), now)
	}
	idle := *s.d
	idle.Until = now
	if s.c.Reset(at(now+second), s.l, &idle) {
		t.Error("a home that may not act was reset")
	}
}

const minuteLong = 60 * second
