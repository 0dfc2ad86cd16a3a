package region

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const (
	noon  = 1_800_000_000 * second // a boundary of minutes
	fixed = 600
	three = 3 // regions
)

func perMinute(t *testing.T, l descriptor.Limit) *descriptor.Limit {
	t.Helper()
	if l.Window.Unit == 0 {
		l.Window.Unit = descriptor.Minute
	}
	if l.Requests == 0 {
		l.Requests = fixed
	}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return &l
}

func at(now int64) Reading { return Reading{Now: now, Least: math.MinInt64} }

func duty() *Duty { return &Duty{Epoch: 1, Regions: three, Until: never, Grants: true} }

// system is one home and one account, whose clocks show the same.
type system struct {
	t *testing.T
	l *descriptor.Limit
	c Counter
	a Account
	d *Duty
	n uint64 // random numbers
}

func newSystem(t *testing.T, l descriptor.Limit) *system {
	t.Helper()
	return &system{t: t, l: perMinute(t, l), d: duty(), n: 100}
}

func (s *system) ask(now, need int64) Question {
	s.t.Helper()
	s.n++
	q, ok := s.a.Ask(at(now), "b", s.d.Epoch, need, s.n)
	if !ok {
		s.t.Fatal("the account asks nothing")
	}
	return q
}

func (s *system) answer(now int64, q Question) Answer { return s.c.Exchange(at(now), s.l, s.d, &q) }

// hold makes the account hold permits.
func (s *system) hold(now, permits int64) Answer {
	s.t.Helper()
	s.a.demand = demand{last: now, since: now, size: s.a.Left(now)}
	a := s.answer(now, s.ask(now, permits))
	if a.Result != Granted || a.Permits != permits || !s.a.Apply(at(now), &a) {
		s.t.Fatalf("asked for %d permits: %+v", permits, a)
	}
	return a
}

func (s *system) take(now, hits int64, allowed bool) Taken {
	s.t.Helper()
	taken := s.a.Take(at(now), hits)
	if taken.Allowed != allowed {
		s.t.Fatalf("took %d at %d: %+v", hits, now-noon, taken)
	}
	return taken
}

// counted is what the home has counted.
func (s *system) counted(now int64) int64 {
	s.t.Helper()
	o, ok := s.c.Take(at(now), s.l, s.d, 0)
	if !ok {
		s.t.Fatal("the home does not act")
	}
	return o.Used
}

func (s *system) wantCounted(now, want int64) {
	s.t.Helper()
	if got := s.counted(now); got != want {
		s.t.Errorf("the home has counted %d, want %d", got, want)
	}
}

func TestAnAnswerIsAppliedOnce(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	q := s.ask(noon, 10)
	a := s.answer(noon, q)
	for name, other := range map[string]func(*Answer){
		"number":      func(a *Answer) { a.Number++ },
		"nonce":       func(a *Answer) { a.Nonce++ },
		"incarnation": func(a *Answer) { a.Incarnation++ },
		"epoch":       func(a *Answer) { a.Epoch++ },
	} {
		wrong := a
		other(&wrong)
		if s.a.Apply(at(noon), &wrong) {
			t.Errorf("an answer with another %s was applied", name)
		}
	}
	if !s.a.Apply(at(noon), &a) || s.a.Apply(at(noon), &a) {
		t.Error("an answer is applied exactly once")
	}
	s.take(noon, 10, true)
	s.take(noon, 1, false)
}

func TestAQuestionIsAnsweredOnce(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	q := s.ask(noon, 10)
	first := s.answer(noon, q)
	again := s.answer(noon+10*second, q)
	s.wantCounted(noon+10*second, 10)
	if again.Permits != 10 || again.ValidFor != first.ValidFor-10*second {
		t.Errorf("the second answer is %+v", again)
	}
	other := q
	other.Nonce++
	if a := s.answer(noon, other); a.Result != Stale {
		t.Errorf("another question with that number: %+v", a)
	}
	if gone := s.answer(noon+50*second, q); gone.ValidFor != 0 {
		t.Errorf("after its life: %+v", gone)
	}
	s.a.Apply(at(noon), &first)
	s.take(noon, 10, true)
	s.ask(noon+second, 1)
	old := q
	q = s.a.Question
	s.answer(noon+second, q)
	if a := s.answer(noon+second, old); a.Result != Stale {
		t.Errorf("an older question: %+v", a)
	}
	if ok := s.a.Apply(at(noon+second), &Answer{Epoch: 1, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Result: Stale}); !ok || s.a.Incarnation != 0 || len(s.a.Grants) != 0 {
		t.Errorf("a stale account goes on: %+v", s.a)
	}
}

func TestPermitsExpire(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	q := s.ask(noon, 10)
	a := s.answer(noon+second, q) // the question took a second
	if a.ValidFor != longestLife || a.Ends != noon+60*second {
		t.Fatalf("%+v", a)
	}
	s.a.Apply(at(noon+2*second), &a)
	last := int64(noon) + longestLife - longestLife/drift - 1 - unnoticed - 1
	if got := s.a.Left(last); got != 10 {
		t.Errorf("%d are left just before the end", got)
	}
	if got := s.a.Left(last + 1); got != 0 {
		t.Errorf("%d are left at the end", got)
	}
	s.take(last+1, 1, false)

	// Near the end of its window, a grant ends with it.
	a = s.answer(noon+50*second, s.ask(noon+50*second, 5))
	if a.ValidFor != 10*second {
		t.Errorf("10 s before the end of the window: %+v", a)
	}
	// An answer that comes too late is not used, and goes back.
	if !s.a.Apply(at(noon+59_990_000), &a) || s.a.Left(noon+59_990_000) != 0 || s.a.Grants[len(s.a.Grants)-1].Returned != 5 {
		t.Error("an answer that came too late is used")
	}
}

func TestReturnsAreFreeOnce(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	s.hold(noon, 10)
	s.take(noon+100, 3, true)
	s.wantCounted(noon+100, 10)
	// Idle: what is left goes back.
	if s.a.Take(at(noon+100), 0).Due {
		t.Error("a busy account returns something")
	}
	q := s.ask(noon+5*second, 0)
	if g := q.Grants[0]; g.Used != 3 || g.Returned != 7 || q.Want > 0 {
		t.Errorf("%+v", q)
	}
	s.take(noon+5*second, 1, false)
	for range 3 {
		s.answer(noon+6*second, q)
		s.wantCounted(noon+6*second, 3)
	}
	// The same report in a later question changes nothing either, and the next window is not touched.
	late := q
	late.Number, late.Nonce = q.Number+1, 999
	s.answer(noon+7*second, late)
	s.wantCounted(noon+7*second, 3)
	late.Number, late.Nonce = q.Number+2, 1000
	s.answer(noon+61*second, late)
	s.wantCounted(noon+61*second, 0)
}

func TestALostAnswerIsFreeAgain(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	s.answer(noon, s.ask(noon, 10)) // its answer is lost
	if _, ok := s.a.Ask(at(noon+patience-1), "b", 1, 1, 7); ok {
		t.Error("the account does not wait for the answer")
	}
	again, ok := s.a.Ask(at(noon+patience), "b", 1, 99, 7)
	if !ok || again.Number != 1 || again.Need != 10 || again.Nonce != s.a.Question.Nonce {
		t.Errorf("the question is not repeated as it was: %+v", again)
	}
	next, ok := s.a.Ask(at(noon+longestLife), "b", 1, 20, 7)
	if !ok || next.Number != 2 || next.Need != 20 {
		t.Fatalf("the account waits for ever: %+v", next)
	}
	s.c.Take(at(noon), s.l, s.d, 100)
	s.answer(noon+longestLife, next)
	s.wantCounted(noon+longestLife, 120)
	next.Number, next.Nonce, next.Need = 3, 9, 0 // its second answer is lost, too
	s.answer(noon+longestLife, next)
	s.wantCounted(noon+longestLife, 100)
	next.Number, next.Nonce = 4, 10
	s.answer(noon+longestLife, next)
	s.wantCounted(noon+longestLife, 100)
	// What a caller does with a question does not change the account's.
	s.a.Ask(at(noon+longestLife+patience), "b", 1, 1, 7)
	s.a.Question.Grants = []Grant{{Number: 1}}
	q, _ := s.a.Ask(at(noon+longestLife+2*patience), "b", 1, 1, 7)
	if q.Grants[0].Number = 99; s.a.Question.Grants[0].Number != 1 {
		t.Error("the question is shared")
	}
}

func TestAFlushedAccountBeginsWithNothing(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	first := s.hold(noon, 10)
	s.a = Account{}
	s.take(noon, 1, false)
	s.c.Peers[0].Number = 3 // the lost one has asked more often
	s.hold(noon+second, 5)
	if s.a.Incarnation == first.Incarnation {
		t.Fatal("the same incarnation")
	}
	s.wantCounted(noon+second, 15) // what the lost one held counts as used
	if s.a.Apply(at(noon+second), &first) {
		t.Error("an answer for the lost account is applied")
	}
	late := Question{Region: "b", Epoch: 1, Incarnation: first.Incarnation, Number: 2, Nonce: 5, Need: 1}
	if a := s.answer(noon+second, late); a.Result != Stale {
		t.Errorf("a late question of the lost account: %+v", a)
	}
	if got := s.c.held(noon + second); got != 15 {
		t.Errorf("%d are held", got)
	}
	c, account := s.c, s.a
	s.a = Account{}
	s.c.Peers = slices.Clone(c.Peers)
	s.hold(noon+2*second, 2) // with the number that the one before has used
	s.c, s.a = c, account
	s.c.State.Count = 15
	s.answer(noon+3*second, s.ask(noon+3*second, 1))
	s.wantCounted(noon+3*second, 11) // the new one has returned 5 and got one; the lost one is not asked
	s.ask(noon+40*second, 1)
	s.answer(noon+40*second, s.a.Question)
	if n := len(s.c.Peers[0].Grants); n != 1 {
		t.Errorf("%d grants are kept", n)
	}
}

func TestAForgetfulHomeChargesAgain(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	s.hold(noon, 10)
	s.take(noon, 6, true)
	s.hold(noon+second, 20)
	s.c = Counter{}
	a := s.answer(noon+2*second, s.ask(noon+5*second, 3))
	if a.Result != Inactive || a.RetryAfter != pastLife {
		t.Errorf("it grants while others may come with what it has forgotten: %+v", a)
	}
	if s.c.Learning != noon+2*second+pastLife {
		t.Errorf("it learns until %d", s.c.Learning-noon)
	}
	// 10 of which 4 go back, and 20 of which all go back
	s.wantCounted(noon+2*second, 6)
	s.a.Apply(at(noon+5*second), &a)
	s.c.Learning = noon + 6*second
	a = s.answer(noon+6*second, s.ask(noon+8*second, 3))
	if a.Result != Granted {
		t.Errorf("after that time: %+v", a)
	}

	// A clock that was set back does not prolong that time.
	s.a.Apply(at(noon+8*second), &a)
	s.take(noon+8*second, 3, true)
	s.c.Learning = noon + 1000*second
	if a = s.answer(noon+9*second, s.ask(noon+9*second, 3)); a.Result != Granted {
		t.Errorf("%+v", a)
	}
	if s.c.Peers[0].Settled == 0 {
		t.Error("nothing is settled")
	}

	// What the account has of an old window is not charged to this one.
	s = newSystem(t, descriptor.Limit{})
	s.hold(noon+55*second, 10)
	s.take(noon+55*second, 10, true)
	s.c = Counter{}
	a = s.answer(noon+61*second, s.ask(noon+61*second, 1))
	if a.Result != Granted || s.c.Learning != 0 {
		t.Errorf("%+v", a)
	}
	s.wantCounted(noon+61*second, 1)

	// A log that is full forgets what is added beyond. So what goes back at once is not added before.
	s = newSystem(t, descriptor.Limit{Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 100}})
	s.hold(noon, 10)
	s.take(noon, 2, true)
	s.c = Counter{}
	s.c.Take(at(noon+second), s.l, s.d, 600)
	s.answer(noon+3*second, s.ask(noon+3*second, 0))
	s.wantCounted(noon+3*second, 600)

	// Permits of which the home knows fewer: another answer to this number was lost with the data.
	s = newSystem(t, descriptor.Limit{})
	s.hold(noon, 10)
	s.c.Peers[0].Grants[0].Permits = 4
	s.answer(noon+second, s.ask(noon+3*second, 1))
	if g := s.c.Peers[0].Grants; len(g) != 0 || s.c.Learning == 0 {
		t.Errorf("%+v", s.c)
	}
	// Reports never take anything back, and never say more than there is.
	g := Grant{Incarnation: 1, Number: 1, Permits: 10, Used: 3, Returned: 2, Charged: noon, Ends: noon + 60*second}
	for name, y := range map[string]struct{ permits, used, returned, wantUsed, wantReturned int64 }{
		"less":       {4, 1, 1, 3, 2},
		"more":       {10, 4, 5, 4, 5},
		"all used":   {10, 8, 2, 8, 2},
		"too much":   {10, 20, 2, 8, 2},
		"all back":   {10, 3, 7, 3, 7},
		"impossible": {10, 3, 20, 3, 7},
	} {
		c := Counter{Peers: []Peer{{Region: "b", Incarnation: 1, Number: 5, Grants: []Grant{{Incarnation: 1, Number: 0, Permits: 1, Ends: never}, g}}}}
		c.State.Start, c.State.Count = noon, 100
		said := g
		said.Permits, said.Used, said.Returned = y.permits, y.used, y.returned
		c.report(s.l, &c.Peers[0], noon, &Question{Incarnation: 1, Number: 0, Grants: []Grant{said}})
		if got := c.Peers[0].Grants[1]; got.Used != y.wantUsed || got.Returned != y.wantReturned || got.Permits != 10 || c.State.Count != 100-(y.wantReturned-2) {
			t.Errorf("%s: %+v, counted %d", name, got, c.State.Count)
		}
	}
	near := g
	near.Ends = noon + second
	c := Counter{Peers: []Peer{{Region: "b", Incarnation: 1}}}
	c.report(s.l, &c.Peers[0], noon+second, &Question{Incarnation: 1, Grants: []Grant{near}})
	if c.Learning != 0 {
		t.Error("it waits although the window has ended")
	}
	c = Counter{Peers: []Peer{{Region: "b", Incarnation: 1}}}
	c.report(s.l, &c.Peers[0], noon, &Question{Incarnation: 1, Grants: []Grant{near}})
	if c.Peers[0].Grants[0].Expires != near.Ends {
		t.Error("it expires after its window")
	}
	c = Counter{Peers: []Peer{{Region: "b", Incarnation: 1}}}
	c.report(s.l, &c.Peers[0], noon, &Question{Incarnation: 1, Grants: []Grant{g}})
	if c.Peers[0].Grants[0].Expires != noon+longestLife {
		t.Error("it expires after its life")
	}
	c.Peers[0].Grants[0].Ends, c.Peers[0].Grants[0].Permits = near.Ends, near.Permits
	// What one permit is left of is not settled.
	c.Peers[0].Grants[0].Used = 7
	if c.Peers[0].forget(noon); c.Peers[0].Settled != 0 || len(c.Peers[0].Grants) != 1 {
		t.Errorf("%+v", c.Peers[0])
	}
	if c.Peers[0].Grants[0].Used = 8; c.Peers[0].Settled != 0 {
		t.Error()
	}
	if c.Peers[0].forget(noon); c.Peers[0].Settled != 1 || len(c.Peers[0].Grants) != 0 {
		t.Errorf("%+v", c.Peers[0])
	}
	c.Peers[0] = Peer{Incarnation: 1, Grants: []Grant{{Incarnation: 1, Number: 3}, {Incarnation: 1, Number: 2}}}
	if c.Peers[0].forget(noon); c.Peers[0].Settled != 3 {
		t.Errorf("%+v", c.Peers[0])
	}
	// Only what is older than everything that is open is settled.
	c.Peers[0] = Peer{Incarnation: 1, Settled: 2, Grants: []Grant{{Incarnation: 1, Number: 4, Permits: 1}, {Incarnation: 1, Number: 5}, {Incarnation: 1, Number: 3}, {Incarnation: 2, Number: 1, Permits: 1, Expires: noon}}}
	if c.Peers[0].forget(noon); c.Peers[0].Settled != 3 || len(c.Peers[0].Grants) != 2 {
		t.Errorf("%+v", c.Peers[0])
	}
}

func TestGrantSizes(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	q := Question{Region: "b", Epoch: 1, Incarnation: 1}
	grant := func(want, need, permits int64) {
		t.Helper()
		q.Number++
		q.Want, q.Need = want, need
		a := s.answer(noon, q)
		if a.Permits != permits {
			t.Errorf("want %d, need %d: %d permits of %d", want, need, a.Permits, a.Remaining+a.Permits)
		}
		if a.Permits > 0 {
			q.Grants = append(q.Grants, Grant{Incarnation: 1, Number: q.Number, Permits: a.Permits, Charged: a.Charged, Ends: a.Ends})
		}
	}
	grant(30, 0, 30)
	grant(1000, 0, 570/6) // a part of what remains
	grant(0, 0, 0)
	grant(1000, 0, 150-30-95) // all that are held: a quarter
	grant(1000, 0, 0)
	grant(1000, 7, 7) // requests that wait come first
	grant(0, 1000, 600-150-7)
	grant(5, 5, 0)
	enough := func(remaining, need int64, want Result) {
		t.Helper()
		c := Counter{}
		c.Take(at(noon), s.l, s.d, fixed-remaining)
		c.peer("c").Grants = []Grant{{Permits: 150, Expires: never}}
		if a := c.Exchange(at(noon), s.l, s.d, &Question{Region: "b", Epoch: 1, Incarnation: 1, Number: 1, Want: 9, Need: need}); a.Result != want || a.Result != Granted && a.Remaining != remaining {
			t.Errorf("%d remain, %d are needed: %+v", remaining, need, a)
		}
	}
	enough(1, 0, Enough)
	enough(0, 0, Full)
	enough(0, 1, Full)
	enough(1, 1, Granted)
	q.Number, q.Need = 99, 1
	if a := s.answer(noon, q); a.Result != Full || a.RetryAfter != 60*second || a.Limit != fixed {
		t.Errorf("%+v", a)
	}
	if got := s.c.held(noon + longestLife); got != 0 {
		t.Errorf("%d are held after a life", got)
	}
	if got := len(s.c.Peers); got != 1 {
		t.Errorf("%d peers", got)
	}
	s.c.peer("c")
	s.c.peer("a")
	if names := []string{s.c.Peers[0].Region, s.c.Peers[1].Region, s.c.Peers[2].Region}; !slices.IsSorted(names) {
		t.Error(names)
	}
}

func TestWhoMayAskWhom(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	q := s.ask(noon, 1)
	for name, x := range map[string]struct {
		change func(*Duty, *Question)
		at     Reading
		result Result
	}{
		"an older region":      {func(_ *Duty, q *Question) { q.Epoch = 0 }, at(noon), Outdated},
		"an older home":        {func(_ *Duty, q *Question) { q.Epoch = 2 }, at(noon), Outdated},
		"no lease":             {func(d *Duty, _ *Question) { d.Until = noon }, at(noon), Inactive},
		"a lease that ends":    {func(d *Duty, _ *Question) { d.Until = noon + 1 }, at(noon), Granted},
		"too early":            {func(d *Duty, _ *Question) { d.From = noon + 1 }, at(noon), Inactive},
		"just begun":           {func(d *Duty, _ *Question) { d.From = noon }, at(noon), Full},
		"a clock set back":     {func(*Duty, *Question) {}, Reading{Now: noon, Least: noon + 1}, Inactive},
		"a limit of the home":  {func(d *Duty, _ *Question) { d.Grants = false }, at(noon), Inactive},
		"as the clock is read": {func(*Duty, *Question) {}, Reading{Now: noon, Least: noon}, Granted},
	} {
		d, asked := *s.d, q
		x.change(&d, &asked)
		var c Counter
		if a := c.Exchange(x.at, s.l, &d, &asked); a.Result != x.result {
			t.Errorf("%s: %+v", name, a)
		}
	}
	newer := *s.d
	newer.Epoch = 2
	var c Counter
	if c.Take(at(noon), s.l, &newer, 0); c.Epoch != 2 {
		t.Errorf("%+v", c)
	}
	if a := c.Exchange(at(noon), s.l, s.d, &q); a.Result != Outdated {
		t.Errorf("a process with an older list than the counter's: %+v", a)
	}
	if _, ok := c.Take(at(noon), s.l, s.d, 1); ok {
		t.Error("it takes")
	}
	if _, ok := (&Account{Epoch: 1}).Ask(at(noon), "b", 0, 1, 7); ok {
		t.Error("a process with an older list than the account's asks")
	}
	// A new list: the answer to the question that waits may come from a home that is none any more.
	a := s.answer(noon, q)
	next, ok := s.a.Ask(at(noon+1), "b", 2, 1, 7)
	if !ok || next.Epoch != 2 || next.Number != q.Number+1 {
		t.Errorf("%+v", next)
	}
	if s.a.Apply(at(noon+1), &a) {
		t.Error("an answer of the epoch before is applied")
	}
	for _, x := range []struct {
		result Result
		after  int64
		again  int64
	}{{Inactive, 0, patience}, {Outdated, 600 * second, second}, {Full, 0, patience / 4}, {Full, second / 3, second / 3}, {Full, 60 * second, second}} {
		b := s.a
		b.demand.size = 40
		if !b.Apply(at(noon+1), &Answer{Epoch: 2, Incarnation: next.Incarnation, Number: next.Number, Nonce: next.Nonce, Result: x.result, RetryAfter: x.after, Remaining: 3}) {
			t.Errorf("%+v: not applied", x)
		}
		if full := b.Full; full && (b.demand.size != 0 || b.Remaining != 3) {
			t.Errorf("%+v", b)
		}
		if c := b; c.Full {
			c.Grants = []Grant{{Permits: 1, Expires: never}}
			if taken := c.Take(at(noon+1), 1); !taken.Allowed || taken.Full {
				t.Errorf("allowed, and full: %+v", taken)
			}
		}
		if b.Again != noon+1+x.again || b.Full != (x.result == Full) {
			t.Errorf("%+v: again after %d", x, b.Again-noon-1)
		}
		if taken := b.Take(at(b.Again-1), 1); taken.Due || taken.Full != b.Full {
			t.Errorf("%+v: before that time %+v", x, taken)
		}
		if taken := b.Take(at(b.Again), 1); !taken.Due || taken.Full {
			t.Errorf("%+v: at that time %+v", x, taken)
		}
	}
}

func TestWhenAnAccountAsks(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	if !s.take(noon, 1, false).Due {
		t.Error("an empty account does not ask")
	}
	if s.a.Take(at(noon), 0).Due {
		t.Error("an unused account asks")
	}
	s.hold(noon, 40)
	if taken := s.take(noon+1, 20, true); taken.Due || taken.Left != 20 {
		t.Errorf("half full: %+v", taken)
	}
	if taken := s.take(noon+2, 1, true); !taken.Due || taken.Left != 19 {
		t.Errorf("less than half full: %+v", taken)
	}
	if taken := s.take(noon+2, 20, false); !taken.Due {
		t.Errorf("too large: %+v", taken)
	}
	// The last grant was used up fast: the next one is larger.
	q := s.ask(noon+second/2, 0)
	if q.Want < 80 {
		t.Errorf("%+v", q)
	}
	a := s.answer(noon+second/2, q)
	s.a.Apply(at(noon+second/2), &a)
	// Idle for a second: everything goes back.
	if s.a.Take(at(noon+2*second), 0); s.a.returns(noon+3*second-1) != 0 {
		t.Error("it is not idle yet")
	}
	if s.a.returns(noon+3*second) == 0 || !s.a.due(at(noon+3*second), 0) {
		t.Error("it keeps what it does not use")
	}
	// A steady rate: what is used in half of a grant's life.
	b := Account{Epoch: 1}
	now := int64(noon)
	for range 200 {
		now += second / 10
		b.Take(at(now), 0)
		b.demand.count++
		b.demand.measure(now)
	}
	if got := b.demand.ahead(); got < 148 || got > 152 {
		t.Errorf("%d in 15 s at 10 per second", got)
	}
	// What was used two seconds ago counts 1/e.
	b.demand = demand{count: 100, since: noon}
	b.demand.measure(noon + 2*second)
	if got := b.demand.rate * second; math.Abs(got-50*(1-1/math.E)) > 1e-9 || b.demand.count != 0 || b.demand.since != noon+2*second {
		t.Errorf("%+v", b.demand)
	}
	b.demand.count = 1
	if b.demand.measure(noon + 2*second + second/4 - 1); b.demand.count != 1 {
		t.Error("measured too early")
	}
	if b.demand.measure(noon + 2*second + second/4); b.demand.count != 0 {
		t.Error("not measured")
	}
	// Half empty, but idle.
	b = Account{demand: demand{size: 40, last: noon}}
	if b.due(at(noon+second), 0) || !b.due(at(noon+second-1), 0) {
		t.Error("an idle account asks for more")
	}
	// What is returned waits for a second.
	b = Account{SentAt: noon, Grants: []Grant{{Permits: 1, Expires: noon - 1}}}
	if b.due(at(noon+second-1), 0) || !b.due(at(noon+second), 0) || b.returns(noon-1) != 1 || b.returns(noon-2) != 1 {
		t.Error("it does not return once a second")
	}
	b = Account{Grants: []Grant{{Permits: 1, Expires: noon}}, demand: demand{last: noon, size: 9}}
	if b.returns(noon-1) != 0 || b.returns(noon) != 1 {
		t.Error("what has just expired is not returned")
	}
	if b.giveBack(noon); b.Grants[0].Returned != 1 {
		t.Errorf("%+v", b.Grants)
	}
	// An expired grant is not used, although it has permits.
	b = Account{Grants: []Grant{{Permits: 5, Expires: noon}, {Permits: 5, Expires: noon + 1}}}
	if b.Take(at(noon), 2); b.Grants[0].Used != 0 || b.Grants[1].Used != 2 {
		t.Errorf("%+v", b.Grants)
	}
	// What it wants is what it will use, less what it has. It wants more if the last grant was used up within two seconds.
	for _, y := range []struct{ size, asked, want int64 }{{10, noon, 30 - 7}, {14, noon, 30 - 7}, {40, noon, 80}, {15, noon, 30 - 7}, {16, noon, 32}, {40, noon - 2*second, 30 - 7}, {16, noon - 2*second + 1, 32}} {
		b = Account{Grants: []Grant{{Permits: 7, Expires: never}}, demand: demand{asked: y.asked, size: y.size, last: noon, since: noon, rate: 2.0 / second}}
		if q, ok := b.Ask(at(noon), "b", 1, 1, 7); !ok || q.Want != y.want {
			t.Errorf("%+v: %+v", y, q)
		}
	}
	b = Account{demand: demand{asked: noon, size: 2, last: noon, since: noon, rate: 2.0 / second}}
	if q, _ := b.Ask(at(noon), "b", 1, 1, 7); q.Want != 30 {
		t.Errorf("%+v", q)
	}
	b.demand.rate = 1e300
	if got := b.demand.ahead(); got != math.MaxInt32 {
		t.Error(got)
	}
}

func TestDemandIsKept(t *testing.T) {
	s := newSystem(t, descriptor.Limit{})
	s.hold(noon, 100)
	s.a.demand.rate, s.a.demand.since = 2.0/second, noon+second // 30 in half of a life
	s.take(noon+second, 1, true)
	if got := s.a.excess(noon + second); got != 0 {
		t.Errorf("%d are too many, although they are the last grant", got)
	}
	s.a.demand.size = 10
	if got := s.a.excess(noon + second); got != 99-60 {
		t.Errorf("%d are too many", got)
	}
	q := s.ask(noon+second+second/8, 1)
	if q.Grants[0].Returned != 39 {
		t.Errorf("%+v", q)
	}
	// An answer settles only what its question has said.
	b := Account{Epoch: 1, Incarnation: 1, Waiting: true, Grants: []Grant{{Incarnation: 1, Number: 1, Permits: 5, Used: 5}, {Incarnation: 1, Number: 2, Permits: 5, Used: 5}, {Incarnation: 1, Number: 3, Permits: 5, Used: 5}}}
	b.Question = Question{Number: 4, Grants: []Grant{{Incarnation: 1, Number: 1, Permits: 5, Used: 4}, {Incarnation: 1, Number: 2, Permits: 5, Used: 5}}}
	if b.Apply(at(noon), &Answer{Epoch: 1, Incarnation: 1, Number: 4, Result: Enough}); len(b.Grants) != 2 || b.Grants[0].Number != 1 || b.Grants[1].Number != 3 {
		t.Errorf("%+v", b.Grants)
	}
	// Several grants: the newest permits go back first, the oldest are used first.
	s = newSystem(t, descriptor.Limit{})
	s.hold(noon, 10)
	s.hold(noon, 11)
	s.hold(noon, 12)
	s.take(noon, 15, true)
	if g := s.a.Grants; g[0].Used != 10 || g[1].Used != 5 || g[2].Used != 0 {
		t.Errorf("%+v", g)
	}
	s.a.demand.size = 10
	s.a.giveBack(noon) // 18 are left
	if g := s.a.Grants; g[0].Returned != 0 || g[1].Returned != 0 || g[2].Returned != 8 {
		t.Errorf("%+v", g)
	}
	s.a.demand.size = 1
	s.a.giveBack(noon) // 10 are left
	if g := s.a.Grants; g[1].Returned != 5 || g[2].Returned != 12 {
		t.Errorf("%+v", g)
	}
	s.a.giveBack(noon + second)
	if g := s.a.Grants; g[0].rest()+g[1].rest()+g[2].rest() != 0 {
		t.Errorf("%+v", g)
	}
	s.hold(noon+second, 2)
	if len(s.a.Grants) != 1 {
		t.Errorf("settled grants are kept: %+v", s.a.Grants)
	}
	for range mostGrants + 3 {
		s.a.demand = demand{last: noon + second, since: noon + second, size: s.a.Left(noon + second)}
		if q, ok := s.a.Ask(at(noon+second), "b", 1, 3, 7); ok {
			a := s.answer(noon+second, q)
			s.a.Apply(at(noon+second), &a)
		}
	}
	if n := len(s.a.Grants); n != mostGrants {
		t.Errorf("%d grants", n)
	}
}

func TestAClockThatWasSetBack(t *testing.T) {
	hold := func() *system {
		s := newSystem(t, descriptor.Limit{})
		s.hold(noon, 10)
		return s
	}
	s := hold()
	if taken := s.a.Take(Reading{Now: noon, Least: noon + 1}, 1); !taken.SetBack || taken.Allowed {
		t.Errorf("a process that knows better: %+v", taken)
	}
	s.take(noon-1, 1, false) // earlier than it has seen
	s = hold()
	s.take(noon, 1, true)
	s = hold()
	if taken := s.a.Take(Reading{Now: noon + 1, Least: noon + 1, Generation: 1}, 1); taken.Allowed || taken.SetBack {
		t.Errorf("a new generation: %+v", taken)
	}
	if taken := s.a.Take(at(noon+1), 1); !taken.SetBack {
		t.Errorf("a process of the generation before: %+v", taken)
	}
	s = hold()
	s.take(noon, 10, true)
	q := s.ask(noon, 10)
	a := s.answer(noon, q)
	s.take(noon-5*second, 1, false)
	if s.a.Apply(at(noon-5*second), &a) {
		t.Error("an answer to a question that was asked by the other clock is applied")
	}
	if s.a.demand.since > noon-5*second {
		t.Error("demand is measured in the future")
	}
	s = hold()
	s.ask(noon, 10)
	s.a.demand.last = noon
	if a := s.a.Question; s.a.Apply(at(noon-5*second), &Answer{Epoch: 1, Incarnation: a.Incarnation, Number: a.Number, Nonce: a.Nonce}) || s.a.demand.last != noon-5*second {
		t.Error("the last take is in the future")
	}
	s = hold()
	s.a.demand.last = noon - 20*second
	if s.a.Apply(at(noon-5*second), &Answer{}); s.a.demand.last != noon-20*second {
		t.Error("the last take is later than it was")
	}
	s = hold()
	q = s.ask(noon, 10)
	a = s.answer(noon, q)
	if s.a.Apply(Reading{Now: noon, Least: noon + 1}, &a) {
		t.Error("a process applies an answer although it knows that the clock was set back")
	}
	if _, ok := (&Account{}).Ask(Reading{Now: noon, Least: noon + 1}, "b", 1, 1, 7); ok {
		t.Error("a process asks although it knows that the clock was set back")
	}

	var w Watch
	if w.Least(5) != math.MinInt64 {
		t.Error("a watch that knows nothing")
	}
	w.Saw(1000, noon)
	if got := w.Least(1000); got != noon-1 {
		t.Error(got - noon)
	}
	if got := w.Least(1000 + 4*second); got != noon+4*second-4*second/drift-1 {
		t.Error(got - noon)
	}
	if got := w.Least(900); got != noon-1 {
		t.Error(got - noon)
	}
	w.Saw(1000+4*second, noon+2*second) // its answer was late
	if got := w.Least(1000 + 4*second); got != noon+4*second-4*second/drift-1 {
		t.Error(got - noon)
	}
	w.Saw(1000+4*second, noon+5*second)
	if got := w.Least(1000 + 4*second); got != noon+5*second-1 {
		t.Error(got - noon)
	}
}

func TestARole(t *testing.T) {
	e := &Epoch{Number: 5, Home: "a", Regions: []string{"a", "b", "c"}}
	var r Role
	for range 2 {
		if !r.Begin(at(noon), e) {
			t.Fatal("it does not begin")
		}
	}
	until := func(now int64) int64 { d := r.Duty(at(now), e); return d.Until - noon }
	if got := until(noon); got != -noon {
		t.Errorf("alone it acts until %d", got)
	}
	full := shortened(lease) - unnoticed
	r.Consented(at(noon+second), e, "b", noon)
	if got := until(noon + second); got != full {
		t.Errorf("until %d, want %d", got, full)
	}
	if d := r.Duty(at(noon-1), e); d.Until != 0 {
		t.Error("a consent from the future counts")
	}
	r.Consented(at(noon+3*second), e, "c", noon+2*second)
	if got := until(noon + 3*second); got != 2*second+full {
		t.Errorf("until %d with a second consent", got-full)
	}
	r.Consented(at(noon+3*second), e, "c", noon+second) // late
	r.Consented(at(noon+3*second), e, "c", noon+4*second)
	r.Consented(at(noon+3*second), &Epoch{Number: 4}, "c", noon+3*second)
	if got := until(noon + 3*second); got != 2*second+full || len(r.Consents) != 2 {
		t.Errorf("until %d with wrong consents", got-full)
	}
	if d := r.Duty(at(noon), e); d.Epoch != 5 || d.Regions != 3 || d.From != 0 || d.Grants {
		t.Errorf("%+v", d)
	}
	if d := r.Duty(at(noon), &Epoch{Number: 6, Home: "a", Regions: []string{"a"}}); d.Until != 0 {
		t.Errorf("the duty of another list: %+v", d)
	}
	if d := r.Duty(Reading{Now: noon, Least: noon + 1}, e); d.Until != 0 {
		t.Errorf("a clock that was set back: %+v", d)
	}
	if d := r.Duty(Reading{Now: noon + 3*second, Least: noon, Generation: 1}, e); d.Until != 0 || len(r.Consents) != 0 {
		t.Errorf("a new generation: %+v", d)
	}
	if r.Begin(at(noon), e) {
		t.Error("a process of the generation before begins")
	}
	g1 := Reading{Now: noon + 4*second, Least: noon, Generation: 1}
	r.Consented(g1, e, "x", noon+4*second)
	if d := r.Duty(g1, e); d.Until != 0 {
		t.Errorf("a region that is none: %+v", d)
	}
	r.Consented(g1, e, "a", noon+4*second)
	if d := r.Duty(g1, e); d.Until != 0 {
		t.Errorf("its own consent counts twice: %+v", d)
	}
	r.Consented(g1, e, "b", noon+4*second)
	if d := r.Duty(g1, e); d.Until == 0 {
		t.Error("as soon as it is equal")
	}

	// Half of the regions are enough, itself included; two regions have no majority, and one needs none.
	for n, needed := range []int{1: 1, 2: 1, 3: 2, 4: 2, 5: 3} {
		if n == 0 {
			continue
		}
		names := []string{"a", "b", "c", "d", "e"}[:n]
		e := &Epoch{Number: 1, Home: "a", Regions: names}
		r := Role{}
		r.Begin(at(noon), e)
		for have := 1; have <= n; have++ {
			if have > 1 {
				r.Consented(at(noon), e, names[have-1], noon)
			}
			if acts := r.Duty(at(noon), e).Until > noon; acts != (have >= needed) {
				t.Errorf("%d of %d consent: acts %v", have, n, acts)
			}
		}
	}

	five := &Epoch{Number: 1, Home: "a", Regions: []string{"a", "b", "c", "d", "e"}}
	r = Role{}
	r.Begin(at(noon), five)
	for range 3 {
		r.Consented(at(noon), five, "b", noon)
	}
	if d := r.Duty(at(noon), five); d.Until != 0 || len(r.Consents) != 1 {
		t.Errorf("a region consents three times: %+v", r)
	}

	// A later list ends the role, even where this region has only consented to another home.
	r = Role{}
	r.Begin(at(noon), e)
	r.Consented(at(noon), e, "b", noon)
	for range 2 {
		if !r.Consent(6) || r.Consent(5) {
			t.Error("a region consents to an earlier home")
		}
	}
	if d := r.Duty(at(noon), e); d.Until != 0 {
		t.Errorf("%+v", d)
	}
	if r.Begin(at(noon), e) {
		t.Error("it begins again")
	}
	next := &Epoch{Number: 7, Home: "a", Regions: []string{"a", "b", "c", "d"}}
	if !r.Begin(at(noon), next) || len(r.Consents) != 0 || r.From != 0 {
		t.Errorf("a region is added: %+v", r)
	}
}

func TestAHomeThatMoves(t *testing.T) {
	wait := int64(pastLease + pastLife)
	before := []string{"a", "b", "c"}
	e := &Epoch{Number: 2, Home: "d", Regions: []string{"a", "b", "c", "d"}, Before: before}
	var r Role
	r.Begin(at(noon), e)
	if d := r.Duty(at(noon), e); d.From != never || d.Until != 0 {
		t.Errorf("%+v", d)
	}
	r.Consented(at(noon), e, "a", noon)
	if d := r.Duty(at(noon), e); r.From != never || d.Until != 0 {
		t.Errorf("half of the regions are no majority: %+v", d)
	}
	r.Consented(at(noon+second), e, "b", noon)
	if r.From != noon+second+wait {
		t.Errorf("from %d", r.From-noon)
	}
	r.Consented(at(noon+2*second), e, "c", noon)
	if r.From != noon+second+wait {
		t.Errorf("another consent moves the beginning to %d", r.From-noon)
	}
	// More than half of the regions before: else the old home may still have half of them.
	two := &Epoch{Number: 2, Home: "c", Regions: []string{"a", "b", "c"}, Before: []string{"a", "b"}}
	r = Role{}
	r.Begin(at(noon), two)
	r.Consented(at(noon), two, "b", noon)
	if r.From != never {
		t.Error("one of two regions is enough")
	}
	r.Consented(at(noon), two, "a", noon)
	if r.From == never {
		t.Error("both of two regions are not enough")
	}
	far := &Epoch{Number: 2, Home: "d", Regions: []string{"c", "d", "e", "f", "g"}, Before: []string{"a", "b", "c"}}
	r = Role{}
	r.Begin(at(noon), far)
	r.Consented(at(noon), far, "a", noon)
	r.Consented(at(noon), far, "b", noon)
	if r.From != never {
		t.Error("a majority of the list before is enough")
	}
	r.Consented(Reading{Now: noon, Least: noon + 1}, far, "e", noon)
	r.Consented(Reading{Now: noon, Least: noon + 1}, far, "f", noon)
	if len(r.Consents) != 2 {
		t.Error("it believes a clock that was set back")
	}
	r.Consented(at(noon), far, "e", noon)
	if d := r.Duty(at(noon), far); d.Until != 0 || d.From != never {
		t.Errorf("%+v", d)
	}
	two.Stopped = true
	r = Role{}
	r.Begin(at(noon), two)
	if r.From != noon+pastLife {
		t.Errorf("the old home has stopped: from %d", r.From-noon)
	}

	// Its counters are full when it begins.
	s := newSystem(t, descriptor.Limit{})
	s.d.From = noon + 10*second
	if got := s.counted(noon + 10*second); got != fixed {
		t.Errorf("%d are counted", got)
	}
	if got := s.counted(noon + 60*second); got != 0 {
		t.Errorf("%d are counted in the next window", got)
	}
	// Once: and what its grants are is known from then on.
	s.hold(noon+61*second, 10)
	s.wantCounted(noon+61*second, 10)
	// It lost the role, and has it again.
	s.d.Epoch, s.d.From = 3, noon+70*second
	if got := s.counted(noon + 70*second); got != fixed || len(s.c.Peers) != 0 {
		t.Errorf("%d are counted", got)
	}
	// Grants of the home before are not charged again.
	s = newSystem(t, descriptor.Limit{})
	s.hold(noon, 10)
	s.d.Epoch, s.d.From, s.c = 2, noon+10*second, Counter{}
	if s.answer(noon+20*second, s.ask(noon+20*second, 5)); s.c.Learning != 0 {
		t.Error("it charges what the home before has granted")
	}
	s.a.Waiting = false
	a := s.answer(noon+61*second, s.ask(noon+61*second, 5))
	if a.Result != Granted || s.c.Learning != 0 {
		t.Errorf("%+v", a)
	}
}

func TestTerms(t *testing.T) {
	second30 := descriptor.Window{Unit: descriptor.Second, Multiplier: 30}
	for name, x := range map[string]struct {
		l    descriptor.Limit
		ok   bool
		life int64
	}{
		"fixed":           {descriptor.Limit{Requests: 120}, true, 30 * second},
		"small":           {descriptor.Limit{Requests: 119}, false, 30 * second},
		"short":           {descriptor.Limit{Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 4}}, true, 4 * second},
		"shorter":         {descriptor.Limit{Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 3}}, false, 3 * second},
		"sliding":         {descriptor.Limit{Algorithm: descriptor.SlidingWindow, Window: second30, Precision: 5}, true, 6 * second},
		"log":             {descriptor.Limit{Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 100}}, true, 4 * second},
		"log of a day":    {descriptor.Limit{Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Day}}, true, 30 * second},
		"log of a minute": {descriptor.Limit{Algorithm: descriptor.SlidingLog}, false, 60 * second / 25},
		"bucket":          {descriptor.Limit{Algorithm: descriptor.TokenBucket}, false, 0},
		"interval":        {descriptor.Limit{Algorithm: descriptor.TokenBucket, Interval: true}, true, 30 * second},
		"places":          {descriptor.Limit{Algorithm: descriptor.Concurrency}, false, 0},
	} {
		l := perMinute(t, x.l)
		if got := Grantable(l, 3); got != x.ok {
			t.Errorf("%s: %v", name, got)
		}
		terms, _ := termsOf(l)
		if terms.life != x.life {
			t.Errorf("%s: a grant lives for %s", name, time.Duration(terms.life)*time.Microsecond)
		}
		if stretched := terms.limit.Arithmetic.Length - l.Arithmetic.Length; l.Algorithm == descriptor.SlidingLog && stretched != x.life {
			t.Errorf("%s: hits stay longer by %d", name, stretched)
		}
	}
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 21_474_836}})
	if _, ok := termsOf(l); ok {
		t.Error("a log that does not fit when it is stretched")
	}
}

// Refused returns of a bucket: after the end of its interval, a refill has made up for them.
func TestIntervalsAreNotMixed(t *testing.T) {
	s := newSystem(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Interval: true, Burst: 600})
	s.hold(noon, 50)
	s.c.Take(at(noon+60*second), s.l, s.d, 40)
	s.answer(noon+60*second, s.ask(noon+60*second, 0))
	s.wantCounted(noon+60*second, 40)
	// A sliding window remembers.
	s = newSystem(t, descriptor.Limit{Algorithm: descriptor.SlidingWindow})
	s.hold(noon, 50)
	s.answer(noon+61*second, s.ask(noon+61*second, 0))
	s.wantCounted(noon+61*second, 0)
	s = newSystem(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Interval: true, Burst: 600})
	s.hold(noon, 50)
	s.answer(noon+59*second, s.ask(noon+59*second, 0))
	s.wantCounted(noon+59*second, 0)
}

func TestHomeModeCountsAsAlways(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.SlidingLog, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 100}})
	d := duty()
	d.Grants = false
	var c Counter
	c.Take(at(noon), l, d, 1)
	if o, _ := c.Take(at(noon+100*second), l, d, 0); o.Used != 0 {
		t.Error("hits stay longer than the window although nothing is granted")
	}
	var granted Counter
	d.Grants = true
	granted.Take(at(noon), l, d, 1)
	if o, _ := granted.Take(at(noon+104*second-1), l, d, 0); o.Used != 1 {
		t.Error("hits do not stay longer")
	}
	d.Grants = false
	bucket := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket})
	var b Counter
	if o, ok := b.Take(at(noon), bucket, d, 1); !ok || !o.Allowed {
		t.Error("a bucket cannot stay at the home")
	}
	d.Grants = true
	if _, ok := b.Take(at(noon), bucket, d, 1); ok {
		t.Error("permits of a bucket are granted")
	}
}
