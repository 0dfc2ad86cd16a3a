package quota

import (
	"math"
	"testing"
	"time"
)

// told is a subscriber that has just joined and was assigned 10 requests per second with a burst of 20.
func told() *Subscriber {
	s := NewBucket(start, hundred, 100).Join(start)
	s.tell(Assignment{Kind: Tokens, TTL: 30 * time.Second, Fill: 100, Interval: 10 * time.Second, MaxTokens: 20})
	s.Sent(start)
	return s
}

func tokensOf(rate float64, tokens uint32) Assignment {
	return Assignment{Kind: Tokens, TTL: 30 * time.Second, Fill: uint32(10 * rate), Interval: 10 * time.Second, MaxTokens: tokens}
}

// The demand is measured over at least a second. The measurement ends after 20 requests, after 30 s, or when there are
// 4 requests more or fewer than expected. A rise is weighted with 0.8, a fall with 0.7, or less for few requests.
func TestDemand(t *testing.T) {
	type step struct {
		seconds float64
		n       uint64 // requests since the step before
		want    float64
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the first measurement is the demand", []step{{0.999, 50, 0}, {1, 0, 50}}},
		{"a first measurement may be of few requests", []step{{2, 1, 0.5}}},
		{"what comes too soon counts later", []step{{1, 10, 10}, {1.5, 20, 10}, {2, 5, 10 + 0.8*15}}},
		{"many requests are certain", []step{{1, 20, 20}, {2, 20, 20}, {3, 60, 20 + 0.8*40}, {4, 20, 52 - 0.7*32}}},
		{"a time of 20 expected requests is certain, even if none came", []step{{1, 20, 20}, {2, 0, 20 - 0.7*20}}},
		{"few requests fall slowly", []step{{1, 4, 4}, {2, 0, 4 - 0.4*4}}},
		{"4 more than expected are certain", []step{{1, 2, 2}, {2, 5, 2}, {3, 2, 2}, {4, 3, 2 + 0.8*(10.0/3-2)}}},
		{"4 fewer than expected are certain", []step{{1, 2, 2}, {2.9, 0, 2}, {3, 0, 2 - 0.4*2}}},
		{"few requests wait for 30s, and count little", []step{{10, 1, 0.1}, {40 - 1e-9, 2, 0.1}, {40, 2, 0.1 + 0.8*(4.0/20)*(4.0/30-0.1)}}},
		{"what was expected counts as much as what came", []step{{10, 1, 0.1}, {40, 1, 0.1 - 0.4*(3.0/20)*(0.1-1.0/30)}}},
		{"20 that were expected count in full", []step{{10, 7, 0.7}, {40, 18, 0.7 - 0.7*0.1}}},
		{"a fall counts for a tenth at least", []step{{20, 1, 0.05}, {50, 0, 0.05 - 0.4*0.1*0.05}}},
		{"the 20th request makes it certain", []step{{1, 17, 17}, {2, 20, 17 + 0.8*20.0/20*3}}},
		{"the 19th does not", []step{{1, 17, 17}, {2, 19, 17}}},
		{"the same again changes nothing", []step{{1, 30, 30}, {2, 30, 30}}},
		{"less than one a year is none", []step{{6e7, 1, 0}}},
		{"one a year is some", []step{{365 * 24 * 3600, 1, 1.0 / (365 * 24 * 3600)}}},
		{"more requests than are possible count as 4 billion", []step{{1, math.MaxUint64, math.MaxUint32}}},
	} {
		s := NewBucket(start, hundred, 100).Join(start)
		for i, x := range c.steps {
			if x.n%2 == 0 {
				s.report(after(x.seconds), 0, x.n)
			} else {
				s.report(after(x.seconds), x.n, 0)
			}
			if !near(s.Demand, x.want) {
				t.Errorf("%s: the demand after step %d is %g, want %g", c.name, i, s.Demand, x.want)
			}
		}
	}
	s := NewBucket(start, hundred, 100).Join(start)
	s.report(after(1), math.MaxUint64, math.MaxUint64)
	if s.Demand != 2*math.MaxUint32 {
		t.Errorf("passed and denied requests add up to %g", s.Demand)
	}
	s = NewBucket(start, hundred, 100).Join(start)
	s.Measured(40)
	s.report(after(1), 10, 10)
	if s.Demand != 40-0.7*20 {
		t.Errorf("a demand of 40 that another process measured, and then 20, is %g", s.Demand)
	}
}

// A subscriber is active when a request was reported, whether it passed or not.
func TestActive(t *testing.T) {
	s := NewBucket(start, hundred, 100).Join(start)
	for i, c := range []struct {
		allowed, denied uint64
		active          float64
	}{{0, 0, 0}, {1, 0, 2}, {0, 0, 2}, {0, 1, 4}, {1, 1, 5}} {
		s.report(after(float64(i+1)), c.allowed, c.denied)
		if !s.Active().Equal(after(c.active)) {
			t.Errorf("after report %d the client was last active after %s, want %gs", i+1, s.Active().Sub(start), c.active)
		}
	}
}

// A client counts as hung if more than two reports are missing: at least 12 s. One that has never reported does not.
func TestSilent(t *testing.T) {
	for _, c := range []struct{ gap, silent float64 }{{1, 12}, {5, 12}, {10, 24}} {
		s := told()
		if s.isSilent(after(1000)) {
			t.Error("a client that has not reported yet is taken for hung")
		}
		s.report(after(1), 10, 0)
		s.report(after(1+c.gap), 10, 0)
		if s.isSilent(after(1+c.gap+c.silent)) || !s.isSilent(after(1+c.gap+c.silent).Add(1)) {
			t.Errorf("a client that reports every %gs is not taken for hung after %gs", c.gap, c.silent)
		}
	}
}

// From a second before a token bucket expires, nothing may be written to its client: it could arrive after the expiry.
func TestLapses(t *testing.T) {
	s := told()
	if s.lapses(after(29).Add(-1)) || !s.lapses(after(29)) || !s.lapses(after(100)) {
		t.Error("a token bucket of 30s does not lapse after 29s")
	}
	s.tell(tokensOf(11, 20))
	if s.lapses(after(100)) {
		t.Error("a token bucket that was not written yet lapses")
	}
	s.tell(Assignment{Kind: DenyAll, TTL: 30 * time.Second})
	s.Sent(start)
	if s.lapses(after(29)) {
		t.Error("an assignment that is no token bucket lapses")
	}
	if n := (&Subscriber{}); n.lapses(after(29)) {
		t.Error("no assignment lapses")
	}
}

// The largest assignment that a client may still use counts: an earlier one until a report arrives at least a second
// after a later one was written.
func TestConfirm(t *testing.T) {
	s := told()
	largest := func(what string, rate, tokens float64) {
		t.Helper()
		if s.rate() != rate || s.burst() != tokens {
			t.Errorf("%s a client may use %g per second and %g at once, want %g and %g", what, s.rate(), s.burst(), rate, tokens)
		}
	}
	s.tell(tokensOf(5, 10))
	s.report(after(50), 0, 0)
	largest("before a smaller one is written", 10, 20)
	s.Sent(after(50))
	s.report(after(51).Add(-1), 0, 0)
	largest("before a report can confirm a smaller one", 10, 20)
	s.report(after(51), 0, 0)
	largest("after the report that confirms a smaller one", 5, 10)

	s.tell(tokensOf(4, 10))
	s.Sent(after(52))
	s.tell(tokensOf(3, 10))
	s.Sent(after(53))
	s.tell(tokensOf(2, 10))
	s.Sent(after(54))
	s.report(after(53), 0, 0)
	largest("when the second of three is confirmed", 4, 10)
	s.report(after(54), 0, 0)
	largest("when the third of four is confirmed", 3, 10)
	s.tell(tokensOf(1, 10))
	s.report(after(60), 0, 0)
	largest("while the last was not written", 2, 10)
	s.tell(tokensOf(2, 10)) // the new assignment is no larger than the previous one
	largest("with a larger one that was not written", 2, 10)
	s.tell(tokensOf(7, 30))
	largest("with the largest one", 7, 30)
}

// Only an assignment of which a client may still use more must be confirmed as replaced.
func TestARaiseNeedsNoConfirmation(t *testing.T) {
	s := told()
	s.tell(tokensOf(10, 25))
	s.tell(tokensOf(12, 25))
	s.tell(tokensOf(13, 26))
	n := NewBucket(start, hundred, 100).Join(start)
	n.tell(Assignment{Kind: DenyAll, TTL: 30 * time.Second})
	n.tell(tokensOf(1, 1))
	if len(s.former) != 0 || len(n.former) != 0 {
		t.Errorf("%d and %d assignments wait for a confirmation after raises", len(s.former), len(n.former))
	}
	s.tell(tokensOf(14, 25))
	s.tell(tokensOf(13, 26))
	if len(s.former) != 2 {
		t.Errorf("%d assignments wait for a confirmation after fewer tokens and a lower rate", len(s.former))
	}
}

// An assignment expires at the client a second after its TTL; one that was not written yet does not.
func TestSettle(t *testing.T) {
	s := told()
	s.settle(after(31).Add(-1))
	if s.Held != tokensOf(10, 20) || !s.Expires().Equal(after(31)) {
		t.Errorf("before its time is over, a client holds %+v until %s", s.Held, s.Expires())
	}
	s.tell(tokensOf(5, 10))
	s.settle(after(31).Add(-1))
	if s.rate() != 10 {
		t.Errorf("an earlier assignment is forgotten before its time: %g", s.rate())
	}
	s.settle(after(31))
	if s.rate() != 5 || s.Held != tokensOf(5, 10) {
		t.Errorf("of an assignment that was not written and an earlier one that has expired, a client holds %g per second", s.rate())
	}
	s.tell(tokensOf(4, 10)) // neither was the previous one written
	s.settle(after(1000))
	if s.rate() != 5 {
		t.Errorf("of two assignments that were not written, a client may use %g per second, want 5", s.rate())
	}
	s.Sent(after(1000))
	s.settle(after(1031).Add(-1))
	if s.rate() != 5 || s.Held != tokensOf(4, 10) {
		t.Errorf("the earlier of two assignments is forgotten before its time: %g", s.rate())
	}
	s.settle(after(1031))
	if s.rate() != 0 || s.burst() != 0 || s.Held != (Assignment{}) {
		t.Errorf("after its time a client may use %g per second", s.rate())
	}
}

// A client has certainly lost tokens if its bucket became smaller while it had them: in proportion, less the requests
// that passed since.
func TestLostTokens(t *testing.T) {
	for _, c := range []struct {
		name            string
		before          float64 // a report, seconds after a full bucket
		allowed         uint64
		to              uint32
		passed, passed2 uint64
		want            float64
	}{
		{"half of a full bucket", 0, 0, 10, 0, 0, 10},
		{"a quarter of a full bucket", 0, 0, 15, 0, 0, 5},
		{"half of what a report left", 0.5, 12, 10, 0, 0, 4},
		{"more passed than there was", 0.5, 30, 10, 0, 0, 0},
		{"refilled since, less a second that the client may lack", 0, 12, 10, 0, 0, 4},
		{"requests after the change may have been before it", 0, 0, 10, 6, 0, 7},
		{"and those of two reports", 0, 0, 10, 6, 8, 3},
		{"and all of them", 0, 0, 10, 6, 30, 0},
		{"a larger bucket loses nothing", 0, 0, 25, 0, 0, 0},
		{"a slower one neither", 0, 0, 20, 0, 0, 0},
	} {
		s := told()
		s.report(after(c.before), c.allowed, 0)
		s.tell(tokensOf(5, c.to))
		s.Sent(after(1))
		lost := s.report(after(1), c.passed, 0) + s.report(after(2), c.passed2, 0)
		if !near(lost, c.want) {
			t.Errorf("%s: %g tokens are lost, want %g", c.name, lost, c.want)
		}
	}
}

// The fewest tokens that a client can have: it starts full, refills up to its size, and its clock may have counted a
// second less than this one.
func TestFewestTokens(t *testing.T) {
	s := told()
	for i, c := range []struct {
		seconds float64
		allowed uint64
		want    float64
	}{{0.5, 15, 5}, {1.5, 0, 5}, {2.8, 0, 8}, {3, 0, 8}, {5, 3, 15}, {9, 2, 18}, {10, 25, 0}} {
		s.report(after(c.seconds), c.allowed, 0)
		if !near(s.tokens, c.want) {
			t.Errorf("after report %d a client has at least %g tokens, want %g", i, s.tokens, c.want)
		}
	}
	s.tell(Assignment{Kind: DenyAll, TTL: 30 * time.Second})
	s.report(after(20), 0, 0)
	if s.tokens != 0 {
		t.Errorf("without a token bucket a client has %g tokens", s.tokens)
	}
	s.tell(tokensOf(10, 20))
	s.tell(tokensOf(10, 5))
	s.tell(tokensOf(10, 40))
	if s.tokens != 5 {
		t.Errorf("a full bucket that shrank to a quarter has %g tokens", s.tokens)
	}
}

// The most requests that a client can have passed since its last report: its tokens, and the refill of one second more
// than has passed.
func TestMost(t *testing.T) {
	s := told()
	most := func(seconds, want float64) {
		t.Helper()
		if got := s.Most(after(seconds)); !near(got, want) {
			t.Errorf("after %gs a client can have passed %g requests, want %g", seconds, got, want)
		}
	}
	most(0, 20+10)
	most(2, 20+30)
	s.report(after(2), 35, 0) // it had at most 20 and the refill of one second
	most(2, 0+10)
	most(4, 0+30)
	s.report(after(4), 5, 0) // 5 of at most 30
	most(4, 20+10)           // 25 and the refill of a second, limited by the bucket
	s.report(after(4), 12, 0)
	most(4, 18+10)
	s.report(after(4), 10, 0)
	most(4, 18+10)
	s.report(after(4), 0, 0)
	s.tell(tokensOf(10, 23)) // 3 more
	most(4, 23+10)
	s.tell(tokensOf(20, 23))
	most(4, 23+20)
	s.Sent(after(4))
	s.report(after(5), 43, 0)
	s.tell(tokensOf(20, 30))
	most(5, 7+20)
	s.Sent(after(5))
	s.tell(tokensOf(20, 10))
	s.tell(tokensOf(20, 30)) // it may have had 30 all the time
	most(5, 7+20)
	s.tell(Assignment{Kind: DenyAll, TTL: 30 * time.Second})
	s.tell(tokensOf(20, 9)) // a new bucket starts full
	most(5, 9+20)
	s = told()
	s.tell(Assignment{Kind: DenyAll, TTL: 30 * time.Second})
	s.tell(tokensOf(10, 9))
	most(0, 20+10) // the client may still have its first bucket
}

// Only a token bucket has a rate.
func TestRateOfAnAssignment(t *testing.T) {
	for _, c := range []struct {
		a    Assignment
		want float64
	}{
		{Assignment{}, 0},
		{Assignment{Kind: AllowAll, Fill: 5, Interval: time.Second}, 0},
		{Assignment{Kind: DenyAll, Fill: 5, Interval: time.Second}, 0},
		{tokensOf(2.5, 1), 2.5},
	} {
		if got := c.a.Rate(); got != c.want {
			t.Errorf("%s: %g, want %g", c.a.Kind, got, c.want)
		}
	}
}
