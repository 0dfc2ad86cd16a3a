package quota

import "time"

// Claim says that a subscriber that has just joined holds what another process has given it, and that it was seen to use so many tokens
// per second.
func (b *Bucket) Claim(s *Subscriber, rate float64) { s.claim.rate = rate }

// Ask returns what this process asks of the store that divides the limit among processes. The tokens that it returns are gone then, whatever
// becomes of the question.
func (b *Bucket) Ask(now time.Time, key string) Ask {
	b.save(now)
	b.settle(now)
	a := Ask{Key: key, Rate: b.rate.PerSecond, Burst: b.rate.Burst, Held: b.share.Processes > 0}
	rate, burst := b.out()
	a.HeldRate = rate
	if over := b.share.Burst - b.share.FairBurst; over > 0 {
		a.Returned = min(b.saved, over)
		b.saved -= a.Returned
	}
	a.HeldBurst = burst + b.saved
	for _, s := range b.subscribers {
		if a.Demand += s.Demand; s.reports == 0 {
			a.Demand += b.rate.PerSecond * floorOf[true] / float64(len(b.subscribers))
		}
		if s.claim.rate > 0 && s.claim.tokens == 0 {
			a.ClaimRate += s.claim.rate
			a.ClaimBurst += max(b.rate.Burst*s.claim.rate/b.rate.PerSecond, 1)
		}
	}
	a.ClaimRate, a.ClaimBurst = min(a.ClaimRate, a.Rate), min(a.ClaimBurst, a.Burst)
	b.asked = a
	return a
}

// Answer takes in the answer to Ask.
func (b *Bucket) Answer(now time.Time, s Share) {
	taken := max(s.Burst-s.Saved-b.asked.HeldBurst, 0) // tokens that came with claims
	if b.asked.ClaimBurst > 0 && taken > 0 {
		for _, sub := range b.subscribers {
			if sub.claim.rate > 0 && sub.claim.tokens == 0 {
				part := max(b.rate.Burst*sub.claim.rate/b.rate.PerSecond, 1) / b.asked.ClaimBurst
				sub.claim.tokens = taken * min(part, 1)
			}
		}
	}
	b.SetShare(now, s)
}

// Claims reports whether a subscriber waits for what it claims.
func (b *Bucket) Claims() bool {
	for _, s := range b.subscribers {
		if s.claim.rate > 0 && s.claim.tokens == 0 {
			return true
		}
	}
	return false
}
