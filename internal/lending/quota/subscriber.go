package quota

import (
	"math"
	"slices"
	"time"
)

// Subscriber is one client's subscription to a bucket.
type Subscriber struct {
	Held   Assignment // the last assignment
	Since  time.Time  // when it subscribed
	Demand float64    // requests per second: a moving average of the reports

	Owner any // set by the user of the package

	claim    claim
	position int // index in Bucket.subscribers
	reports  int // reports that measured its demand
	pending  uint64
	reported time.Time // end of the time that Demand covers

	sent    time.Time // when Held was written; zero if it was not
	expires time.Time // when Held expires at the client

	// former lists earlier assignments of the client, oldest first. An assignment counts until it expires, or until a
	// report of the client confirms a later assignment.
	former []former

	tokens float64       // fewest tokens that the client can have had at its last report
	most   float64       // most tokens that it can have had then
	heard  time.Time     // when its last report arrived
	gap    time.Duration // interval between the last two reports
	active time.Time     // when it last reported a request

	chosen bool // may hold tokens now
	told   bool // Plan has changed Held
}

// former is a replaced assignment that the client may still use.
type former struct {
	rate, burst float64
	// the fewest tokens that the client can have had when it was replaced, less the requests that passed since
	tokens  float64
	kept    float64   // the part of the tokens that the next assignment leaves
	sent    time.Time // zero if it was not written
	expires time.Time
}

// claim is about an assignment that another replica gave to a subscriber: the rate that the subscriber was seen to use,
// and the rate and tokens that this replica has taken over.
type claim struct {
	rate        float64
	got, tokens float64
	since       time.Time // when the subscriber arrived
	until       time.Time // when it stops waiting
	expires     time.Time // when the assignment expires at the client
}

const (
	// shortest is the shortest time over which demand is measured.
	shortest = time.Second

	// longestMeasured is the longest time over which demand is measured. It ends earlier after `fewest` requests, or if
	// the requests differ from the expected number by `clearly`.
	longestMeasured = 30 * time.Second
	fewest          = 20
	clearly         = 4

	// settled is how old an assignment must be for a report to confirm it: a younger report may have been sent before the
	// client received it.
	settled = time.Second

	// margin is how much longer than its TTL an assignment may last at the client.
	margin = time.Second

	// patience is how long a subscriber waits for its claim. The stopped replica counts as gone 12 s after its last
	// question. The client's assignment lasts that long, because it was renewed at half of its TTL.
	patience = 14 * time.Second

	// silent is the shortest time without a report after which a client counts as hung. Envoy reports every 5 s.
	silent = 12 * time.Second

	// late is how much shorter the time between two reports may be at the client than here.
	late = time.Second

	// rising and falling are the weights of a new measurement in the demand.
	rising, falling = 0.8, 0.7
	fallingOfFew    = 0.4
	leastWeight     = 0.1
)

// Measured sets the demand of a new subscriber, in requests per second, as its client has measured it before. The
// subscriber is then treated like one that has reported.
func (s *Subscriber) Measured(demand float64) { s.Demand, s.reports = demand, 1 }

// report applies a client's report of passed and denied requests since its previous one. It returns the tokens that the
// client has certainly lost, because its bucket became smaller.
func (s *Subscriber) report(now time.Time, allowed, denied uint64) (destroyed float64) {
	if allowed > 0 || denied > 0 {
		s.active = now
	}
	passed := float64(allowed)
	s.most = max(min(s.Most(now), s.burst()+s.rate()*late.Seconds())-passed, 0)
	if s.Held.Kind == Tokens {
		since := max(now.Sub(s.heard)-late, 0).Seconds()
		s.tokens = max(min(s.tokens+since*s.Held.Rate(), float64(s.Held.MaxTokens))-passed, 0)
	}
	s.gap, s.heard = now.Sub(s.heard), now
	for i := range s.former {
		s.former[i].tokens = max(s.former[i].tokens-passed, 0)
	}
	destroyed = s.confirm(now)
	s.pending += min(allowed, math.MaxUint32) + min(denied, math.MaxUint32)
	s.measure(now)
	return destroyed
}

// confirm forgets assignments that the client no longer uses, because its report arrived after a later assignment. It
// returns the tokens that the client lost when its bucket became smaller.
func (s *Subscriber) confirm(now time.Time) (destroyed float64) {
	confirmed := func(sent time.Time) bool { return !sent.IsZero() && now.Sub(sent) >= settled }
	gone := 0
	for i := range s.former {
		if confirmed(s.former[i].sent) {
			gone = i
		}
	}
	if confirmed(s.sent) {
		gone = len(s.former)
	}
	for i := range s.former[:gone] {
		destroyed += s.former[i].tokens * (1 - s.former[i].kept)
	}
	s.former = slices.Delete(s.former, 0, gone)
	return destroyed
}

// isSilent reports whether reports of a client are missing. A client that hangs may read a message only after its
// assignment has expired, and then its token bucket would start full again. So a silent client gets no new assignment
// until it reports.
func (s *Subscriber) isSilent(now time.Time) bool {
	return s.reports > 0 && now.Sub(s.heard) > max(silent, 12*s.gap/5)
}

// lapses reports whether the client's token bucket is about to expire at the client, or has just expired there. A
// renewal that arrives after the expiry starts a full bucket, for which no saved tokens were spent. So the client gets
// nothing until the bucket has certainly expired. Then it gets a new bucket, paid for with saved tokens.
func (s *Subscriber) lapses(now time.Time) bool {
	return s.Held.Kind == Tokens && !s.sent.IsZero() && now.Sub(s.sent) >= s.Held.TTL-margin
}

// measure updates the demand once the reported requests suffice.
func (s *Subscriber) measure(now time.Time) {
	took := now.Sub(s.reported)
	if took < shortest || s.reports > 0 && took < longestMeasured && !s.clear(took) {
		return
	}
	rate := float64(s.pending) / took.Seconds()
	weight := max(float64(s.pending), s.Demand*took.Seconds()) / fewest // a few requests count less
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
	case s.Demand*took.Seconds() >= fewest:
		s.Demand += falling * (rate - s.Demand)
	default:
		s.Demand += fallingOfFew * max(weight, leastWeight) * (rate - s.Demand)
	}
	if s.Demand < least {
		s.Demand = 0
	}
}

// clear reports whether the requests of a time suffice to estimate the demand: they are many, or clearly more or fewer
// than expected.
func (s *Subscriber) clear(took time.Duration) bool {
	n, expected := float64(s.pending), s.Demand*took.Seconds()
	return n >= fewest || math.Abs(n-expected) >= clearly
}

// settle forgets assignments that have expired at the client.
func (s *Subscriber) settle(now time.Time) {
	s.former = slices.DeleteFunc(s.former, func(f former) bool { return !f.sent.IsZero() && !f.expires.After(now) })
	if !s.sent.IsZero() && !s.expires.After(now) {
		s.Held = Assignment{}
	}
}

// rate returns the highest rate that the client may use, burst the most tokens that it may have.
func (s *Subscriber) rate() float64 {
	most := s.Held.Rate()
	for i := range s.former {
		most = max(most, s.former[i].rate)
	}
	return most
}

func (s *Subscriber) burst() float64 {
	most := float64(s.Held.MaxTokens)
	for i := range s.former {
		most = max(most, s.former[i].burst)
	}
	return most
}

// tell replaces the client's assignment.
func (s *Subscriber) tell(a Assignment) {
	kept := min(float64(a.MaxTokens)/float64(s.Held.MaxTokens), 1)
	if s.Held.Rate() > a.Rate() || s.Held.MaxTokens > a.MaxTokens {
		s.former = append(s.former, former{rate: s.Held.Rate(), burst: float64(s.Held.MaxTokens), tokens: s.tokens,
			kept: kept, sent: s.sent, expires: s.expires})
	}
	s.most += max(float64(a.MaxTokens)-s.burst(), 0)
	if s.Held.Kind == Tokens { // a smaller token bucket keeps the ratio
		s.tokens *= kept
	} else { // a new one starts full
		s.tokens = float64(a.MaxTokens)
		s.most = max(s.most, s.tokens)
	}
	s.Held, s.sent, s.claim = a, time.Time{}, claim{}
}

// Sent records that Held and all earlier assignments have been written.
func (s *Subscriber) Sent(now time.Time) {
	s.sent, s.expires = now, now.Add(s.Held.TTL+margin)
	for i := range s.former {
		if f := &s.former[i]; f.sent.IsZero() {
			f.sent, f.expires = now, now.Add(TTL+margin)
		}
	}
}

// Expires returns when the client's assignment expires, or the zero time before it was written.
func (s *Subscriber) Expires() time.Time { return s.expires }

// Active returns when the client last reported a request.
func (s *Subscriber) Active() time.Time { return s.active }

// Most returns the most requests that a client can have passed since its last report with its assignments.
func (s *Subscriber) Most(now time.Time) float64 {
	return min(s.most, s.burst()) + s.rate()*(now.Sub(s.heard)+late).Seconds()
}
