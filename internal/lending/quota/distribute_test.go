package quota

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// client adds a subscriber with a token bucket, whose demand is known.
func (k kit) client(rate float64, tokens uint32, demand float64) *Subscriber {
	s := k.b.Join(start.Add(time.Duration(len(k.b.subscribers)))) // one after the other
	s.reported, s.heard = start, start
	s.Measured(demand)
	if tokens > 0 {
		s.tell(tokensOf(rate, tokens))
		s.Sent(start)
	}
	k.b.sum()
	return s
}

// loses adds a rate held by lost clients.
func (k kit) loses(rate float64) {
	k.b.lost = append(k.b.lost, loss{rate: rate, expires: after(1e9)})
	k.b.sum()
}

// The fair parts of clients, in tenths of requests per second, and their bursts: an eighth of the burst is withheld for
// newcomers, each client gets one token, and the rest is divided like the rate.
func TestFairParts(t *testing.T) {
	type client struct {
		rate            float64
		tokens          uint32
		demand          float64 // less than 0: not known yet
		claims          float64
		fill, maxTokens uint32
	}
	for _, c := range []struct {
		name    string
		rate    float64
		burst   float64
		waiting bool
		clients []client
	}{
		{"2 % are spared", 100, 100, false, []client{{0, 0, -1, 0, 980, 88}}},
		{"a fifth is spared while one waits for a token", 100, 100, true, []client{{0, 0, -1, 0, 800, 88}}},
		{"the rest is divided equally", 100, 100, false, []client{{0, 0, 20, 0, 490, 44}, {0, 0, 20, 0, 490, 44}}},
		{"no token is left over", 100, 100, false, []client{{0, 0, 0, 0, 326, 29}, {0, 0, 0, 0, 326, 29}, {0, 0, 0, 0, 326, 30}}},
		{"the demand and two fifths of it for small buckets", 100, 100, false, []client{{0, 0, 60, 0, 840, 74}, {0, 0, 10, 0, 140, 14}}},
		{"a small bucket has fewer than 5 tokens", 100, 100, false, []client{{1, 4, 10, 0, 140, 13}, {1, 5, 10, 0, 103, 10}, {1, 5, 1000, 0, 737, 65}}},
		{"a newcomer gets a quarter of an equal share at least", 100, 100, false, []client{{0, 0, 1000, 0, 857, 76}, {0, 0, -1, 0, 122, 12}}},
		{"others get a fiftieth", 100, 100, false, []client{{0, 0, 1000, 0, 970, 86}, {0, 0, 0, 0, 9, 2}}},
		{"of a high rate, too", 1000, 100, false, []client{{0, 0, 10000, 0, 9702, 86}, {0, 0, 0, 0, 98, 2}}},
		{"one that has not reported yet keeps its rate", 100, 100, false, []client{{0, 0, 1000, 0, 960, 85}, {2, 9, -1, 0, 20, 3}}},
		{"but a fiftieth at least", 100, 100, false, []client{{0, 0, 1000, 0, 970, 86}, {0.5, 9, -1, 0, 9, 2}}},
		{"or what it claims", 100, 100, false, []client{{0, 0, 1000, 0, 780, 69}, {0, 0, -1, 20, 200, 19}}},
		{"at least one a time", 0.1, 100, false, []client{{0, 0, 1, 0, 1, 86}, {0, 0, 0, 0, 1, 2}}},
		{"at most 4 billion a time", 1e9, 100, false, []client{{0, 0, 1, 0, math.MaxUint32, 88}}},
		{"one token each if there are no more", 100, 8, false, slices.Repeat([]client{{0, 0, -1, 0, 122, 1}}, 8)},
		{"at most 2 billion tokens", 100, 1e10, false, []client{{0, 0, 1, 0, 980, 1879048192}}},
	} {
		k := newKit(t, Rate{PerSecond: c.rate, Burst: c.burst, Interval: 10 * time.Second}, 0)
		k.b.waiting = c.waiting
		for _, x := range c.clients {
			s := k.client(x.rate, x.tokens, x.demand)
			if s.claim.rate = x.claims; x.demand < 0 {
				s.Demand, s.reports = 0, 0
			}
		}
		k.b.chosen = k.b.subscribers
		for i, target := range k.b.targets() {
			if x := c.clients[i]; target.s != k.b.subscribers[i] || target.fill != x.fill || target.max != x.maxTokens {
				t.Errorf("%s: the part of client %d is %d and %d at once, want %d and %d", c.name, i, target.fill, target.max, x.fill, x.maxTokens)
			}
		}
	}
	k := newSharedKit(t, 0) // the store spares some, too
	k.b.chosen = []*Subscriber{k.client(0, 0, 1)}
	if x := k.b.targets()[0]; x.fill != 497 || x.max != 44 {
		t.Errorf("the part of the only client of one of two processes is %d and %d at once, want 497 and 44", x.fill, x.max)
	}
	for _, s := range []Share{{Rate: 40, FairRate: 90, Burst: 30, FairBurst: 90, Replicas: 2}, {Rate: 90, FairRate: 40, Burst: 90, FairBurst: 30, Replicas: 2}} {
		k.b.SetShare(start, s)
		if x := k.b.targets()[0]; x.fill != 398 || x.max != 27 {
			t.Errorf("of the share %+v the only client gets %d and %d at once, want 398 and 27", s, x.fill, x.max)
		}
	}
	if k.b.chosen = nil; k.b.targets() != nil {
		t.Error("nobody has a part")
	}
}

// A client lacks rate if it would use 5% more, and tokens if it should have three times as many.
func TestLacks(t *testing.T) {
	for _, c := range []struct {
		rate         float64
		tokens       uint32
		demand       float64
		fill, max    uint32
		rates, burst bool
	}{
		{10, 10, 50, 106, 29, true, false},
		{10, 10, 50, 105, 30, false, true},
		{10, 10, 9, 200, 31, false, true},
		{10.3, 10, 10, 200, 31, false, true}, // it uses all of its rate
		{10.2, 10, 10, 200, 31, true, true},
		{0, 0, 0, 1, 1, true, true}, // it has nothing
	} {
		k := newKit(t, hundred, 0)
		x := target{s: k.client(c.rate, c.tokens, c.demand), fill: c.fill, max: c.max}
		if x.lacksRate() != c.rates || x.lacksTokens() != c.burst {
			t.Errorf("%+v: lacks rate %v, lacks tokens %v", c, x.lacksRate(), x.lacksTokens())
		}
	}
}

// A client with more than its part is lowered to it only if others lack that, by more than 2% of the rate.
func TestLowers(t *testing.T) {
	for _, c := range []struct {
		name            string
		rate            float64
		tokens          uint32
		otherRate       float64
		otherTokens     uint32
		otherDemand     float64
		fill, maxTokens uint32
	}{
		{"nobody lacks anything", 60, 50, 38, 38, 10, 600, 50},
		{"the other lacks rate", 19, 50, 80.9, 38, 80, 129, 50},
		{"less than 5 % of it", 19, 50, 81, 38, 80, 190, 50},
		{"2 % more than the part may stay", 13.1, 50, 80, 38, 80, 131, 50},
		{"more may not", 13.2, 50, 80, 38, 80, 129, 50},
		{"the other lacks tokens", 60, 50, 38, 14, 10, 600, 44},
		{"or has none at all", 60, 50, 0, 0, 0, 536, 48},
		{"all tokens are handed out", 60, 60, 38, 40, 10, 600, 60},
		{"fewer than the part stay", 60, 20, 38, 14, 10, 600, 20},
	} {
		k := newKit(t, hundred, 0)
		x := k.client(c.rate, c.tokens, 10)
		k.client(c.otherRate, c.otherTokens, c.otherDemand)
		k.plan(0)
		if x.Held.Fill != c.fill || x.Held.MaxTokens != c.maxTokens {
			t.Errorf("%s: a client holds %d and %d at once, want %d and %d", c.name, x.Held.Fill, x.Held.MaxTokens, c.fill, c.maxTokens)
		}
	}
}

// A client whose rate is lowered and whose burst is raised gets one message.
func TestIsToldOnce(t *testing.T) {
	k := newKit(t, hundred, 0)
	x := k.client(40, 4, 10)
	k.client(59, 30, 80)
	k.b.saved = 60
	k.true("both are told", k.plan(0) == 2)
	k.true("the first has less rate and more tokens", x.Held.Fill < 400 && x.Held.MaxTokens > 4)
}

// Two percent are exact.
func TestLowersByMoreThanTwoPercent(t *testing.T) {
	k := newKit(t, hundred, 0)
	for _, c := range []struct {
		rate float64
		fill uint32
	}{{5.1, 51}, {5.2, 50}} {
		x := k.client(c.rate, 10, 10)
		if k.b.lower(&target{s: x, fill: 50, max: 10}, true, true); x.Held.Fill != c.fill {
			t.Errorf("a client with %g per second and a part of 5 is lowered to %d in 10s, want %d", c.rate, x.Held.Fill, c.fill)
		}
	}
}

// A client is also lowered if all together hold more than the share of this replica, or 2% more than its fair part.
func TestLowersToTheShare(t *testing.T) {
	for _, c := range []struct {
		name            string
		share           Share
		fill, maxTokens uint32
	}{
		{"all of it", Share{Rate: 80, FairRate: 80, Burst: 50, FairBurst: 50}, 800, 50},
		{"more than the share", Share{Rate: 79, FairRate: 100, Burst: 50, FairBurst: 50}, 774, 50},
		{"2 % more than the fair part", Share{Rate: 100, FairRate: 80 / 1.02, Burst: 50, FairBurst: 50}, 800, 50},
		{"a little more", Share{Rate: 100, FairRate: 78, Burst: 50, FairBurst: 50}, 764, 50},
		{"more tokens than the fair part", Share{Rate: 80, FairRate: 80, Burst: 50, FairBurst: 49}, 800, 43},
		{"more tokens than the share", Share{Rate: 80, FairRate: 80, Burst: 49, FairBurst: 50}, 800, 50},
	} {
		k := newKit(t, hundred, 0)
		x := k.client(80, 50, 10)
		k.b.SetShare(start, c.share)
		k.plan(0)
		if x.Held.Fill != c.fill || x.Held.MaxTokens != c.maxTokens {
			t.Errorf("%s: a client holds %d and %d at once, want %d and %d", c.name, x.Held.Fill, x.Held.MaxTokens, c.fill, c.maxTokens)
		}
	}
}

// A client is raised towards its part as far as rate and saved tokens are free, if that is worth a message: at least 5%
// more of either. An eighth of the burst is withheld for newcomers. The client keeps its present rate and tokens.
func TestRaises(t *testing.T) {
	for _, c := range []struct {
		name            string
		rate            float64
		tokens          uint32
		lost            float64
		saved           float64
		fill, maxTokens uint32
		left            float64
	}{
		{"to its part", 50, 50, 0, 50, 980, 88, 12},
		{"as far as the rate is free", 50, 88, 47, 12, 530, 88, 12},
		{"not for less than 5 % more", 50, 88, 47.6, 12, 500, 88, 12},
		{"for 5 % more", 50, 88, 47.5, 12, 525, 88, 12},
		{"as far as tokens are saved", 98, 50, 0, 20, 980, 58, 12},
		{"whole tokens", 98, 50, 0, 20.5, 980, 58, 12.5},
		{"not for fewer than 5 % more", 98, 60, 0, 14, 980, 60, 14},
		{"for 5 % more tokens", 98, 60, 0, 15, 980, 63, 12},
		{"tokens for newcomers stay", 98, 50, 0, 5, 980, 50, 5},
		{"more tokens than its part stay, and more rate", 99, 90, 0, 10, 990, 90, 10},
		{"more tokens do not lower its rate", 99, 50, 0, 30, 990, 68, 12},
		{"a bucket of four tokens grows by half of what is saved", 98, 4, 0, 10, 980, 9, 5},
		{"and leaves no more than an eighth of the burst", 98, 4, 0, 50, 980, 42, 12},
		{"one of five waits until more is saved", 98, 5, 0, 10, 980, 5, 10},
		{"a new bucket starts full", 0, 0, 0, 100, 980, 88, 12},
		{"with what is saved", 0, 0, 0, 20.5, 980, 20, 0.5},
		{"with one token", 0, 0, 0, 1, 980, 1, 0},
		{"with one request in 10s", 0, 0, 99.9, 100, 1, 88, 12},
		{"not without rate", 0, 0, 100, 100, 0, 0, 100},
		{"not without rate, and one token", 0, 0, 100, 1, 0, 0, 1},
		{"not without a token", 0, 0, 0, 0.9, 0, 0, 0.9},
	} {
		k := newKit(t, hundred, 0)
		k.loses(c.lost)
		x := k.client(c.rate, c.tokens, 10)
		k.b.saved = c.saved
		k.plan(0)
		if x.Held.Fill != c.fill || x.Held.MaxTokens != c.maxTokens || !near(k.b.saved, c.left) {
			t.Errorf("%s: a client holds %d and %d at once and %g are saved, want %d, %d and %g", c.name, x.Held.Fill, x.Held.MaxTokens, k.b.saved, c.fill, c.maxTokens, c.left)
		}
		if (x.Held.Kind == DenyAll) != (c.fill == 0) {
			t.Errorf("%s: it holds %+v", c.name, x.Held)
		}
		if k.b.waiting != (c.saved < 1) {
			t.Errorf("%s: waits for a token: %v", c.name, k.b.waiting)
		}
	}
}

// Clients with the lowest rate are raised first.
func TestRaisesTheLeastFirst(t *testing.T) {
	k := newKit(t, hundred, 0)
	x, y := k.client(10, 20, 100), k.client(0, 0, 100)
	k.loses(80)
	k.b.saved = 50
	k.plan(0)
	k.holds(x, 10, 20)
	k.holds(y, 10, 44)
}

// A client that waits for its first token keeps the bucket waiting, even if others after it get one.
func TestOneStillWaits(t *testing.T) {
	k := newKit(t, hundred, 0)
	k.client(0, 0, 10)
	x := k.client(40, 20, 10)
	k.b.saved = 0.5
	k.plan(0)
	k.holds(x, 47.1, 20)
	k.true("the bucket waits for a token", k.b.NeedsPlan())
	k = newKit(t, hundred, 0)
	k.loses(100)
	k.client(0, 0, 10)
	k.client(0, 0, 10).claim = claim{tokens: 5, expires: after(10)} // it has tokens, but no rate
	k.plan(0)
	k.true("the bucket waits for a token", k.b.NeedsPlan())
	k = newKit(t, hundred, 0)
	x, y := k.client(0, 0, 10), k.client(0, 0, 10)
	z := k.b.Join(start)
	z.Measured(10)
	z.claim = claim{tokens: 5, expires: after(10)} // it has tokens of an old assignment
	k.b.saved = 0.5
	k.plan(0)
	k.holds(x, 0, 0)
	k.holds(y, 0, 0)
	k.holds(z, 32.6, 5)
	k.true("the bucket waits for a token", k.b.NeedsPlan())
}

// A newcomer among others gets at most half of the saved tokens, so that some remain for the next one, but always one
// token if there is one.
func TestNewcomersLeaveHalf(t *testing.T) {
	k := newKit(t, hundred, 40)
	x, y := k.b.Join(start), k.b.Join(start)
	k.plan(0)
	k.holds(x, 49, 20)
	k.holds(y, 49, 10)
	k.is("what is saved", k.b.saved, 10)
	k = newKit(t, hundred, 1.5)
	x, y = k.b.Join(start), k.b.Join(start)
	k.plan(0)
	k.holds(x, 49, 1)
	k.holds(y, 0, 0)
	k = newKit(t, hundred, 40)
	x = k.b.Join(start)
	k.plan(0)
	k.holds(x, 98, 40) // it is the only one
	k = newKit(t, hundred, 40)
	x, y = k.client(0, 0, 10), k.client(0, 0, 10)
	k.plan(0)
	k.holds(x, 49, 40) // not a newcomer: its demand is known
	k.holds(y, 0, 0)
	k = newKit(t, hundred, 40)
	x, _ = k.b.Join(start), k.b.Join(start)
	x.claim = claim{tokens: 10, expires: after(10)}
	k.plan(0)
	k.holds(x, 49, 30) // 10 are those of its claim
	k.is("what is saved", k.b.saved, 40-20-10)
}

// Tokens that a client already has cost nothing.
func TestTokensThatAClientBrings(t *testing.T) {
	for _, c := range []struct{ brings, saved, tokens, left float64 }{{30, 70, 88, 12}, {30, 20, 50, 0}, {95, 5, 88, 5}, {0.5, 1, 1, 0.5}} {
		k := newKit(t, hundred, 0)
		x := k.client(0, 0, 10)
		x.claim = claim{tokens: c.brings, expires: after(1)}
		k.b.saved = c.saved
		k.plan(0)
		k.holds(x, 98, uint32(c.tokens))
		k.is("what is saved", k.b.saved, c.left)
	}
	k := newKit(t, hundred, 50)
	x := k.client(0, 0, 10)
	x.claim = claim{tokens: 30, expires: after(1)}
	k.plan(1) // they have expired
	k.holds(x, 98, 88)
	k.is("what is saved", k.b.saved, 12)
}

// A client with an assignment of another replica keeps it, and gets no message, until it can get nine tenths of it
// here, or until its part is smaller and no more rate will become free.
func TestWaitsForWhatItClaims(t *testing.T) {
	for _, c := range []struct {
		name                       string
		rate, fair, got, uncertain float64
		other                      float64 // demand of another client that holds nothing
		want                       float64 // 0: it waits
	}{
		{"there is enough", 60, 60, 0, 0, 0, 58.8},
		{"there is not", 44.9, 44.9, 0, 0, 0, 0},
		{"just enough", 45, 45, 0, 0, 0, 44.1},
		{"just enough with what it got", 45, 45, 10, 0, 0, 44.1},
		{"not enough is certain", 60, 60, 0, 15.1, 0, 0},
		{"just enough is certain", 60, 60, 0, 15, 0, 45},
		{"its fair part is less, and it has to share", 60, 60, 0, 0, 1000, 29.4},
		{"its fair part is less, and the process has more than its own", 60, 30, 0, 0, 0, 0},
	} {
		k := kit{t, NewSharedBucket(start, hundred)}
		s := k.b.Join(start)
		k.b.Claim(start, s, 50)
		k.b.SetShare(start, Share{Rate: c.rate, FairRate: c.fair, Burst: 100, FairBurst: 100, Saved: 100})
		s.claim.got = c.got
		s.brings()
		k.b.sum()
		k.b.uncertain, k.b.certain = c.uncertain, after(3)
		if c.other > 0 {
			k.client(0, 0, c.other)
		}
		k.plan(0)
		if c.want == 0 {
			k.true(c.name+": it is told nothing", s.Held == Assignment{})
			k.plan(14)
			k.true(c.name+": after 14s it is told what there is", s.Held.Kind == Tokens && !k.b.Claims(after(14)))
		} else {
			k.true(c.name+": it gets nine tenths", s.Held.Kind == Tokens)
			k.is(c.name+": what it gets", s.Held.Rate(), c.want)
		}
	}
	k := kit{t, NewSharedBucket(start, hundred)}
	s := k.b.Join(start)
	k.b.Claim(start, s, 50)
	k.plan(1)
	k.true("one that waits is not told that nothing passes", s.Held == Assignment{})
	k.plan(14)
	k.holds(s, 0, 0)
}

// A client whose claim exceeds the free rate takes nothing from the others.
func TestOthersKeepTheirRateWhileOneClaims(t *testing.T) {
	k := newSharedKit(t, 0)
	x := k.client(49, 40, 100)
	k.b.Claim(start, k.b.Join(start), 50)
	k.true("no client is told anything", k.plan(0) == 0)
	k.holds(x, 49, 40)
}

// A hung client and one whose assignment is about to expire are denied from then on.
func TestWhoGetsNothing(t *testing.T) {
	k := newKit(t, hundred, 0)
	x, y := k.client(40, 20, 10), k.client(40, 20, 10)
	k.b.Report(after(10), y, 1, 0)
	k.plan(12)
	k.holds(x, 52.5, 47)
	k.plan(12 + 1e-9)
	k.holds(x, 0, 0)
	k.true("the other one holds something", y.Held.Kind == Tokens)

	k = newKit(t, hundred, 0)
	x = k.client(98, 88, 10)
	x.reports = 0 // does not count as hung
	k.b.Plan(after(29 - 1e-9))
	k.true("an assignment is renewed before it lapses", x.Held.Kind == Tokens)
	x.Sent(start)
	k.plan(29)
	k.holds(x, 0, 0)
}

// If there are too few tokens or too little rate for all, clients with demand and newcomers take turns, in the order in
// which they joined: 15 s each, or the time to refill two tokens, but at most a million seconds.
func TestTurns(t *testing.T) {
	in := func(k kit, seconds float64) (chosen string) {
		k.b.choose(after(seconds))
		for _, s := range k.b.subscribers {
			if s.chosen {
				chosen += s.Owner.(string)
			}
		}
		return chosen
	}
	join := func(k kit, name string, demand float64) *Subscriber {
		s := k.client(0, 0, demand)
		s.heard = after(1e9) // none counts as hung
		s.Owner = name
		return s
	}
	for _, c := range []struct {
		name  string
		rate  Rate
		long  float64
		turns []string
	}{
		{"two tokens", Rate{PerSecond: 100, Burst: 2.9, Interval: 10 * time.Second}, 15, []string{"ab", "ac", "bc", "ab"}},
		{"one token", Rate{PerSecond: 100, Burst: 1, Interval: 10 * time.Second}, 15, []string{"a", "b", "c", "a"}},
		{"a rate of two in 10s", Rate{PerSecond: 0.3, Burst: 100, Interval: 10 * time.Second}, 15, []string{"ab", "ac", "bc", "ab"}},
		{"two tokens of a slow bucket", Rate{PerSecond: 0.01, Burst: 2, Interval: 100_000 * time.Second}, 200, []string{"ab", "ac", "bc", "ab"}},
		{"two tokens of a very slow bucket", Rate{PerSecond: 1e-7, Burst: 2, Interval: longest}, 1e6, []string{"ab", "ac", "bc", "ab"}},
		{"three tokens are enough for all", Rate{PerSecond: 100, Burst: 3, Interval: 10 * time.Second}, 15, []string{"abc", "abc", "abc"}},
		{"no token", Rate{PerSecond: 100, Burst: 0.9, Interval: 10 * time.Second}, 15, []string{"", ""}},
	} {
		k := newKit(t, c.rate, 0)
		for _, name := range []string{"a", "b", "c"} {
			join(k, name, 1)
		}
		for i, want := range c.turns {
			begin := float64(i) * c.long
			if got, end := in(k, begin), in(k, begin+c.long-0.001); got != want || end != want {
				t.Errorf("%s: turn %d is that of %q, at its end of %q, want %q", c.name, i, got, end, want)
			}
		}
	}
	k := newKit(t, Rate{PerSecond: 100, Burst: 2, Interval: 10 * time.Second}, 0)
	gone := join(k, "x", 1)
	join(k, "a", 1)
	join(k, "b", 1)
	join(k, "c", 1)
	k.b.Forget(start, gone) // c is the first of the slice now
	for i, want := range []string{"ab", "ca", "cb"} {
		if got := in(k, float64(15*i)); got != want {
			t.Errorf("turn %d of those that are left is that of %q, want %q", i, got, want)
		}
	}
	k = newKit(t, Rate{PerSecond: 100, Burst: 2, Interval: 10 * time.Second}, 0)
	join(k, "a", 0)
	join(k, "b", 1)
	if got := in(k, 0); got != "ab" {
		t.Errorf("there is enough for all, and those chosen are %q", got)
	}
	join(k, "n", 0).reports = 0
	for i := range 3 {
		if got := in(k, float64(15*i)); got != "bn" {
			t.Errorf("there is enough for the one with demand and the newcomer, and those chosen are %q", got)
		}
	}
}

// A client is denied outside of its turn.
func TestNotItsTurn(t *testing.T) {
	k := newKit(t, Rate{PerSecond: 100, Burst: 1, Interval: 10 * time.Second}, 1)
	x, y := k.client(0, 0, 1), k.client(0, 0, 1)
	k.plan(0)
	k.holds(x, 98, 1)
	k.holds(y, 0, 0)
	k.b.Report(after(15), x, 1, 0)
	k.b.Report(after(15), y, 0, 1)
	k.plan(15)
	k.holds(x, 0, 0)
	k.holds(y, 0, 0) // the token is still in use
	k.true("the bucket waits for a token", k.b.NeedsPlan())
	k.b.Report(after(16), x, 0, 0)
	k.plan(16) // the client has used it, so another one has to be saved
	k.holds(y, 0, 0)
	k.plan(16.1)
	k.holds(x, 0, 0)
	k.holds(y, 80, 1)
}

// In the worst case, clients use the sum of their assignments at any time. No token appears that was not saved: the
// tokens that clients may have plus the saved ones grow only at the rate that nobody may use.
func TestNoTokenAppears(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 11))
		l := Rate{PerSecond: math.Pow(10, -1+3*r.Float64()), Burst: math.Ceil(math.Pow(10, 3*r.Float64())), Interval: 10 * time.Second}
		k := newKit(t, l, l.Burst*r.Float64())
		now, budget := start, k.b.saved // tokens that there may be
		for step := range 300 {
			rate, _ := k.b.out()
			took := time.Duration(r.IntN(2)) * time.Duration(r.IntN(7000)) * time.Millisecond
			now = now.Add(took)
			budget += took.Seconds() * max(l.PerSecond-rate, 0)
			all := k.b.Subscribers()
			what := r.IntN(8)
			if len(all) == 0 {
				what = 0
			}
			var s *Subscriber
			if len(all) > 0 {
				s = all[r.IntN(len(all))]
			}
			switch what {
			case 0:
				if s = k.b.Join(now); r.IntN(2) == 0 && !k.b.Return(now, s, 3) {
					s.Measured(r.Float64() * l.PerSecond)
				}
			case 1:
				k.b.Leave(now, s)
			case 2:
				k.b.Forget(now, s)
			case 3, 4:
				k.b.Report(now, s, uint64(r.IntN(20)), uint64(r.IntN(20)))
			case 5:
				if k.b.save(now); s.Held.Kind != None {
					s.Sent(now)
				}
			default:
				for _, s := range k.b.Plan(now) {
					if r.IntN(3) > 0 {
						s.Sent(now)
					}
				}
			}
			rate, burst := k.b.out()
			// A report may return tokens that were paid for: see TestLostTokens.
			if what != 3 && what != 4 && burst+k.b.saved > budget+1e-6*(1+budget) {
				t.Fatalf("seed %d, step %d (%d): there may be %g tokens, and clients have %g and %g are saved", seed, step, what, budget, burst, k.b.saved)
			}
			if what != 0 { // joining saves nothing
				budget = burst + k.b.saved
			}
			if k.b.saved < 0 || burst+k.b.saved > l.Burst+1e-6 {
				t.Fatalf("seed %d, step %d (%d): clients have %g tokens and %g are saved, of %g", seed, step, what, burst, k.b.saved, l.Burst)
			}
			if k.b.sum(); !near(rate, k.b.heldRate) || !near(burst, k.b.heldBurst) {
				t.Fatalf("seed %d, step %d (%d): %g per second and %g tokens are counted as held, and the sum over all is %g and %g", seed, step, what, rate, burst,
					k.b.heldRate, k.b.heldBurst)
			}
		}
	}
}

// A token bucket that started with one token, because none was saved then, soon gets more of the saved tokens: it loses
// much of its rate. The reserve of a long window would take minutes to save.
func TestSmallBucketGrowsBeforeTheReserveIsSaved(t *testing.T) {
	k := newKit(t, Rate{PerSecond: 100, Burst: 6_000, Interval: 10 * time.Second}, 1)
	a, b := k.b.Join(start), k.b.Join(start)
	for second := range 60 {
		at := float64(second)
		k.plan(at)
		if second%5 == 4 {
			for _, s := range []*Subscriber{a, b} {
				k.b.Report(after(at), s, 200, 100)
			}
		}
	}
	for _, s := range []*Subscriber{a, b} {
		if h := s.Held; h.Kind != Tokens || h.MaxTokens < small {
			t.Errorf("after a minute a client holds %+v", h)
		}
	}
	if _, burst := k.b.out(); k.b.saved+burst > 6_000 || k.b.saved < 1 {
		t.Errorf("%g tokens are saved, %g handed out", k.b.saved, burst)
	}
}
