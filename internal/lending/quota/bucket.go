package quota

import (
	"math"
	"slices"
	"time"
)

// TTL is the lifetime of an assignment. It is renewed at half of it.
const TTL = 30 * time.Second

const (
	// spare is withheld from subscribers and accumulates as saved tokens. Growing a subscriber's burst spends them. While
	// a subscriber waits for its first token, spareForWaiting applies, so that the token is saved sooner. Both are parts
	// of the rate.
	spare, spareForWaiting = 0.02, 0.2

	// reserve is the part of the burst that is withheld for newcomers.
	reserve = 0.125

	// turn is the shortest time for which some subscribers hold tokens while others hold none, if there are too few for
	// all.
	turn = 15 * time.Second

	// growth is the factor by which a share must grow to be worth a message.
	growth = 1.05

	// enough is the multiple of its part that a subscriber may keep while others lack rate.
	enough = 1.02

	// surplus is the multiple of its demand that a subscriber gets while the rate is too low for all. Unused rate is lost
	// to the others, so it is small. Growing demand shows in the next report, because denied requests are part of it.
	surplus = 1.03

	// enoughOfClaim is for clients that arrive with an assignment of another replica. They keep the old assignment until
	// this replica can give them at least this part of the old rate.
	enoughOfClaim = 0.9

	// settling is how long a replica withholds the uncertain part of a rate that it took over for claims. Other clients of
	// the stopped replica went to other replicas, which replace the assignments of these clients in this time. Until then
	// the sum of all assignments could exceed the limit.
	settling = 3 * time.Second

	// leastUncertain is the smallest uncertain part of a claim, and measuredOver the time over which a claim was measured.
	leastUncertain = 0.1
	measuredOver   = 5 * time.Second

	// surplusOfSmall replaces surplus for token buckets of fewer than small tokens. A small bucket is often full, and
	// refill of a full bucket is lost.
	surplusOfSmall = 1.4
	small          = 5
)

// Bucket divides a rate among subscribers.
//
// Two sums never exceed the bucket's share: the rates that subscribers may use, and the tokens that subscribers may
// have plus the saved tokens. A client fills a new token bucket itself, and a larger bucket can release more tokens in
// a burst. So both are paid for with saved tokens, and tokens are saved at the rate that no subscriber holds. In a time
// T subscribers therefore let pass at most the burst plus T times the rate.
//
// Messages take time and may be lost, so the bucket cannot tell which of its assignments a client uses at a given
// moment. It counts the largest possible one: the newest assignment and every earlier one that has not expired and that
// the client has not confirmed as replaced. That is why lowering a subscriber frees its rate only after its next
// report, and why raising another subscriber must wait for that report.
type Bucket struct {
	rate  Rate    // the whole limit
	share Share   // this replica's share of it
	saved float64 // saved tokens; with the subscribers' tokens at most share.Burst
	until time.Time

	fixed   Assignment // assignment of all subscribers, if isFixed is set
	isFixed bool

	subscribers []*Subscriber
	lost        []loss
	// rate of subscribers and lost clients; maintained incrementally, because there may be 100,000 of them
	heldRate  float64
	heldBurst float64

	asked     Ask       // the last question
	askedAt   time.Time // when it was asked
	questions uint64    // number of the last question to the store
	answered  uint64    // number of the last answered question
	uncertain float64   // part of the rate that is withheld until certain
	certain   time.Time
	remaining float64   // tokens for the first share, if no replica holds one
	now       time.Time // time of the last plan
	waiting   bool      // a subscriber waits for its first token

	wants, parts []float64
	told         []*Subscriber
	chosen       []*Subscriber
}

// loss is the assignment of a client that has disconnected.
type loss struct {
	rate, burst float64
	expires     time.Time
}

// NewBucket returns a bucket that hands out the whole rate. It starts with the given saved tokens, at most the burst.
func NewBucket(now time.Time, r Rate, saved float64) *Bucket {
	b := &Bucket{rate: r, share: whole(r), until: now}
	b.saved = min(max(saved, 0), r.Burst)
	return b
}

// NewSharedBucket returns a bucket that hands out nothing until SetShare.
func NewSharedBucket(now time.Time, r Rate) *Bucket {
	return &Bucket{rate: r, until: now}
}

// whole returns the share of a replica that does not share the limit with others.
func whole(r Rate) Share {
	return Share{Rate: r.PerSecond, Burst: r.Burst, FairRate: r.PerSecond, FairBurst: r.Burst, Replicas: 1}
}

// Rate returns the rate of the whole limit.
func (b *Bucket) Rate() Rate { return b.rate }

// Share returns the share of this replica.
func (b *Bucket) Share() Share { return b.share }

// SetRate changes the rate of a limit that only this replica hands out. The interval does not change, because Envoy
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

// Slow lowers the rate of the limit to perSecond, if it is higher, and the share of this replica in proportion. This
// lasts until another rate is set.
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

// Reprice changes the value of a token: from now on it is worth `times` as much. For example, after Reprice(2) a saved
// 10 tokens become 5. Assignments of clients keep their numbers, and so count for more until they are replaced.
func (b *Bucket) Reprice(now time.Time, times float64) {
	b.save(now)
	for _, part := range [...]*float64{&b.rate.PerSecond, &b.rate.Burst, &b.share.Rate, &b.share.Burst, &b.share.FairRate,
		&b.share.FairBurst, &b.saved, &b.remaining} {
		*part /= times
	}
	b.capSaved()
}

// SetShare changes the share of this replica, and adds the share's saved tokens.
func (b *Bucket) SetShare(now time.Time, s Share) {
	b.save(now)
	b.share = s
	b.saved += s.Saved
	b.capSaved()
}

// Fix gives all subscribers the same assignment. With None, they keep their assignments until these expire. Tokens are
// still saved.
func (b *Bucket) Fix(a Assignment) { b.fixed, b.isFixed = a, true }

// Divide ends Fix: the rate is divided again.
func (b *Bucket) Divide() { b.isFixed = false }

// Fixed returns the assignment of all subscribers, if Fix has set one.
func (b *Bucket) Fixed() (Assignment, bool) { return b.fixed, b.isFixed }

// Join adds a subscriber.
func (b *Bucket) Join(now time.Time) *Subscriber {
	s := &Subscriber{Since: now, position: len(b.subscribers), reported: now, active: now, heard: now}
	b.subscribers = append(b.subscribers, s)
	return s
}

// Report applies a subscriber's report of passed and denied requests since its previous one. It returns whether a plan
// may change something even if both are 0.
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

// Leave removes a subscriber. Its assignment counts as lost until it expires.
func (b *Bucket) Leave(now time.Time, s *Subscriber) {
	b.save(now)
	b.remove(s)
	s.settle(now)
	if s.sent.IsZero() { // the assignment may have been written, even without Sent
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

// Return gives a new subscriber the assignment of a lost client, because the subscriber was seen to use that rate. The
// bucket cannot tell which of the lost clients it is, so it picks the smallest loss. Return reports whether there was
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

// Forget removes a subscriber that was told to forget the bucket. Its rate and tokens are free immediately.
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

// NeedsPlan reports whether another plan may change something before the next report: a subscriber waits for rate or
// tokens, or has not confirmed yet that its assignment was lowered.
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

// Renewal returns when the first assignment must be renewed, or the zero time if there are no assignments.
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

// Full reports whether the bucket is like a new one: no client holds an assignment, and all tokens are saved.
func (b *Bucket) Full(now time.Time) bool {
	b.save(now)
	return len(b.subscribers) == 0 && len(b.lost) == 0 && b.saved >= b.share.Burst
}

// out returns the rate and the tokens that subscribers may use.
func (b *Bucket) out() (rate, burst float64) { return b.heldRate, b.heldBurst }

// sum adds up the rates and tokens that subscribers may use.
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

// settle forgets assignments that have expired at clients.
func (b *Bucket) settle(now time.Time) {
	for _, s := range b.subscribers {
		s.settle(now)
	}
	b.lost = slices.DeleteFunc(b.lost, func(l loss) bool { return !l.expires.After(now) })
	b.sum()
}

// Plan returns the subscribers that need a new assignment, in Held. The slice is valid until the next call.
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

// deny tells a subscriber to deny all requests. A subscriber that arrived with an assignment of another replica keeps
// that assignment while this replica tries to take it over.
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

// choose sets chosen to the subscribers that hold tokens now. If there are too few tokens for all, the new subscribers
// and those with demand take turns.
func (b *Bucket) choose(now time.Time) {
	b.chosen = b.chosen[:0]
	for _, s := range b.subscribers {
		if s.isSilent(now) || s.lapses(now) || s.claims(now) &&
			b.share.Rate-b.heldRate+s.claim.got < enoughOfClaim*s.claim.rate {
			continue // the others need not make room for an assignment of another replica
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

// mark sets the field chosen of all subscribers.
func (b *Bucket) mark() {
	for _, s := range b.subscribers {
		s.chosen = false
	}
	for _, s := range b.chosen {
		s.chosen = true
	}
}

// hand returns the rate to hand out: the share less the spare part.
func (b *Bucket) hand() float64 {
	part := spare
	switch {
	case b.waiting:
		part = spareForWaiting
	case b.share.Replicas > 1: // the store spares some, too
		part /= 4
	}
	return min(b.share.Rate, b.share.FairRate) * (1 - part)
}

// tokens returns the number of whole tokens to hand out. A limit with too few tokens for all replicas gives them to
// some replicas at a time. During the turn of other replicas, it is 0.
func (b *Bucket) tokens() int {
	return int(min(b.share.Burst, b.share.FairBurst, math.MaxInt32))
}
