package quota

import (
	"math"
	"time"
)

// Claim records that a new subscriber holds an assignment of another replica, and that it was seen to use rate tokens
// per second.
func (b *Bucket) Claim(now time.Time, s *Subscriber, rate float64) {
	s.claim = claim{rate: max(rate, least), since: now, until: now.Add(patience), expires: now.Add(TTL + margin)}
}

// SetRemaining sets the tokens available for the first share of the limit, if no replica holds one yet.
func (b *Bucket) SetRemaining(tokens float64) { b.remaining = max(tokens, 0) }

// Ask returns this replica's question to the store that divides the limit among replicas. The tokens in Returned are
// gone then, even if the store does not answer.
func (b *Bucket) Ask(now time.Time, key string) Ask {
	b.save(now)
	b.settle(now)
	a := Ask{Key: key, Rate: b.rate.PerSecond, Burst: b.rate.Burst, Saved: min(b.remaining, b.rate.Burst),
		Held: b.share.Replicas > 0}
	rate, burst := b.out()
	a.HeldRate = rate
	a.Returned = min(b.saved, max(b.share.Burst-b.share.FairBurst, 0))
	b.saved -= a.Returned
	a.HeldBurst = burst + b.saved
	for _, s := range b.subscribers {
		if a.Demand += s.Demand; s.reports == 0 {
			a.Demand += b.rate.PerSecond * floorOfNew / float64(len(b.subscribers))
		}
		if s.claims(now) {
			a.ClaimRate += s.claim.rate - s.claim.got
			a.ClaimAge = max(a.ClaimAge, now.Sub(s.claim.since))
		}
	}
	a.ClaimRate = min(a.ClaimRate, a.Rate)
	// higher than the numbers of an earlier bucket of the same limit
	b.questions = max(b.questions+1, uint64(now.UnixMicro()))
	a.Number, a.Answered = b.questions, b.answered
	b.asked, b.askedAt = a, now
	return a
}

// End returns the last question of a replica that stops: it keeps only the tokens that its clients still hold.
func (b *Bucket) End(now time.Time, key string) Ask {
	a := b.Ask(now, key)
	a.Ends, a.Demand, a.ClaimRate, a.ClaimAge = true, 0, 0, 0
	a.HeldBurst -= b.saved
	a.Returned += b.saved
	b.saved = 0
	return a
}

// Answer applies the answer to Ask.
func (b *Bucket) Answer(now time.Time, s Share) {
	b.answered = b.asked.Number
	if s.ClaimedRate > 0 {
		b.grant(now, s.ClaimedRate, s.ClaimedBurst)
	}
	if !s.ClaimsOpen {
		for _, x := range b.subscribers {
			if !x.claim.since.After(b.askedAt) {
				x.claim.until = now
			}
		}
	}
	b.SetShare(now, s)
}

// grant divides a claimed rate and its tokens among the subscribers that wait for them. From then on these subscribers
// count as holding their parts, until this replica gives them its own assignments. If no subscriber waits any longer,
// the clients have moved on but still hold the claimed part, so it counts as lost until it expires.
func (b *Bucket) grant(now time.Time, rate, tokens float64) {
	all := 0.0
	for _, s := range b.subscribers {
		if s.claims(now) {
			all += s.claim.rate - s.claim.got
		}
	}
	if all == 0 {
		b.lost = append(b.lost, loss{rate: rate, burst: tokens, expires: now.Add(TTL + margin)})
		b.heldRate += rate
		b.heldBurst += tokens
		return
	}
	b.uncertain, b.certain = 0, now.Add(settling)
	for _, s := range b.subscribers {
		if !s.claims(now) {
			continue
		}
		b.uncertain += rate * (s.claim.rate - s.claim.got) / all * uncertainty(s.claim.rate)
		beforeRate, beforeBurst := s.rate(), s.burst()
		part := (s.claim.rate - s.claim.got) / all
		s.claim.got += rate * part
		s.claim.tokens += tokens * part
		s.brings()
		b.heldRate += s.rate() - beforeRate
		b.heldBurst += s.burst() - beforeBurst
	}
}

// uncertainty returns the part of a claimed rate that the client may not have held. The claim was measured: a client
// uses more than its rate while it has tokens, and a few requests more or less are a large part of a low rate.
func uncertainty(rate float64) float64 {
	return max(leastUncertain, 1/math.Sqrt(1+rate*measuredOver.Seconds()))
}

// brings counts the claimed part as held by the subscriber.
func (s *Subscriber) brings() {
	f := former{rate: s.claim.got, burst: s.claim.tokens, kept: 1, sent: s.claim.since, expires: s.claim.expires}
	// replaces an earlier answer: a subscriber that waits has no assignment of this replica
	s.former = append(s.former[:0], f)
}

// Unanswered records that Ask had no answer. The store may have taken any part that this replica did not hold, so it
// keeps only the part that it holds.
func (b *Bucket) Unanswered(now time.Time) {
	b.save(now)
	b.share.Rate, b.share.Burst = min(b.share.Rate, b.asked.HeldRate), min(b.share.Burst, b.asked.HeldBurst)
	b.capSaved()
}

// Claims reports whether a subscriber waits for its claim.
func (b *Bucket) Claims(now time.Time) bool {
	for _, s := range b.subscribers {
		if s.claims(now) {
			return true
		}
	}
	return false
}

// claims reports whether a subscriber still waits for its claim. After a while it settles for the available rate.
func (s *Subscriber) claims(now time.Time) bool {
	return s.claim.got < enoughOfClaim*s.claim.rate && now.Before(s.claim.until)
}

// Unsettled reports whether shares are moving between replicas: this one holds more than its part, or waits for parts
// of others.
func (b *Bucket) Unsettled() bool {
	return b.waiting || b.share.Rate > b.share.FairRate*(1+spare) || b.share.Rate < b.share.FairRate*(1-spare)
}
