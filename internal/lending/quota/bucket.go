package quota

import (
	"math"
	"slices"
	"time"
)

// TTL is how long an assignment lasts. It is renewed at half of it.
const TTL = 30 * time.Second

const (
	// spare is the part of the rate that no subscriber gets. It becomes saved tokens, which pay when the burst of a
	// subscriber grows. While a subscriber waits for its first token, spareForWaiting applies, so that the token is saved
	// sooner.
	spare, spareForWaiting = 0.02, 0.2

	// reserve is the part of the burst that is kept for newcomers.
	reserve = 0.125

	// turn is the shortest time for which some subscribers hold tokens while others hold none, if there are too few for
	// all.
	turn = 15 * time.Second

	// growth is by how much a share must grow to be worth a message.
	growth = 1.05

	// enough is up to how much more than its part a subscriber may keep while others lack rate.
	enough = 1.02

	// surplus is how much more than its demand a subscriber gets while the rate does not suffice for all. What it does not
	// use is lost to the others, so it is small. Demand that grows shows in the next report, because denied requests are
	// part of it.
	surplus = 1.03

	// enoughOfClaim concerns a client that comes with an assignment of another replica. It keeps the old assignment until
	// this replica can give it at least this part of the old rate.
	enoughOfClaim = 0.9

	// settling is how long a replica does not hand out the uncertain part of a rate that it took over for claims. Other
	// clients of the ended replica went to other replicas, which replace the assignments of these clients in this time.
	// Until then the sum of all assignments could exceed the limit.
	settling = 3 * time.Second

	// leastUncertain is the least part of a claim that is uncertain, and measuredOver the time over which it was measured.
	leastUncertain = 0.1
	measuredOver   = 5 * time.Second

	// surplusOfSmall is surplus for token buckets of fewer than small tokens. A small bucket is often full, and what flows
	// into a full bucket is lost.
	surplusOfSmall = 1.4
	small          = 5
)

// Bucket divides a rate among subscribers.
//
// Two sums never exceed what the bucket may hand out: the rates that subscribers may use, and the tokens that
// subscribers may have plus the saved tokens. A client fills a new token bucket on its own, and a bucket that grows can
// hold more tokens at once. So each of them is paid for with saved tokens, and tokens are saved at the rate that no
// subscriber holds. In a time T subscribers therefore let pass at most the burst and T times the rate.
//
// Messages take time and may be lost, so the bucket cannot know which of its assignments a client uses at a given
// moment. It counts the largest one that is possible: the newest assignment and every earlier one that the client has
// not confirmed as replaced and that has not expired. That is why lowering a subscriber frees its rate only after its
// next report, and why raising another subscriber must wait for that report.
type Bucket struct {
	rate  Rate    // of the whole limit
	share Share   // of this replica
	saved float64 // tokens; with the subscribers' tokens at most share.Burst
	until time.Time

	fixed   Assignment // for all, if isFixed is set
	isFixed bool

	subscribers []*Subscriber
	lost        []loss
	heldRate    float64 // what subscribers and lost clients may use: kept up to date, because there may be 100,000 of them
	heldBurst   float64

	asked     Ask       // last
	askedAt   time.Time // when that was
	questions uint64    // to the store
	answered  uint64    // the last one whose answer arrived
	uncertain float64   // the part of the rate that is not handed out until certain
	certain   time.Time
	remaining float64   // tokens that may pass at once if no replica holds a share
	now       time.Time // of the last plan
	waiting   bool      // a subscriber waits for its first token

	wants, parts []float64
	told         []*Subscriber
	chosen       []*Subscriber
}

// loss is what a client held when it went.
type loss struct {
	rate, burst float64
	expires     time.Time
}

// NewBucket returns a bucket that hands out the whole rate. It begins with saved tokens, at most the burst.
func NewBucket(now time.Time, r Rate, saved float64) *Bucket {
	b := &Bucket{rate: r, share: whole(r), until: now}
	b.saved = min(max(saved, 0), r.Burst)
	return b
}

// NewSharedBucket returns a bucket that hands out nothing until SetShare.
func NewSharedBucket(now time.Time, r Rate) *Bucket {
	return &Bucket{rate: r, until: now}
}

// whole is the share of a replica that shares the limit with no other replica.
func whole(r Rate) Share {
	return Share{Rate: r.PerSecond, Burst: r.Burst, FairRate: r.PerSecond, FairBurst: r.Burst, Processes: 1}
}

// Rate returns the rate of the whole limit.
func (b *Bucket) Rate() Rate { return b.rate }

// Share returns the share of this replica.
func (b *Bucket) Share() Share { return b.share }

// SetRate changes the rate of a limit that only this replica hands out. The interval stays as it is, because Envoy
// ignores a change of it.
func (b *Bucket) SetRate(now time.Time, r Rate) {
	b.SetWholeRate(r)
	b.save(now)
	b.share = whole(r)
	b.capSaved()
}

// SetWholeRate changes the rate of the whole limit; this replica has a share of it.
func (b *Bucket) SetWholeRate(r Rate) {
	r.Interval = b.rate.Interval
	b.rate = r
}

// Slow lowers the rate of the limit to perSecond, if it is higher, and the share of this replica in proportion, until
// another rate is set.
func (b *Bucket) Slow(now time.Time, perSecond float64) {
	if b.rate.PerSecond <= perSecond {
		return
	}
	b.save(now)
	part := perSecond / b.rate.PerSecond
	b.rate.PerSecond = perSecond
	b.share.Rate *= part
	b.share.FairRate *= part
}

// Reprice changes what one token stands for: from now on it is worth so many times what it was. What clients hold keeps
// its numbers, and so counts for more until it is replaced.
func (b *Bucket) Reprice(now time.Time, times float64) {
	b.save(now)
	for _, part := range [...]*float64{&b.rate.PerSecond, &b.rate.Burst, &b.share.Rate, &b.share.Burst, &b.share.FairRate,
		&b.share.FairBurst, &b.saved, &b.remaining} {
		*part /= times
	}
	b.capSaved()
}

// SetShare changes the share of this replica. Its saved tokens are added.
func (b *Bucket) SetShare(now time.Time, s Share) {
	b.save(now)
	b.share = s
	b.saved += s.Saved
	b.capSaved()
}

// Fix gives all subscribers the same assignment. None: they keep what they hold until it expires. Tokens are saved in
// the meantime.
func (b *Bucket) Fix(a Assignment) { b.fixed, b.isFixed = a, true }

// Divide ends Fix: the rate is divided.
func (b *Bucket) Divide() { b.isFixed = false }

// Fixed returns the assignment that all subscribers get, if there is one.
func (b *Bucket) Fixed() (Assignment, bool) { return b.fixed, b.isFixed }

// Join adds a subscriber.
func (b *Bucket) Join(now time.Time) *Subscriber {
	s := &Subscriber{Since: now, position: len(b.subscribers), reported: now, active: now, heard: now}
	b.subscribers = append(b.subscribers, s)
	return s
}

// Report takes in how many requests passed at a subscriber since its report before, and how many did not. It returns
// whether a plan may change something even if there were none.
func (b *Bucket) Report(now time.Time, s *Subscriber, allowed, denied uint64) (plan bool) {
	b.save(now)
	plan = b.waiting || len(s.former) > 0 || s.Held.Kind == None
	rate, burst := s.rate(), s.burst()
	b.saved += s.report(now, allowed, denied)
	b.heldRate += s.rate() - rate
	b.heldBurst += s.burst() - burst
	b.capSaved()
	return plan
}

// Leave removes a subscriber. What it holds is lost until it expires.
func (b *Bucket) Leave(now time.Time, s *Subscriber) {
	b.save(now)
	b.remove(s)
	s.settle(now)
	if s.sent.IsZero() { // it may have been written all the same
		s.Sent(now)
	}
	l := loss{rate: s.rate(), burst: s.burst(), expires: s.expires}
	for _, f := range s.former {
		if f.expires.After(l.expires) {
			l.expires = f.expires
		}
	}
	if l.rate > 0 {
		b.lost = append(b.lost, l)
		b.heldRate += l.rate
		b.heldBurst += l.burst
	}
}

// Return gives a new subscriber what a lost client held, because the subscriber was seen to use that rate. The bucket
// cannot know which of the lost clients it is, so the subscriber gets the smallest loss. It reports whether there was
// one.
func (b *Bucket) Return(now time.Time, s *Subscriber, rate float64) bool {
	b.save(now)
	smallest := -1
	for i, l := range b.lost {
		if l.expires.After(now) && l.burst >= 1 && (smallest < 0 || l.rate < b.lost[smallest].rate) {
			smallest = i
		}
	}
	if smallest < 0 {
		return false
	}
	l := b.lost[smallest]
	b.lost = slices.Delete(b.lost, smallest, smallest+1)
	s.former = append(s.former, former{rate: l.rate, burst: l.burst, kept: 1, sent: now, expires: l.expires})
	s.claim = claim{tokens: l.burst, expires: l.expires}
	s.Measured(rate)
	return true
}

// Forget removes a subscriber that was told to forget the bucket: what it held returns at once.
func (b *Bucket) Forget(now time.Time, s *Subscriber) {
	b.save(now)
	b.remove(s)
}

func (b *Bucket) remove(s *Subscriber) {
	b.heldRate -= s.rate()
	b.heldBurst -= s.burst()
	last := len(b.subscribers) - 1
	b.subscribers[s.position] = b.subscribers[last]
	b.subscribers[s.position].position = s.position
	b.subscribers = slices.Delete(b.subscribers, last, last+1)
}

// NeedsPlan reports whether another plan may change something before a report comes: a subscriber waits for rate or
// tokens, or a subscriber has not confirmed yet that its assignment was lowered.
func (b *Bucket) NeedsPlan() bool {
	if b.waiting {
		return true
	}
	for _, s := range b.subscribers {
		if s.Held.Kind == None || len(s.former) > 0 {
			return !b.isFixed
		}
	}
	return false
}

// Renewal returns when the first assignment must be renewed; the zero time if there is none.
func (b *Bucket) Renewal() (first time.Time) {
	for _, s := range b.subscribers {
		if s.Held.Kind == None || s.sent.IsZero() {
			continue
		}
		if at := s.sent.Add(s.Held.TTL / 2); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// Subscribers returns the subscribers that have joined. The slice belongs to the bucket.
func (b *Bucket) Subscribers() []*Subscriber { return b.subscribers }

// Full reports whether the bucket is like a new one: no client holds anything, and all tokens are saved.
func (b *Bucket) Full(now time.Time) bool {
	b.save(now)
	return len(b.subscribers) == 0 && len(b.lost) == 0 && b.saved >= b.share.Burst
}

// out is what subscribers may use: rate and tokens.
func (b *Bucket) out() (rate, burst float64) { return b.heldRate, b.heldBurst }

// sum adds up what subscribers may use.
func (b *Bucket) sum() {
	b.heldRate, b.heldBurst = 0, 0
	for _, s := range b.subscribers {
		b.heldRate += s.rate()
		b.heldBurst += s.burst()
	}
	for i := range b.lost {
		b.heldRate += b.lost[i].rate
		b.heldBurst += b.lost[i].burst
	}
}

// save adds the tokens of the rate that no client could use since the last call.
func (b *Bucket) save(now time.Time) {
	if took := now.Sub(b.until).Seconds(); took > 0 {
		rate, _ := b.out()
		b.saved += took * max(b.share.Rate-rate, 0)
		b.until = now
	}
	b.capSaved()
}

func (b *Bucket) capSaved() {
	_, burst := b.out()
	b.saved = max(min(b.saved, b.share.Burst-burst), 0)
}

// settle forgets what has expired at clients.
func (b *Bucket) settle(now time.Time) {
	for _, s := range b.subscribers {
		s.settle(now)
	}
	b.lost = slices.DeleteFunc(b.lost, func(l loss) bool { return !l.expires.After(now) })
	b.sum()
}

// Plan returns the subscribers that must be told what they hold from now on. The slice is valid until the next call.
func (b *Bucket) Plan(now time.Time) []*Subscriber {
	b.save(now)
	b.settle(now)
	b.told, b.now = b.told[:0], now
	switch {
	case b.isFixed && b.fixed.Kind == None:
		return nil
	case b.isFixed:
		b.waiting = false
		for _, s := range b.subscribers {
			b.tell(s, b.fixed)
		}
	case b.share.Rate <= 0 || b.share.Burst < 1:
		b.waiting = true
		for _, s := range b.subscribers {
			b.deny(s)
		}
	default:
		b.choose(now)
		b.distribute()
	}
	for _, s := range b.subscribers {
		if !s.sent.IsZero() && now.Sub(s.sent) >= s.Held.TTL/2 {
			s.sent = time.Time{} // the same again renews it
			b.told = append(b.told, s)
		}
		s.told = false
	}
	return b.told
}

// deny lets nothing pass at a subscriber. A subscriber that came with an assignment of another replica keeps that
// assignment while this replica tries to take it over.
func (b *Bucket) deny(s *Subscriber) {
	if s.claims(b.now) {
		return
	}
	b.tell(s, Assignment{Kind: DenyAll, TTL: TTL})
}

func (b *Bucket) tell(s *Subscriber, a Assignment) {
	if s.Held == a {
		return
	}
	rate, burst := s.rate(), s.burst()
	s.tell(a)
	b.heldRate += s.rate() - rate
	b.heldBurst += s.burst() - burst
	if !s.told {
		s.told = true
		b.told = append(b.told, s)
	}
}

// choose sets chosen to the subscribers that hold tokens now. If there are too few tokens for all, the subscribers with
// demand and the new ones take turns.
func (b *Bucket) choose(now time.Time) {
	b.chosen = b.chosen[:0]
	for _, s := range b.subscribers {
		if s.isSilent(now) || s.lapses(now) || s.claims(now) &&
			b.share.Rate-b.heldRate+s.claim.got < enoughOfClaim*s.claim.rate {
			continue // the others need not make room for what a client brings along
		}
		b.chosen = append(b.chosen, s)
	}
	defer b.mark()
	most := int(min(float64(b.tokens()), b.hand()*b.rate.Interval.Seconds()))
	if len(b.chosen) <= most {
		return
	}
	b.chosen = slices.DeleteFunc(b.chosen, func(s *Subscriber) bool { return s.Demand == 0 && s.reports > 0 })
	if len(b.chosen) <= most {
		return
	}
	long := max(turn, time.Duration(min(2/b.share.Rate, 1e6)*float64(time.Second)))
	first := int(now.UnixNano() / int64(long) * int64(most) % int64(len(b.chosen)))
	slices.SortFunc(b.chosen, func(x, y *Subscriber) int { return x.Since.Compare(y.Since) })
	b.chosen = slices.Concat(b.chosen[first:], b.chosen[:first])[:most]
}

// mark sets who is chosen.
func (b *Bucket) mark() {
	for _, s := range b.subscribers {
		s.chosen = false
	}
	for _, s := range b.chosen {
		s.chosen = true
	}
}

// hand returns the rate to hand out: the share less the part that is spared.
func (b *Bucket) hand() float64 {
	part := spare
	switch {
	case b.waiting:
		part = spareForWaiting
	case b.share.Processes > 1: // the store spares some, too
		part /= 4
	}
	return min(b.share.Rate, b.share.FairRate) * (1 - part)
}

// tokens returns how many whole tokens can be handed out. A limit with too few tokens for all replicas gives them to
// some replicas at a time. While it is the turn of other replicas, there are none.
func (b *Bucket) tokens() int {
	return int(min(b.share.Burst, b.share.FairBurst, math.MaxInt32))
}
