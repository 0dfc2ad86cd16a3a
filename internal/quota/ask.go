package quota

import "time"

// Claim says that a subscriber that has just joined holds what another process has given it, and that it was seen to use so many tokens
// per second.
func (b *Bucket) Claim(now time.Time, s *Subscriber, rate float64) {
	s.claim = claim{rate: max(rate, least), until: now.Add(TTL + margin)}
}

// SetRemaining sets how many tokens may pass at once, if no process holds a share of the limit yet.
func (b *Bucket) SetRemaining(tokens float64) { b.remaining = max(tokens, 0) }

// Ask returns what this process asks of the store that divides the limit among processes. The tokens that it returns are gone then, whatever
// becomes of the question.
func (b *Bucket) Ask(now time.Time, key string) Ask {
	b.save(now)
	b.settle(now)
	a := Ask{Key: key, Rate: b.rate.PerSecond, Burst: b.rate.Burst, Saved: min(b.remaining, b.rate.Burst), Held: b.share.Processes > 0}
	rate, burst := b.out()
	a.HeldRate = rate
	if over := b.share.Burst - b.share.FairBurst; over > 0 {
		a.Returned = min(b.saved, over)
		b.saved -= a.Returned
	}
	a.HeldBurst = burst + b.saved
	for _, s := range b.subscribers {
		if a.Demand += s.Demand; s.reports == 0 {
			a.Demand += b.rate.PerSecond * floorOfNew / float64(len(b.subscribers))
		}
		if s.claims(now) {
			a.ClaimRate += s.claim.rate
		}
	}
	a.ClaimRate = min(a.ClaimRate, a.Rate)
	b.asked = a
	return a
}

// Answer takes in the answer to Ask.
func (b *Bucket) Answer(now time.Time, s Share) {
	taken := max(s.Burst-s.Saved-b.asked.HeldBurst, 0) // tokens that came with claims
	if b.asked.ClaimRate > 0 && taken > 0 {
		b.grant(now, taken)
	}
	b.SetShare(now, s)
}

// grant divides tokens among those who wait for what they claim, by the rates that they claim.
func (b *Bucket) grant(now time.Time, tokens float64) {
	all := 0.0
	for _, s := range b.subscribers {
		if s.claims(now) {
			all += s.claim.rate
		}
	}
	for _, s := range b.subscribers {
		if s.claims(now) {
			s.claim.tokens = tokens * s.claim.rate / all
		}
	}
}

// Unanswered says that there was no answer to Ask. The store may have taken what this process did not hold, so it keeps only the rest.
func (b *Bucket) Unanswered(now time.Time) {
	b.save(now)
	b.share.Rate, b.share.Burst = min(b.share.Rate, b.asked.HeldRate), min(b.share.Burst, b.asked.HeldBurst)
	b.capSaved()
}

// Claims reports whether a subscriber waits for what it claims.
func (b *Bucket) Claims(now time.Time) bool {
	for _, s := range b.subscribers {
		if s.claims(now) {
			return true
		}
	}
	return false
}

// claims reports whether a subscriber still waits for what it claims. After a while it has expired at the client.
func (s *Subscriber) claims(now time.Time) bool {
	return s.claim.rate > 0 && s.claim.tokens == 0 && now.Before(s.claim.until)
}

// Unsettled reports whether shares are moving between processes: this one holds more than its part, or waits for what others hold.
func (b *Bucket) Unsettled() bool {
	return b.waiting || b.share.Rate > b.share.FairRate*(1+spare) || b.share.Rate < b.share.FairRate*(1-spare)
}
