package quota

import (
	"math"
	"time"
)

// Subscriber is one client's subscription to a bucket.
type Subscriber struct {
	Held   Assignment // what the client has been told last
	Since  time.Time  // when it subscribed
	Demand float64    // requests per second: a moving average of what it reports

	Owner any // for the caller's use

	claim    claim
	position int // in Bucket.subscribers
	reports  int // that measured its demand
	pending  uint64
	reported time.Time // until when its requests are part of Demand

	sent    time.Time // when Held was written; zero: not yet
	expires time.Time // of Held, at the client

	// former is what the client held before Held was lowered. It counts until the client has confirmed Held by a report, or until it expires.
	former struct {
		rate, burst float64
		tokens      float64 // that it had at least, less what it has passed since
		emptied     bool    // it had no token bucket for a moment
		expires     time.Time
	}

	tokens float64   // that the client had at least at its last report
	heard  time.Time // when that was
	active time.Time // when it last reported a request

	chosen bool // it may hold tokens now
	told   bool // Plan has changed Held
}

// claim is what a subscriber holds that another process has given it: the rate that it was seen to use, and of the tokens those that this
// process has taken over.
type claim struct{ rate, tokens float64 }

const (
	// shortest is the shortest time over which demand is measured.
	shortest = time.Second

	// longestMeasured is the longest time, and fewest and clearly say how many requests make a measurement certain enough before.
	longestMeasured = 30 * time.Second
	fewest          = 20
	clearly         = 4

	// settled is how long after an assignment was written a report confirms it: the report was not on its way already.
	settled = time.Second

	// margin is how much longer an assignment may last at the client than its time to live says.
	margin = time.Second

	// late is how much less time may lie between two reports at the client than here.
	late = time.Second

	// rising and falling are how much of a new measurement becomes part of the demand.
	rising, falling = 0.8, 0.4
	leastWeight     = 0.1
)

// report takes in how many requests passed at a client since its report before, and how many did not. It returns the tokens that
// the client has lost for certain, because its bucket was made smaller.
func (s *Subscriber) report(now time.Time, allowed, denied uint64) (destroyed float64) {
	if allowed > 0 || denied > 0 {
		s.active = now
	}
	passed := float64(allowed)
	if s.Held.Kind == Tokens {
		since := max(now.Sub(s.heard)-late, 0).Seconds()
		s.tokens = max(min(s.tokens+since*s.Held.Rate(), float64(s.Held.MaxTokens))-passed, 0)
	}
	s.heard = now
	s.former.tokens = max(s.former.tokens-passed, 0)
	if !s.sent.IsZero() && now.Sub(s.sent) >= settled {
		if s.former.burst > 0 {
			left := float64(s.Held.MaxTokens) / s.former.burst
			if s.former.emptied {
				left = 0
			}
			destroyed = s.former.tokens * max(1-left, 0)
		}
		s.forgetFormer()
	}
	s.pending += min(allowed, math.MaxUint32) + min(denied, math.MaxUint32)
	s.measure(now)
	return destroyed
}

func (s *Subscriber) forgetFormer() {
	s.former.rate, s.former.burst, s.former.tokens, s.former.emptied = 0, 0, 0, false
}

// measure makes what was reported part of the demand, once it says enough.
func (s *Subscriber) measure(now time.Time) {
	took := now.Sub(s.reported)
	if took < shortest || s.reports > 0 && took < longestMeasured && !s.clear(took) {
		return
	}
	rate := float64(s.pending) / took.Seconds()
	weight := min(max(float64(s.pending), s.Demand*took.Seconds())/fewest, 1) // of few requests less
	if s.clear(took) {
		weight = 1
	}
	s.pending, s.reported = 0, now
	s.reports++
	switch {
	case s.reports == 1:
		s.Demand = rate
	case rate > s.Demand:
		s.Demand += rising * weight * (rate - s.Demand)
	default:
		s.Demand += falling * max(weight, leastWeight) * (rate - s.Demand)
	}
	if s.Demand < least {
		s.Demand = 0
	}
}

// clear reports whether the requests of a time say enough about the demand: they are many, or clearly more or fewer than expected.
func (s *Subscriber) clear(took time.Duration) bool {
	n, expected := float64(s.pending), s.Demand*took.Seconds()
	return n >= fewest || math.Abs(n-expected) >= clearly
}

// settle forgets what has expired at the client.
func (s *Subscriber) settle(now time.Time) {
	if !s.former.expires.After(now) {
		s.forgetFormer()
	}
	if !s.sent.IsZero() && !s.expires.After(now) {
		s.Held, s.tokens = Assignment{}, 0
	}
}

// rate is the most that the client may use per second, burst the most tokens that it may have.
func (s *Subscriber) rate() float64  { return max(s.Held.Rate(), s.former.rate) }
func (s *Subscriber) burst() float64 { return max(float64(s.Held.MaxTokens), s.former.burst) }

// tell replaces what the client holds.
func (s *Subscriber) tell(a Assignment) {
	if rate, burst := s.rate(), s.burst(); rate > a.Rate() || burst > float64(a.MaxTokens) {
		if s.former.rate == 0 && s.former.burst == 0 {
			s.former.expires, s.former.tokens = time.Time{}, s.tokens
		}
		s.former.rate, s.former.burst = rate, burst
		s.former.emptied = s.former.emptied || a.Kind != Tokens
		if expires := s.expiry(); expires.After(s.former.expires) {
			s.former.expires = expires
		}
	}
	switch { // a token bucket starts full, and a smaller one keeps the ratio
	case a.Kind != Tokens:
		s.tokens = 0
	case s.Held.Kind != Tokens:
		s.tokens = float64(a.MaxTokens)
	case a.MaxTokens < s.Held.MaxTokens:
		s.tokens *= float64(a.MaxTokens) / float64(s.Held.MaxTokens)
	}
	s.Held, s.sent = a, time.Time{}
}

// expiry is when Held expires at the client. What has not been written yet has no end.
func (s *Subscriber) expiry() time.Time {
	if s.sent.IsZero() && s.Held.Kind != None {
		return never
	}
	return s.expires
}

// never is later than all times.
var never = time.Unix(1<<40, 0)

// Sent records that Held has been written.
func (s *Subscriber) Sent(now time.Time) {
	s.sent, s.expires = now, now.Add(s.Held.TTL+margin)
	if s.former.expires.Equal(never) {
		s.former.expires = s.expires
	}
}

// Expires returns when what the client holds expires; the zero time before it was written.
func (s *Subscriber) Expires() time.Time { return s.expires }

// Idle returns since when the client has not reported a request.
func (s *Subscriber) Idle() time.Time { return s.active }
