package region

import (
	"reflect"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// division is a home and the parts of its regions. All clocks show the same.
type division struct {
	t *testing.T
	l *descriptor.Limit
	d *Duty
	s Shares
	h map[string]*Holding
	n uint64
}

func newDivision(t *testing.T, l descriptor.Limit) *division {
	t.Helper()
	if l.Algorithm == descriptor.FixedWindow {
		l.Algorithm = descriptor.TokenBucket
	}
	return &division{t: t, l: perMinute(t, l), d: duty(), h: make(map[string]*Holding), n: 100}
}

func (x *division) holding(region string) *Holding {
	if x.h[region] == nil {
		x.h[region] = &Holding{}
	}
	return x.h[region]
}

func (x *division) ask(now int64, region string) ShareQuestion {
	x.t.Helper()
	x.n++
	q, ok := x.holding(region).Ask(at(now), x.l, region, x.d.Epoch, x.n)
	if !ok {
		x.t.Fatalf("%s asks nothing", region)
	}
	return q
}

func (x *division) answer(now int64, q ShareQuestion) ShareAnswer {
	return x.s.Exchange(at(now), x.l, x.d, &q)
}

// renew exchanges a question and its answer. demand is in requests per minute.
func (x *division) renew(now int64, region string, demand int64) ShareAnswer {
	x.t.Helper()
	h := x.holding(region)
	h.demand = demand64(now, demand)
	a := x.answer(now, x.ask(now, region))
	if a.Result != Granted || !h.Apply(at(now), x.l, &a) {
		x.t.Fatalf("%s: %+v", region, a)
	}
	x.sums()
	return a
}

func demand64(now, perMinute int64) demand {
	return demand{rate: float64(perMinute) / (60 * second), since: now}
}

// sums checks that no more is given away than there is.
func (x *division) sums() {
	x.t.Helper()
	rate, all := int64(0), x.s.Saved
	for i := range x.s.Holders {
		rate += x.s.Holders[i].counted()
		all += tokens(x.l, x.s.Holders[i].counted())
	}
	if rate > int64(x.l.Requests) || all > int64(x.l.Capacity()) {
		x.t.Errorf("%d per minute and %d tokens are given away: %+v", rate, all, x.s)
	}
}

func (x *division) wantRates(rates map[string]int64) {
	x.t.Helper()
	for name, rate := range rates {
		if got := x.h[name].Rate; got != rate {
			x.t.Errorf("%s has %d per minute, want %d", name, got, rate)
		}
	}
}

func (x *division) take(now int64, region string, hits int64) Taken {
	return x.h[region].Take(at(now), x.l, hits)
}

func TestShares(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 1200})
	if a := x.renew(noon, "a", 0); a.Rate != 25+525/3 || a.Tokens != 2*a.Rate || a.Mint != a.Tokens || a.ValidFor != longestLife {
		t.Errorf("the first region: %+v", a)
	}
	if h := x.h["a"]; h.Expires != noon+shortened(longestLife)-unnoticed {
		t.Errorf("it expires at %d", h.Expires-noon)
	}
	if taken := x.take(noon, "a", 401); taken.Allowed || !taken.Full || taken.Due {
		t.Errorf("%+v", taken)
	}
	if taken := x.take(noon, "a", 400); !taken.Allowed || taken.Left != 0 {
		t.Errorf("%+v", taken)
	}
	if taken := x.take(noon+60*second/200, "a", 1); !taken.Allowed {
		t.Errorf("a token later: %+v", taken)
	}
	x.renew(noon+second, "b", 550)
	x.wantRates(map[string]int64{"a": 200, "b": 400})
	x.renew(noon+6*second, "a", 0)
	x.renew(noon+7*second, "b", 550)
	x.wantRates(map[string]int64{"a": 25, "b": 400}) // a has not said yet that it has less
	x.renew(noon+12*second, "a", 0)
	x.renew(noon+13*second, "b", 550)
	x.wantRates(map[string]int64{"a": 25, "b": 550})
	if b := x.h["b"]; b.Tokens != 1100 {
		t.Errorf("b has %d tokens", b.Tokens)
	}
	// What grows begins without tokens: 800 were minted when the bucket was new, and they were the most until now. The home had saved 2 in
	// the second in which 175 per minute were nobody's.
	if got := x.take(noon+13*second, "b", 0).Left; got != 802 {
		t.Errorf("%d tokens are left", got)
	}
	x.renew(noon+14*second, "c", 100)
	x.wantRates(map[string]int64{"c": 25})
	// The next part of an equal level: a needs little, b and c want more than is left.
	for range 3 {
		now := x.h["c"].SentAt + renewal
		x.renew(now, "a", 0)
		x.renew(now, "b", 600)
		x.renew(now, "c", 400)
	}
	x.wantRates(map[string]int64{"a": 25, "b": 287, "c": 287})
}

// The home says how many tokens the parts of other regions may have. Until a part expires, the larger one of what the region had and what it
// was given counts.
func TestTokensOfOtherRegions(t *testing.T) {
	s := Shares{Holders: []Holder{
		{Region: "a", Held: 60, Given: 120, Expires: noon + 2*second},
		{Region: "b", Held: 300, Given: 30, Expires: noon + 3*second},
		{Region: "c", Held: 30, Given: 30, Expires: noon + second},
	}}
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 1200})
	for _, c := range []struct {
		region   string
		now      int64
		n, until int64
	}{
		{"", noon, 2 * (120 + 300 + 30), noon + 3*second},
		{"a", noon, 2 * (300 + 30), noon + 3*second},
		{"b", noon, 2 * (120 + 30), noon + 2*second},
		{"", noon + second - 1, 2 * (120 + 300 + 30), noon + 3*second},
		{"", noon + second, 2 * (120 + 300), noon + 3*second},
		{"b", noon + 2*second, 0, 0},
	} {
		if n, until := s.Elsewhere(l, c.region, c.now); n != c.n || until != c.until {
			t.Errorf("other than %q, after %d us: %d tokens until %d, want %d until %d", c.region, c.now-noon, n, until, c.n, c.until)
		}
	}
}

func TestAPartIsCountedUntilItIsGivenUp(t *testing.T) {
	x := newDivision(t, descriptor.Limit{})
	x.renew(noon, "a", 600)
	if got := x.h["a"].Rate; got != 550 {
		t.Fatalf("a has %d", got)
	}
	x.renew(noon, "b", 600)
	x.wantRates(map[string]int64{"b": 50})
	// The answer that makes a smaller is lost: a has one of both.
	q := x.ask(noon+5*second, "a")
	q.Demand = 0
	first := x.answer(noon+5*second, q)
	if first.Rate >= 550 {
		t.Fatalf("%+v", first)
	}
	x.renew(noon+6*second, "b", 600)
	x.wantRates(map[string]int64{"b": 50})
	if again := x.answer(noon+7*second, q); again.Rate != first.Rate || again.ValidFor != first.ValidFor-2*second {
		t.Errorf("the same question again: %+v", again)
	}
	x.h["a"].Apply(at(noon+7*second), x.l, &first)
	x.renew(noon+12*second, "a", 0)
	x.renew(noon+13*second, "b", 600)
	if got := x.h["b"].Rate; got < 500 {
		t.Errorf("b has %d", got)
	}
	// b is cut off. Its part is free when it has expired.
	x.renew(noon+42*second, "a", 600)
	x.wantRates(map[string]int64{"a": x.h["a"].Rate})
	if got := x.h["a"].Rate; got > 100 {
		t.Errorf("a has %d while b has the rest", got)
	}
	if taken := x.take(x.h["b"].Expires-1, "b", 1); !taken.Allowed {
		t.Errorf("%+v", taken)
	}
	if taken := x.take(x.h["b"].Expires, "b", 1); taken.Allowed || taken.Full {
		t.Errorf("%+v", taken)
	}
	x.renew(noon+47*second, "a", 600)
	if got := x.h["a"].Rate; got != 550 {
		t.Errorf("a has %d", got)
	}
	// b comes back: it begins without tokens.
	b := x.renew(noon+48*second, "b", 600)
	if b.Mint != 0 {
		t.Errorf("%+v", b)
	}
	if got := x.take(noon+48*second, "b", 0).Left; got != 0 {
		t.Errorf("%d tokens", got)
	}
}

func TestALostHolding(t *testing.T) {
	x := newDivision(t, descriptor.Limit{})
	x.renew(noon, "a", 600)
	lost := x.h["a"].Incarnation
	x.h["a"] = &Holding{}
	x.renew(noon+second, "a", 600)
	x.wantRates(map[string]int64{"a": 50}) // the lost part may still be in use somewhere
	if x.s.Holders[0].Lost != 550 {
		t.Errorf("%+v", x.s)
	}
	if late := x.answer(noon+second, ShareQuestion{Region: "a", Epoch: 1, Incarnation: lost, Number: 2}); late.Result != Stale || x.s.Holders[0].Lost != 550 {
		t.Errorf("a late question of the lost one: %+v", late)
	}
	x.renew(noon+29*second, "a", 600)
	x.wantRates(map[string]int64{"a": 50})
	x.renew(noon+34*second, "a", 600)
	x.wantRates(map[string]int64{"a": 550})

	// The home loses everything, and hears of a part that it does not know.
	x = newDivision(t, descriptor.Limit{})
	x.renew(noon, "a", 600)
	x.renew(noon, "b", 600)
	x.s = Shares{}
	x.renew(noon+5*second, "b", 600)
	if got := x.h["b"].Rate; got != 50 || x.s.Learning != noon+5*second+pastLife {
		t.Errorf("b has %d: %+v", got, x.s)
	}
	x.renew(noon+7*second, "a", 600)
	x.wantRates(map[string]int64{"a": 287})
	x.s.Learning = never // the clock was set back
	x.renew(noon+12*second, "a", 0)
	x.renew(noon+13*second, "b", 600)
	x.wantRates(map[string]int64{"b": 600 - 287})
}

func TestShareMessages(t *testing.T) {
	x := newDivision(t, descriptor.Limit{})
	q := x.ask(noon, "a")
	a := x.answer(noon, q)
	for name, other := range map[string]func(*ShareAnswer){
		"number":      func(a *ShareAnswer) { a.Number++ },
		"nonce":       func(a *ShareAnswer) { a.Nonce++ },
		"incarnation": func(a *ShareAnswer) { a.Incarnation++ },
		"epoch":       func(a *ShareAnswer) { a.Epoch++ },
	} {
		wrong := a
		other(&wrong)
		if x.h["a"].Apply(at(noon), x.l, &wrong) {
			t.Errorf("an answer with another %s was applied", name)
		}
	}
	if !x.h["a"].Apply(at(noon), x.l, &a) || x.h["a"].Apply(at(noon), x.l, &a) {
		t.Error("an answer is applied exactly once")
	}
	if _, ok := x.h["a"].Ask(at(noon+renewal-1), x.l, "a", 1, 7); ok {
		t.Error("it asks too early")
	}
	next := x.ask(noon+renewal, "a")
	if next.Number != 2 || next.Held != a.Rate {
		t.Errorf("%+v", next)
	}
	if _, ok := x.h["a"].Ask(at(noon+renewal+patience-1), x.l, "a", 1, 7); ok {
		t.Error("it does not wait")
	}
	if again, ok := x.h["a"].Ask(at(noon+renewal+patience), x.l, "a", 1, 7); !ok || again != next {
		t.Errorf("%+v", again)
	}
	x.answer(noon+renewal, next)
	if b := x.answer(noon+renewal, q); b.Result != Stale {
		t.Errorf("an older question: %+v", b)
	}
	other := next
	other.Nonce++
	if b := x.answer(noon+renewal, other); b.Result != Stale {
		t.Errorf("another question with that number: %+v", b)
	}
	for name, y := range map[string]struct {
		change func(*Duty, *ShareQuestion)
		at     Reading
		result Result
	}{
		"an older region":  {func(_ *Duty, q *ShareQuestion) { q.Epoch = 0 }, at(noon), Outdated},
		"an older home":    {func(_ *Duty, q *ShareQuestion) { q.Epoch = 2 }, at(noon), Outdated},
		"no lease":         {func(d *Duty, _ *ShareQuestion) { d.Until = noon }, at(noon), Inactive},
		"a clock set back": {func(*Duty, *ShareQuestion) {}, Reading{Now: noon, Least: noon + 1}, Inactive},
	} {
		d, asked := *x.d, q
		y.change(&d, &asked)
		var s Shares
		if b := s.Exchange(y.at, x.l, &d, &asked); b.Result != y.result {
			t.Errorf("%s: %+v", name, b)
		}
	}
	s := Shares{Epoch: 2}
	if b := s.Exchange(at(noon), x.l, x.d, &q); b.Result != Outdated {
		t.Errorf("a process with an older list: %+v", b)
	}
	s = Shares{}
	if b := s.Exchange(at(noon), perMinute(t, descriptor.Limit{}), x.d, &q); b.Result != Inactive {
		t.Errorf("a window: %+v", b)
	}
	// An epoch later the region asks at once, also while it waits.
	if _, ok := x.h["a"].Ask(at(noon+renewal+1), x.l, "a", 0, 7); ok {
		t.Error("a process with an older list asks")
	}
	later, ok := x.h["a"].Ask(at(noon+renewal+1), x.l, "a", 2, 7)
	if !ok || later.Number != 3 || later.Epoch != 2 {
		t.Errorf("%+v", later)
	}
	for _, result := range []Result{Inactive, Outdated, Stale} {
		h := *x.h["a"]
		ok := h.Apply(at(noon+renewal+1), x.l, &ShareAnswer{Epoch: 2, Incarnation: later.Incarnation, Number: 3, Nonce: later.Nonce, Result: result, Rate: 1})
		if stale := h.Rate == 0 && h.Incarnation == 0 && h.Tokens == 0; !ok || h.Waiting || stale != (result == Stale) {
			t.Errorf("%d: %+v", result, h)
		}
	}
	// A question that nobody answers is given up when its answer would have expired.
	if gone, ok := x.h["a"].Ask(at(noon+renewal+1+longestLife), x.l, "a", 2, 7); !ok || gone.Number != 4 || gone.Held != 0 {
		t.Errorf("%+v", gone)
	}
	// Without a part it asks every second.
	x = newDivision(t, descriptor.Limit{})
	x.ask(noon, "a")
	x.h["a"].Waiting = false
	if x.h["a"].due(noon+second-1) || !x.h["a"].due(noon+second) {
		t.Error("it does not ask every second")
	}
}

func TestAShareAndTheClock(t *testing.T) {
	hold := func() *division {
		x := newDivision(t, descriptor.Limit{})
		x.renew(noon, "a", 600)
		return x
	}
	x := hold()
	if taken := x.h["a"].Take(Reading{Now: noon, Least: noon + 1}, x.l, 1); !taken.SetBack || taken.Allowed {
		t.Errorf("%+v", taken)
	}
	if taken := x.take(noon-1, "a", 1); taken.Allowed {
		t.Errorf("%+v", taken)
	}
	x = hold()
	if taken := x.take(noon, "a", 1); !taken.Allowed {
		t.Errorf("%+v", taken)
	}
	if taken := x.h["a"].Take(Reading{Now: noon, Least: noon, Generation: 1}, x.l, 1); taken.Allowed || taken.SetBack || !taken.Due {
		t.Errorf("%+v", taken)
	}
	if taken := x.take(noon, "a", 1); !taken.SetBack {
		t.Errorf("%+v", taken)
	}
	x = hold()
	a := x.answer(noon+renewal, x.ask(noon+renewal, "a"))
	x.take(noon, "a", 1)
	if x.h["a"].Apply(at(noon), x.l, &a) {
		t.Error("an answer to a question of the other clock is applied")
	}
}

func TestTokensGoOn(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Requests: 240, Burst: 240})
	x.renew(noon, "a", 0)
	rate := x.h["a"].Rate
	for !x.take(noon, "a", 10).Full {
	}
	for x.take(noon, "a", 1).Allowed {
	}
	// The bucket keeps fractions of tokens while its part stays.
	passed, now := 0, int64(noon)
	for range 120 {
		now += renewal
		x.h["a"].demand = demand64(now, 0)
		a := x.answer(now, x.ask(now, "a"))
		x.h["a"].Apply(at(now), x.l, &a)
		for x.take(now, "a", 1).Allowed {
			passed++
		}
	}
	if want := int(2 * rate); passed != want {
		t.Errorf("%d passed in two minutes at %d per minute", passed, rate)
	}
	// A smaller part keeps what fits.
	h := *x.h["a"]
	h.State = backend.State{}
	before := h.Take(at(now), x.l, 0).Left
	if before != h.Tokens {
		t.Fatal("it is not full")
	}
	h.Waiting = true
	smaller := ShareAnswer{Epoch: 1, Incarnation: h.Incarnation, Number: h.Question.Number, Nonce: h.Question.Nonce, Rate: 10, Tokens: 10, ValidFor: longestLife}
	h.Apply(at(now), x.l, &smaller)
	if got := h.Take(at(now), x.l, 0).Left; got != 10 || h.Returned != before-10 {
		t.Errorf("%d tokens are left, and %d of %d are returned", got, h.Returned, before)
	}
	full, minted := h, smaller // tokens that the home adds to a full part are returned, too
	full.Waiting, minted.Mint = true, 3
	if full.Apply(at(now), x.l, &minted); full.Returned != 3 {
		t.Errorf("3 tokens are added to a full part, and %d are returned", full.Returned)
	}
	h.Waiting, smaller.Rate, smaller.Tokens, smaller.Mint = true, 30, 30, 5
	h.Apply(at(now), x.l, &smaller)
	if got := h.Take(at(now), x.l, 0).Left; got != 15 {
		t.Errorf("%d tokens are left", got)
	}
	h.Waiting, smaller.Rate, smaller.Tokens, smaller.Mint = true, 0, 0, 0
	h.Apply(at(now), x.l, &smaller)
	if taken := h.Take(at(now), x.l, 1); taken.Allowed || taken.Full {
		t.Errorf("%+v", taken)
	}
}

// Tokens that a part has no place for when it gets smaller are used by the other regions.
func TestTokensAreReturned(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 1200})
	used := int64(0)
	use := func(now int64, region string) {
		for x.take(now, region, 1).Allowed {
			used++
		}
	}
	for _, region := range []string{"a", "b", "c"} {
		x.renew(noon, region, 600)
	}
	use(noon, "b")
	now := int64(noon)
	for range 5 {
		now += renewal
		x.renew(now, "a", 0)
		x.renew(now, "c", 0)
		x.renew(now, "b", 600)
		use(now, "b")
	}
	use(now, "a")
	use(now, "c")
	flowed := int64(5*renewal) * 600 / (60 * second)
	if used > 1200+flowed || used < 1200 { // what flows into a full part is lost
		t.Errorf("%d were admitted, 1200 were in the bucket and %d have flowed in", used, flowed)
	}
}

// Returned tokens are counted at most once, whatever becomes of the question.
func TestTokensAreReturnedOnce(t *testing.T) {
	shrunk := func() (*division, int64) {
		x := newDivision(t, descriptor.Limit{Burst: 1200})
		x.renew(noon, "a", 600)
		x.renew(noon+renewal, "a", 0)
		n := x.h["a"].Returned
		if n < 500 || x.s.Saved > 200 {
			t.Fatalf("%d tokens are returned, and %d are saved", n, x.s.Saved)
		}
		return x, n
	}
	x, n := shrunk()
	q := x.ask(noon+2*renewal, "a")
	if q.Returned != n || x.h["a"].Returned != 0 {
		t.Fatalf("%+v", q)
	}
	before := x.s.Saved
	a := x.answer(noon+2*renewal, q)
	saved := x.s.Saved
	if saved < before+n {
		t.Errorf("%d tokens are saved, and were %d before %d were returned", saved, before, n)
	}
	if x.answer(noon+2*renewal, q); x.s.Saved != saved {
		t.Errorf("the same question again: %d tokens are saved", x.s.Saved)
	}
	x.h["a"].Apply(at(noon+2*renewal), x.l, &a)
	if q := x.ask(noon+3*renewal, "a"); q.Returned != 0 {
		t.Errorf("they are returned again: %+v", q)
	}
	x.sums()

	// The answer does not come: the home may have them.
	x, _ = shrunk()
	x.ask(noon+2*renewal, "a")
	if q := x.ask(noon+2*renewal+longestLife, "a"); q.Returned != 0 {
		t.Errorf("%+v", q)
	}
	// The clock was set back: what the region had may have been used.
	x, _ = shrunk()
	x.take(noon, "a", 0)
	if q := x.ask(noon+renewal, "a"); q.Returned != 0 {
		t.Errorf("%+v", q)
	}
	// More than the bucket has room for.
	x, _ = shrunk()
	q = x.ask(noon+2*renewal, "a")
	q.Returned = backend.MaxCount
	x.answer(noon+2*renewal, q)
	x.sums()
}

func TestDivisible(t *testing.T) {
	for name, y := range map[string]struct {
		l  descriptor.Limit
		ok bool
	}{
		"bucket":       {descriptor.Limit{Algorithm: descriptor.TokenBucket, Requests: 120}, true},
		"slow":         {descriptor.Limit{Algorithm: descriptor.TokenBucket, Requests: 119, Burst: 500}, false},
		"small":        {descriptor.Limit{Algorithm: descriptor.TokenBucket, Requests: 500, Burst: 119}, false},
		"intervals":    {descriptor.Limit{Algorithm: descriptor.TokenBucket, Interval: true}, false},
		"window":       {descriptor.Limit{}, false},
		"leaky":        {descriptor.Limit{Algorithm: descriptor.LeakyBucket, Burst: 119, NoDelay: descriptor.NoDelayAll}, true},
		"leaky, waits": {descriptor.Limit{Algorithm: descriptor.LeakyBucket, Burst: 500, NoDelay: 100}, false},
	} {
		if got := Divisible(perMinute(t, y.l), 3); got != y.ok {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A leaky bucket holds one more than may wait.
	x := newDivision(t, descriptor.Limit{Algorithm: descriptor.LeakyBucket, Burst: 599, NoDelay: descriptor.NoDelayAll})
	a := x.renew(noon, "a", 0)
	if a.Tokens != a.Rate {
		t.Errorf("%+v", a)
	}
	if taken := x.take(noon, "a", a.Tokens+1); taken.Allowed {
		t.Errorf("%+v", taken)
	}
	if taken := x.take(noon, "a", a.Tokens); !taken.Allowed {
		t.Errorf("%+v", taken)
	}
}

func TestSharesOfANewHome(t *testing.T) {
	x := newDivision(t, descriptor.Limit{})
	x.d.From = noon - second
	if a := x.renew(noon, "a", 600); a.Mint != 0 || a.Rate != 550 {
		t.Errorf("%+v", a)
	}
	x.d.Epoch, x.d.From = 2, noon+second
	x.renew(noon+second, "a", 600)
	if x.s.Saved != 0 || len(x.s.Holders) != 1 || x.s.Epoch != 2 {
		t.Errorf("%+v", x.s)
	}
	x.renew(noon+second, "b", 0)
	x.d.Epoch, x.d.From = 3, noon+2*second
	x.h["a"].SentAt -= renewal
	x.renew(noon+2*second, "a", 600)
	if len(x.s.Holders) != 1 || x.s.Epoch != 3 {
		t.Errorf("%+v", x.s)
	}
	x.d.Epoch = 4 // the same home: it keeps what it knows
	x.renew(noon+2*second, "a", 600)
	x.wantRates(map[string]int64{"a": 550})
	if x.s.Epoch != 4 {
		t.Errorf("%+v", x.s)
	}
}

// What a home answers, from what it has written down.
func TestShareSums(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 1200})
	s := Shares{Saved: 100, Holders: []Holder{{Region: "a", Held: 200, Given: 100, Expires: never}, {Region: "b", Held: 50, Given: 150, Lost: 10, LostExpires: never, Expires: never}}}
	a, b := &s.Holders[0], &s.Holders[1]
	if a.counted() != 200 || b.counted() != 160 {
		t.Errorf("%d and %d are counted", a.counted(), b.counted())
	}
	if n := s.mint(l, a); n != 0 || s.Saved != 100 {
		t.Errorf("a smaller part gets %d tokens, %d are left", n, s.Saved)
	}
	if n := s.mint(l, b); n != 100 || s.Saved != 0 {
		t.Errorf("a larger part gets %d tokens, %d are left", n, s.Saved)
	}
	s.Saved = 250
	if n := s.mint(l, b); n != 200 || s.Saved != 50 {
		t.Errorf("a larger part gets %d tokens, %d are left", n, s.Saved)
	}
	s.Saved, a.Held = 600, 400
	if n := s.mint(l, b); n != 200 || s.Saved != 1200-800-320 {
		t.Errorf("a larger part gets %d tokens, %d are left", n, s.Saved)
	}
	s.Saved, a.Held = 600, 600
	if n := s.mint(l, b); n != 200 || s.Saved != 0 {
		t.Errorf("a larger part gets %d tokens, %d are left", n, s.Saved)
	}

	b.lose()
	if b.Lost != 160 || b.LostExpires != never {
		t.Errorf("%+v", b)
	}
	*b = Holder{Held: 50, LostExpires: noon + 50, Expires: noon + 5}
	if b.lose(); b.LostExpires != noon+50 {
		t.Errorf("%+v", b)
	}
	*b = Holder{Region: "b", Held: 50, Given: 20, Lost: 7, LostExpires: noon, Expires: noon + 5}
	if b.lose(); b.Lost != 57 || b.LostExpires != noon+5 {
		t.Errorf("%+v", b)
	}
	if s.expire(noon + 4); b.Lost != 57 || b.Held != 50 {
		t.Errorf("%+v", b)
	}
	if s.expire(noon + 5); b.Lost != 0 || b.Held != 0 || b.Given != 0 {
		t.Errorf("%+v", b)
	}

	// The limit was lowered: nobody grows, and nobody loses what it has by growing.
	low := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Requests: 300})
	s = Shares{Holders: []Holder{{Region: "a", Held: 280, Given: 280, Expires: never}, {Region: "b", Held: 50, Demand: 300, Expires: never}}}
	if got := s.give(low, duty(), &s.Holders[1], noon); got != 50 {
		t.Errorf("b gets %d", got)
	}
	if got := tokens(low, 900); got != 300 {
		t.Errorf("%d tokens", got)
	}
	if got := tokens(&descriptor.Limit{Algorithm: descriptor.TokenBucket, Requests: 7, Burst: 1 << 40}, 3); got != 3<<40/7 {
		t.Errorf("%d tokens", got)
	}

	// More regions ask than the list has: the list of this home is older.
	four := Shares{}
	for _, name := range []string{"a", "b", "c", "d"} {
		four.holder(name).Expires = never
	}
	if got := four.fair(l, duty(), &four.Holders[0], noon); got != 18+(600-4*18)/4 {
		t.Errorf("a gets %d of 600", got)
	}
	// What a region wants is a tenth more than its demand, while its part lasts.
	s = Shares{Holders: []Holder{{Region: "a", Demand: 100, Expires: noon + 1}}}
	if got := s.fair(l, duty(), &s.Holders[0], noon); got != 111+(600-111-25-25)/3 {
		t.Errorf("a gets %d", got)
	}
	if got := s.fair(l, duty(), &s.Holders[0], noon+1); got != 25+(600-3*25)/3 {
		t.Errorf("a gets %d", got)
	}

	for _, y := range []struct {
		rate, tokens int64
		ok           bool
	}{{1, 1, true}, {0, 1, false}, {1, 0, false}, {0, 0, false}} {
		if own, ok := ofShare(l, y.rate, y.tokens); ok != y.ok || ok && own.Capacity() != 1 {
			t.Errorf("%+v: %v, %d", y, ok, own.Capacity())
		}
	}

	// A region that says it holds what it held before the last answer: that answer was lost, and nothing was forgotten.
	s = Shares{Begun: true, Holders: []Holder{{Region: "a", Incarnation: 1, Number: 1, Held: 300, Given: 100, Expires: never}}}
	s.Exchange(at(noon), l, duty(), &ShareQuestion{Region: "a", Epoch: 1, Incarnation: 1, Number: 2, Held: 300})
	if s.Learning != 0 {
		t.Error("it has forgotten nothing")
	}
	again := s.Exchange(at(noon+longestLife+second), l, duty(), &ShareQuestion{Region: "a", Epoch: 1, Incarnation: 1, Number: 2, Held: 300})
	if again.ValidFor != 0 || again.Rate != 0 {
		t.Errorf("an expired part: %+v", again)
	}
	s.Learning = noon + 100
	if s.Holders[0].Held = 0; s.give(l, duty(), &s.Holders[0], noon+99) != 0 || s.give(l, duty(), &s.Holders[0], noon+100) == 0 {
		t.Error("it learns too long, or too short")
	}
}

func TestAHoldingIsMeasured(t *testing.T) {
	x := newDivision(t, descriptor.Limit{})
	x.renew(noon, "a", 0)
	h := x.h["a"]
	h.demand = demand{since: noon}
	for range 50 {
		x.take(noon+second, "a", 1)
	}
	if q := x.ask(noon+renewal, "a"); q.Demand < 500 || q.Demand > 600 {
		t.Errorf("%+v", q) // 10 per second, and older is what was before
	}
	if h.Waiting = false; h.demand.count != 0 {
		t.Error("it is not measured")
	}
	h.demand.rate = 1
	if q := x.ask(noon+2*renewal, "a"); q.Demand != 600 {
		t.Errorf("%+v", q)
	}
	if h.Apply(Reading{Now: noon + 2*renewal, Least: noon + 3*renewal}, x.l, &ShareAnswer{Epoch: 1, Incarnation: h.Incarnation, Number: h.Question.Number, Nonce: h.Question.Nonce}) {
		t.Error("a process applies an answer although it knows that the clock was set back")
	}
	h.demand.since = noon + 3*renewal
	if h.enter(at(noon)); h.demand.since != noon {
		t.Error("demand is measured in the future")
	}

	// A new list of regions, while a question waits: it is asked again at once, and not earlier than it would be.
	h = &Holding{Epoch: 1, Waiting: true, SentAt: noon, AskedAt: noon}
	if _, ok := h.Ask(at(noon+1), x.l, "a", 2, 7); !ok || h.SentAt != noon+1 {
		t.Error("it waits for the home of the list before")
	}

	// The part stays if nothing changes, and only then.
	apply := func(now int64, change func(*ShareAnswer)) *Holding {
		h := &Holding{Epoch: 1, Incarnation: 1, Rate: 60, Tokens: 60, Expires: noon + 10*second, Waiting: true, AskedAt: now, Question: ShareQuestion{Number: 1}}
		h.Take(at(noon), x.l, 40)
		h.Waiting = true
		a := ShareAnswer{Epoch: 1, Incarnation: 1, Number: 1, Rate: 60, Tokens: 60, ValidFor: longestLife}
		change(&a)
		if !h.Apply(at(now), x.l, &a) {
			t.Fatal("not applied")
		}
		return h
	}
	left := func(h *Holding, now int64) int64 { return h.Take(at(now), x.l, 0).Left }
	for name, y := range map[string]struct {
		at     int64
		change func(*ShareAnswer)
		left   int64
	}{
		"the same":          {noon, func(*ShareAnswer) {}, 20},
		"minted":            {noon, func(a *ShareAnswer) { a.Mint = 3 }, 23},
		"too much minted":   {noon, func(a *ShareAnswer) { a.Mint = 300 }, 60},
		"another rate":      {noon, func(a *ShareAnswer) { a.Rate = 50 }, 20},
		"a smaller bucket":  {noon, func(a *ShareAnswer) { a.Tokens = 10 }, 10},
		"just in time":      {noon + 10*second - 1, func(*ShareAnswer) {}, 29},
		"too late":          {noon + 10*second, func(*ShareAnswer) {}, 0},
		"late, and smaller": {noon + 10*second, func(a *ShareAnswer) { a.Rate = 50 }, 0},
	} {
		if got := left(apply(y.at, y.change), y.at); got != y.left {
			t.Errorf("%s: %d tokens are left, want %d", name, got, y.left)
		}
	}
	h = apply(noon, func(*ShareAnswer) {})
	if h.Expires != noon+shortened(longestLife)-unnoticed {
		t.Errorf("it expires at %d", h.Expires-noon)
	}
	h = apply(noon, func(a *ShareAnswer) { a.Rate = 50 })
	if h.Rate != 50 {
		t.Errorf("%+v", h)
	}
	h = &Holding{Rate: 5, Tokens: 5, Expires: noon, Epoch: 1}
	if q, _ := h.Ask(at(noon), x.l, "a", 1, 7); q.Held != 0 || h.Tokens != 0 {
		t.Errorf("an expired part is held: %+v", q)
	}
}

// A bucket that nobody used for a while is full again, even if all parts have expired: the home saves what flows in meanwhile.
func TestSavedTokens(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 1200})
	x.renew(noon, "a", 0)
	x.renew(noon, "b", 0)
	if got := x.s.Saved; got != 400 {
		t.Errorf("%d are saved, of 600 per minute a and b have 400", got)
	}
	x.take(noon, "a", x.h["a"].Tokens)
	x.s.Saved, x.s.Holders = 0, x.s.Holders[:1]
	expires := x.s.Holders[0].Expires
	x.s.save(x.l, noon+second/2)
	if x.s.Saved != 3 || x.s.Part != int64(60*second/3) { // 400 per minute are nobody's
		t.Errorf("%d and %d are saved after half a second", x.s.Saved, x.s.Part)
	}
	x.s.save(x.l, noon) // the clock was set back
	if x.s.Saved != 3 || x.s.SavedAt != noon {
		t.Errorf("%d are saved", x.s.Saved)
	}
	x.s.save(x.l, expires+30*second) // a part of that time nobody had a part
	if want := int64(3 + 200 + 300); x.s.Saved != want {
		t.Errorf("%d are saved, want %d", x.s.Saved, want)
	}
	x.s.save(x.l, expires+time90)
	if x.s.Saved != 800 || x.s.Part != 0 {
		t.Errorf("%d are saved: the part of a has its room until it is known to have expired", x.s.Saved)
	}
	if a := x.renew(expires+time90, "b", 0); a.Mint != a.Tokens || a.Tokens < 400 {
		t.Errorf("%+v", a)
	}
	x.s.reset(x.l, expires+time90)
	if want := int64(1200) - x.h["b"].Tokens; x.s.Saved != want {
		t.Errorf("%d are saved after a reset, want %d", x.s.Saved, want)
	}
}

const time90 = 90 * second

// A counter that becomes divided lacks what was used before, and one that is whole again lacks what its regions have used.
func TestACounterIsDivided(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 600})
	whole := *x.d
	whole.Grants = false
	var c Counter
	if o, ok := c.Take(at(noon), x.l, &whole, 500); !ok || !o.Allowed {
		t.Fatal("not taken")
	}
	q := x.ask(noon, "a")
	a := c.Divide(at(noon), x.l, &whole, &q)
	if a.Result != Granted || a.Mint != 100 || a.Tokens < 100 {
		t.Errorf("%+v: 100 are left", a)
	}
	if again := c.Divide(at(noon), x.l, &whole, &q); again != a {
		t.Errorf("%+v, then %+v", a, again)
	}
	late := q
	late.Epoch++
	if a := c.Divide(at(noon), x.l, &whole, &late); a.Result != Outdated {
		t.Errorf("%+v", a)
	}
	if got, want := c.Expires(noon, x.l), noon+longestLife+2*60*second+2*pastLife; got != int64(want) {
		t.Errorf("it expires at noon and %d", got-noon)
	}
	if _, ok := c.Take(at(noon+longestLife-1), x.l, &whole, 1); ok {
		t.Error("taken while a region has its part")
	}
	o, ok := c.Take(at(noon+longestLife), x.l, &whole, 0)
	if free := (600 - a.Rate) / 2; !ok || c.Shares.Begun || o.Used != 600-free {
		t.Errorf("%+v, %t: %d have flowed in", o, ok, free)
	}
	if _, ok := c.Take(at(noon+longestLife), x.l, &Duty{Epoch: 1}, 0); ok {
		t.Error("taken without a role")
	}
	none := *x.d
	none.Until = 0
	if a := new(Counter).Divide(at(noon), x.l, &none, &q); a.Result != Inactive {
		t.Errorf("%+v", a)
	}
}

// A region asks for its part while it is in use, denies a caller who is blocked at the home, and keeps fractions of tokens when its part changes.
func TestAPartInUse(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 600})
	x.renew(noon, "a", 0)
	h := x.h["a"]
	x.take(noon, "a", h.Tokens)
	for when, want := range map[int64]bool{noon + renewal - 1: false, noon + renewal: true, noon + longestLife - 1: true, noon + longestLife: false} {
		if h.Due(when) != want {
			t.Errorf("due after %d: %t", when-noon, !want)
		}
	}
	if (&Holding{}).Due(noon + renewal) {
		t.Error("a region without a part asks though nobody needs one")
	}
	if got, want := h.LastsUntil(noon), h.Expires+2*pastLife; got != want || h.Fresh() || !new(Holding).Fresh() {
		t.Errorf("%d", got)
	}
	// 200 per minute: the first token is there after 0.3 s. The part becomes larger after 0.2 s, with 2/3 of it.
	h.Waiting = true
	more := ShareAnswer{Epoch: 1, Incarnation: h.Incarnation, Number: h.Question.Number, Nonce: h.Question.Nonce, Rate: 400, Tokens: 400, ValidFor: longestLife}
	h.Apply(at(noon+second/5), x.l, &more)
	for now, want := range map[int64]bool{noon + second/4: false, noon + second/4 + 1: true} {
		was := *h
		if got := x.take(now, "a", 1); got.Allowed != want {
			t.Errorf("%+v after %d", got, now-noon)
		}
		*h = was
	}
	h.Waiting = true
	blocked := more
	blocked.Result = Full
	h.Apply(at(noon+second), x.l, &blocked)
	h.SentAt = noon + second
	if got := x.take(noon+second, "a", 1); got.Allowed || !got.Full {
		t.Errorf("%+v: blocked", got)
	}
	if got := x.take(noon+second+2*renewal, "a", 1); got.Allowed || got.Full {
		t.Errorf("%+v: it is not known any more", got)
	}
	h.State = backend.State{Start: noon + 60*second}
	if h.Refill(); h.State.Start != 0 {
		t.Error("it is not full")
	}
}

// What flows in at the part of the rate that no region has is saved: until a region's part has expired, whether lost or not, the larger one
// of what it said and what it was given counts.
func TestWhatIsSaved(t *testing.T) {
	minute := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 1200})
	small := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 40})
	many := descriptor.Limit{Algorithm: descriptor.TokenBucket, Requests: 9_000_000, Burst: 600}
	many.Window.Unit = descriptor.Second
	most := many
	most.Requests = 16_000_000 // 64 bits do not hold what flows in by the latest time
	until := noon + int64(60*second)
	for _, c := range []struct {
		name    string
		l       *descriptor.Limit
		saved   Shares
		now     int64
		want    int64
		aPartOf bool
	}{
		{"a lost part counts until it expires", minute, Shares{SavedAt: noon, Holders: []Holder{{Lost: 200, LostExpires: noon + 15*second}}}, until, 100 + 450, false},
		{"a part that is given up counts until it is", minute, Shares{SavedAt: noon, Holders: []Holder{{Held: 200, Given: 100, Expires: until}}}, until, 400, false},
		{"so does one that is given", minute, Shares{SavedAt: noon, Holders: []Holder{{Held: 100, Given: 200, Expires: until}}}, until, 400, false},
		{"a full bucket has no part of a token", minute, Shares{Saved: 1199, SavedAt: noon}, noon + 3*second/20, 1200, false},
		{"one that is not full has", minute, Shares{Saved: 1198, SavedAt: noon}, noon + 3*second/20, 1199, true},
		{
			"nothing flows in while regions have more than the limit, which was lowered", small,
			Shares{SavedAt: noon, Holders: []Holder{{Held: 201, Expires: never}, {Held: 201, Expires: never}, {Held: 200, Expires: never}}}, until + 60*second, 0, false,
		},
		{"after a long time it is full", perSecond(t, many), Shares{}, latest, 600, false},
		{"after a longer time, too", perSecond(t, most), Shares{}, latest, 600, false},
	} {
		s := c.saved
		s.save(c.l, c.now)
		if s.Saved != c.want || (s.Part > 0) != c.aPartOf {
			t.Errorf("%s: %d and %d are saved, want %d", c.name, s.Saved, s.Part, c.want)
		}
	}
}

func perSecond(t *testing.T, l descriptor.Limit) *descriptor.Limit {
	t.Helper()
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	return &l
}

// A reset fills the room that no region has: that of parts that have expired, too, and none if regions have more than a limit that was lowered.
func TestAResetOfSharesFillsTheRoom(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 1200})
	for name, c := range map[string]struct {
		h    Holder
		want int64
	}{
		"a part":              {Holder{Held: 200, Expires: noon + 1}, 800},
		"one that expired":    {Holder{Held: 200, Expires: noon}, 1200},
		"a lost one, expired": {Holder{Lost: 200, LostExpires: noon}, 1200},
		"more than there is":  {Holder{Held: 600, Lost: 300, Expires: never, LostExpires: never}, 0},
	} {
		s := Shares{Begun: true, Holders: []Holder{c.h}}
		if s.reset(l, noon); s.Saved != c.want {
			t.Errorf("%s: %d, want %d", name, s.Saved, c.want)
		}
		counter := Counter{Epoch: 1, Shares: Shares{Begun: true, Holders: []Holder{c.h}}}
		whole := Duty{Epoch: 1, Regions: three, Until: never}
		if !counter.Reset(at(noon), l, &whole) || counter.Shares.Saved != c.want {
			t.Errorf("%s: the counter has %d, want %d", name, counter.Shares.Saved, c.want)
		}
	}
}

// A home that has forgotten grants or parts grants nothing as long as they may last. A time that is later than that is of another clock.
func TestHowLongAHomeLearns(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 1200})
	for until, want := range map[int64]bool{noon: false, noon + 1: true, noon + pastLife: true, noon + pastLife + 1: false} {
		s := Shares{Learning: until, Holders: []Holder{{Region: "a", Expires: never}}}
		if learns := s.give(l, duty(), &s.Holders[0], noon) == 0; learns != want {
			t.Errorf("no part grows for %d us: %t", until-noon, learns)
		}
		if c := (Counter{Learning: until}); c.learns(noon) != want {
			t.Errorf("nothing is granted for %d us: %t", until-noon, !want)
		}
	}
}

// An account that is new, and says that it has a part, has one that the home has forgotten, however small.
func TestAForgottenPartOfOne(t *testing.T) {
	x := newDivision(t, descriptor.Limit{})
	for _, h := range []Holder{{Region: "a"}, {Region: "a", Incarnation: 1, Held: 1, Given: 1, Expires: never}} {
		s := Shares{Epoch: 1, Begun: true, Holders: []Holder{h}}
		if s.Exchange(at(noon), x.l, x.d, &ShareQuestion{Region: "a", Epoch: 1, Incarnation: 2, Number: 1, Held: 1}); s.Learning != noon+pastLife {
			t.Errorf("%+v: nothing was forgotten", h)
		}
	}
}

// A bucket is divided only by its home, at the epoch that this one obeys. Until then nothing changes, nor for a limit of another kind.
func TestWhoDividesACounter(t *testing.T) {
	bucket := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 600})
	for name, c := range map[string]struct {
		l      *descriptor.Limit
		epoch  uint64 // of the counter
		d      Duty
		q      uint64
		result Result
	}{
		"the home":                {bucket, 1, Duty{Epoch: 1, Until: never, Regions: three}, 1, Granted},
		"of an epoch before":      {bucket, 1, Duty{Epoch: 2, Until: never, Regions: three}, 1, Outdated},
		"whose list is older":     {bucket, 2, Duty{Epoch: 1, Until: never, Regions: three}, 1, Outdated},
		"one that may not act":    {bucket, 1, Duty{Epoch: 1, Regions: three}, 1, Inactive},
		"a limit of another kind": {perMinute(t, descriptor.Limit{}), 1, Duty{Epoch: 1, Until: never, Regions: three}, 1, Inactive},
	} {
		was := Counter{Epoch: c.epoch}
		was.settle(c.l, noon, 7)
		got := was
		a := got.Divide(at(noon), c.l, &c.d, &ShareQuestion{Region: "a", Epoch: c.q, Incarnation: 1, Number: 1})
		if a.Result != c.result || got.Shares.Begun != (c.result == Granted) || c.result != Granted && !reflect.DeepEqual(got.State, was.State) {
			t.Errorf("%s: %+v, and the counter is %+v", name, a, got)
		}
		if Divided(c.l) != (c.l == bucket) {
			t.Errorf("%s: divided is %t", name, Divided(c.l))
		}
	}
}

// A divided counter is kept, and stays divided, until the last of all parts has expired, even one of a single request.
func TestADividedCounterLastsAsItsParts(t *testing.T) {
	l := perMinute(t, descriptor.Limit{Algorithm: descriptor.TokenBucket, Burst: 600})
	none := Counter{Shares: Shares{Begun: true}}
	for _, holders := range [][]Holder{
		{{Region: "a", Held: 1, Expires: noon + 9*second}, {Region: "b", Expires: noon + second}},
		{{Region: "a", Lost: 1, LostExpires: noon + 9*second}, {Region: "b", Expires: noon + second}},
	} {
		c := Counter{Epoch: 1, Shares: Shares{Begun: true, Holders: holders}}
		if got, want := c.Expires(noon, l), none.Expires(noon+9*second, l); got != want {
			t.Errorf("%+v: it is kept for %d us, want %d", holders, got-noon, want-noon)
		}
		whole := Duty{Epoch: 1, Regions: three, Until: never}
		if _, ok := c.Take(at(noon+9*second-1), l, &whole, 1); ok {
			t.Errorf("%+v: it is whole while a region has a part", holders)
		}
		if _, ok := c.Take(at(noon+9*second), l, &whole, 0); !ok {
			t.Errorf("%+v: it is not whole when all parts have expired", holders)
		}
	}
}

// A region whose clock was set back gives up its part, and measures its demand anew.
func TestAHoldingWhoseClockWasSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		r    Reading
		last int64
		want int64
	}{
		"a generation":   {Reading{Now: noon, Generation: 1}, noon - second, noon - second},
		"an earlier now": {Reading{Now: noon - 1}, noon, noon - 1},
	} {
		h := Holding{Seen: noon, Rate: 60, Tokens: 60, Expires: noon + 9*second, Waiting: true, SentAt: noon, demand: demand{since: noon, last: c.last}}
		if !h.enter(c.r) || h.Rate != 0 || h.Tokens != 0 || h.Expires != 0 || h.Waiting || h.SentAt != 0 {
			t.Errorf("%s: %+v", name, h)
		}
		if h.demand.since != c.r.Now || h.demand.last != c.want {
			t.Errorf("%s: %+v", name, h.demand)
		}
	}
}

// A region asks for its part while takes come, and while it has one: a take of nothing is none.
func TestARegionInUseAsks(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 600})
	for _, c := range []struct{ hits, last int64 }{{0, noon}, {1, noon + second}, {2, noon + second}} {
		h := Holding{Seen: noon, Rate: 1, Tokens: 1, Expires: noon + 9*second, demand: demand{last: noon}}
		if h.Take(at(noon+second), x.l, c.hits); h.demand.last != c.last {
			t.Errorf("%d hits: the last take was after %d us", c.hits, h.demand.last-noon)
		}
	}
	for rate, want := range map[int64]bool{0: false, 1: true} {
		h := Holding{Rate: rate, demand: demand{last: noon}}
		if h.Due(noon+renewal) != want {
			t.Errorf("due with %d per minute: %t", rate, !want)
		}
	}
	if h := (Holding{Expires: noon}); h.LastsUntil(noon+second) != noon+second+2*pastLife {
		t.Errorf("a part that has expired: until %d us", h.LastsUntil(noon+second)-noon)
	}
	for _, h := range []Holding{{Incarnation: 1}, {Question: ShareQuestion{Number: 1}}} {
		if h.Fresh() {
			t.Errorf("%+v is fresh", h)
		}
	}
}

// Answers that give nothing take the part away, and are taken in. The next part has the tokens that come with it.
func TestAnswersThatTakeAPartAway(t *testing.T) {
	x := newDivision(t, descriptor.Limit{Burst: 600})
	for _, result := range []Result{Full, Stale} {
		h := Holding{Epoch: 1, Incarnation: 1, Rate: 60, Tokens: 60, Expires: noon + 9*second, Waiting: true, AskedAt: noon, Question: ShareQuestion{Number: 5}}
		if !h.Apply(at(noon), x.l, &ShareAnswer{Epoch: 1, Incarnation: 1, Number: 5, Result: result}) || h.Rate != 0 || h.Tokens != 0 {
			t.Errorf("%d: %+v", result, h)
		}
		if h.Fresh() != (result == Stale) {
			t.Errorf("%d: it begins anew: %t", result, h.Fresh())
		}
		q, ok := h.Ask(at(noon+renewal), x.l, "a", 1, 7)
		if !ok || !h.Apply(at(noon+renewal), x.l, &ShareAnswer{Epoch: 1, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce, Rate: 60, Tokens: 60, Mint: 59, ValidFor: longestLife}) {
			t.Fatalf("%d: %+v", result, h)
		}
		if got := h.Take(at(noon+renewal), x.l, 0).Left; got != 59 {
			t.Errorf("%d: %d tokens, want all but one", result, got)
		}
	}
}
