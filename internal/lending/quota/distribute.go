package quota

import (
	"cmp"
	"math"
	"slices"
)

// target is the assignment that a subscriber should have.
type target struct {
	s    *Subscriber
	fill uint32
	max  uint32
}

// distribute moves the assignments of the chosen subscribers towards their fair parts, and denies the others. It lowers
// before it raises, because rate and tokens must be free before they are handed out.
func (b *Bucket) distribute() {
	targets := b.targets()
	for _, s := range b.subscribers {
		if !s.chosen {
			b.deny(s)
		}
	}
	rate, burst := b.out()
	fewer := rate > b.share.Rate*(1+1e-9) || rate > b.share.FairRate*(1+spare)
	smaller := burst > b.share.FairBurst
	for i := range targets {
		t := &targets[i]
		fewer = fewer || t.lacksRate()
		smaller = smaller || t.lacksTokens()
	}
	for i := range targets {
		b.lower(&targets[i], fewer, smaller)
	}
	b.waiting = false
	// Subscribers with the lowest rate come first.
	slices.SortStableFunc(targets, func(x, y target) int { return cmp.Compare(x.s.Held.Fill, y.s.Held.Fill) })
	for i := range targets {
		b.raise(&targets[i], b.certainRate()-b.heldRate+targets[i].s.rate())
	}
}

// certainRate returns the part of the share that may be handed out now.
func (b *Bucket) certainRate() float64 {
	if b.now.Before(b.certain) {
		return b.share.Rate - b.uncertain
	}
	return b.share.Rate
}

// targets returns the fair parts of the chosen subscribers.
func (b *Bucket) targets() []target {
	n := len(b.chosen)
	if n == 0 {
		return nil
	}
	hand, seconds := b.hand(), b.rate.Interval.Seconds()
	b.wants, b.parts = slices.Grow(b.wants[:0], n)[:n], slices.Grow(b.parts[:0], n)[:n]
	for i, s := range b.chosen {
		b.wants[i] = max(s.wants(), hand/float64(n)*s.floor())
	}
	divide(hand, b.wants, b.parts)
	all := float64(b.tokens())
	targets := make([]target, n)
	left, sum := all-math.Floor(all*reserve)-float64(n), 0.0 // may be negative: then each gets one token
	for i, s := range b.chosen {
		before := math.Floor(sum + 1e-9)
		sum += left * b.parts[i] / hand // the sum is rounded, not the parts, so that no token is left over
		targets[i] = target{s: s, fill: whole32(b.parts[i] * seconds), max: whole32(1 + math.Floor(sum+1e-9) - before)}
	}
	return targets
}

// floor returns the smallest part of an equal share for a subscriber: little if its demand is known, more if it is new.
func (s *Subscriber) floor() float64 {
	if s.reports == 0 && s.Held.Kind != Tokens {
		return floorOfNew
	}
	return floorOfKnown
}

const floorOfNew, floorOfKnown = 1.0 / 4, 1.0 / 50

// wants returns the rate that a subscriber would use. A small token bucket loses refill that it cannot hold, so it
// needs more.
func (s *Subscriber) wants() float64 {
	if s.reports == 0 { // demand not known yet: it keeps its present rate
		return max(s.Held.Rate(), s.claim.rate)
	}
	if s.Held.MaxTokens < small {
		return surplusOfSmall * s.Demand
	}
	return surplus * s.Demand
}

func whole32(f float64) uint32 {
	return uint32(min(max(math.Floor(f), 1), math.MaxUint32))
}

// lacksRate reports whether a subscriber should have clearly more rate, and would use it.
func (t *target) lacksRate() bool {
	h := &t.s.Held
	return h.Kind != Tokens || float64(t.fill) > growth*float64(h.Fill) && t.s.wants() > h.Rate()
}

// lacksTokens reports whether a subscriber should be able to hold clearly more tokens.
func (t *target) lacksTokens() bool {
	return float64(t.max) >= 3*float64(t.s.Held.MaxTokens)
}

// lower reduces a subscriber to its fair part: of the rate if others lack rate, of the tokens if others lack tokens.
func (b *Bucket) lower(t *target, fewer, smaller bool) {
	a := t.s.Held
	if a.Kind != Tokens {
		return
	}
	if fewer && float64(a.Fill) > enough*float64(t.fill) {
		a.Fill = t.fill
	}
	if smaller {
		a.MaxTokens = min(a.MaxTokens, t.max)
	}
	b.tell(t.s, a)
}

// raise increases a subscriber towards its fair part, as far as rate and saved tokens allow.
func (b *Bucket) raise(t *target, rate float64) {
	s := t.s
	a := s.Held
	if a.Kind != Tokens {
		a = Assignment{Kind: Tokens, TTL: TTL, Interval: b.rate.Interval}
	}
	free := math.Floor(rate*b.rate.Interval.Seconds() + 1e-6) // the product may be slightly below a whole number
	fill := max(min(float64(t.fill), free), float64(a.Fill))
	if s.claims(b.now) && fill < enoughOfClaim*s.claim.rate*b.rate.Interval.Seconds() &&
		(fill < float64(t.fill) || b.Unsettled()) {
		return // its old assignment is larger, and more rate will become free
	}
	tokens, wanted, paid := float64(a.MaxTokens), float64(t.max), 0.0
	if tokens == 0 { // a bucket starts full
		brought := 0.0
		if b.now.Before(s.claim.expires) {
			brought = s.claim.tokens
		}
		tokens = min(wanted, math.Floor(b.saved+brought))
		if s.reports == 0 && len(b.subscribers) > 1 { // leaves some for the next newcomer
			tokens = min(tokens, max(math.Floor(b.saved/2+brought), 1))
		}
		paid = max(tokens-brought, 0)
	} else {
		kept := math.Floor(b.share.Burst * reserve)
		// a small bucket loses much of its rate, and a long window may take minutes to save the reserve
		if a.MaxTokens < small {
			kept = min(kept, math.Floor(b.saved/2))
		}
		more := math.Floor(b.saved - kept)
		paid = max(min(wanted-tokens, more), 0)
		tokens += paid
	}
	if fill < 1 || tokens < 1 {
		b.waiting = b.waiting || tokens < 1
		b.deny(s)
		return
	}
	if fill < growth*float64(a.Fill) && tokens < growth*float64(a.MaxTokens) {
		return // not worth a message
	}
	b.saved -= paid
	a.Fill, a.MaxTokens = uint32(fill), uint32(tokens)
	b.tell(s, a)
}
