package region

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A bucket has no windows: a permit that is taken from it in advance would lose its value while the bucket refills. So a bucket is
// divided: each region, also the home's, has a part of its rate, and the part of its burst that goes with it, as a bucket of its own. The
// parts of the rate never exceed the rate, those of the burst never the burst. So in any time T all regions together admit at most the
// burst and T times the rate.
//
// A part that a region gives up is free for others when the region has said that it no longer uses it, or when it has expired. A part
// that grows brings no tokens along but those that the home has saved: what flows in at the part of the rate that no region has, and what
// regions had left when their parts got smaller.

// Shares is what the home's Redis keeps for a bucket. The zero Shares has given nothing away.
type Shares struct {
	Epoch    uint64
	From     int64 // Duty.From
	Begun    bool
	Saved    int64 // tokens that no region has
	Part     int64 // of another one, in requests times microseconds
	SavedAt  int64 // until when they are counted
	Holders  []Holder
	Learning int64 // until when no part grows, because the home has forgotten what others hold
}

// Holder is what the home knows about the part of one region. Rates are in requests per window.
type Holder struct {
	Region      string
	Incarnation uint64
	Number      uint64 // of the last question
	Nonce       uint64 // of the last question
	Former      uint64 // the incarnation before, which is lost

	Held    int64 // what the region said that it has
	Given   int64 // what the home has answered: the region has one of both
	Minted  int64 // with that answer
	Expires int64 // when it has neither

	Lost        int64 // what an account had that its Redis has lost
	LostExpires int64

	Demand int64 // requests per window
}

// ShareQuestion is what a region asks the home about one bucket. It is repeated like a Question.
type ShareQuestion struct {
	Region      string
	Epoch       uint64
	Incarnation uint64
	Number      uint64
	Nonce       uint64
	Held        int64 // the rate that it has
	Demand      int64 // requests per window
	Returned    int64 // tokens that it had left when its part became smaller
}

// ShareAnswer is the answer to a ShareQuestion.
type ShareAnswer struct {
	Epoch       uint64
	Incarnation uint64
	Number      uint64
	Nonce       uint64
	Result      Result // Full: the caller is blocked

	Rate     int64 // requests per window
	Tokens   int64 // that the region's bucket holds at most
	Mint     int64 // tokens that are in it from the beginning
	ValidFor int64
}

// Divisible reports whether a bucket can be divided among a number of regions: nothing waits in it, and it is large enough.
func Divisible(l *descriptor.Limit, regions int) bool {
	return isBucket(l) && min(l.Capacity(), l.Requests) >= uint64(leastForEach*regions)
}

// Divided reports whether a limit is divided into shares, and not into permits.
func Divided(l *descriptor.Limit) bool { return isBucket(l) }

func isBucket(l *descriptor.Limit) bool {
	return backend.PermitsOf(&backend.Take{Limit: l}).Kind == backend.PermitsOfBucket
}

// floorPart: a region has at least 1/floorPart of an equal part of the rate, so that it can begin at once.
const floorPart = 8

// tokens is the part of the burst that goes with a part of the rate.
func tokens(l *descriptor.Limit, rate int64) int64 {
	hi, lo := bits.Mul64(l.Capacity(), min(uint64(rate), l.Requests))
	n, _ := bits.Div64(hi, lo, l.Requests)
	return int64(n)
}

// ofShare is the limit under which a region with this part counts.
func ofShare(l *descriptor.Limit, rate, tokens int64) (descriptor.Limit, bool) {
	s := *l
	s.Requests, s.Burst = uint64(rate), uint64(tokens)-(l.Capacity()-l.Burst)
	return s, rate > 0 && tokens > 0 && s.Compile() == nil
}

// Exchange answers a question of a region, and moves its part towards what it needs.
func (s *Shares) Exchange(at Reading, l *descriptor.Limit, d *Duty, q *ShareQuestion) ShareAnswer {
	now := at.Now
	a := ShareAnswer{Epoch: q.Epoch, Incarnation: q.Incarnation, Number: q.Number, Nonce: q.Nonce}
	switch {
	case q.Epoch != d.Epoch || q.Epoch < s.Epoch:
		a.Result = Outdated
		return a
	case !d.acts(at) || !isBucket(l):
		a.Result = Inactive
		return a
	}
	s.begin(l, d, now)
	s.save(l, now)
	s.expire(now)
	h := s.holder(q.Region)
	switch {
	case q.Incarnation == h.Former:
		a.Result = Stale
		return a
	case h.Incarnation != q.Incarnation:
		h.lose()
		h.Former = h.Incarnation
		h.Incarnation, h.Held, h.Given, h.Expires = q.Incarnation, 0, 0, 0
	case q.Number < h.Number || q.Number == h.Number && q.Nonce != h.Nonce:
		a.Result = Stale
		return a
	}
	if again := h.Number == q.Number && h.Expires > 0; !again {
		if q.Held > max(h.Held, h.Given) { // the home has forgotten it
			s.Learning = now + pastLife
		}
		h.Number, h.Nonce, h.Demand = q.Number, q.Nonce, q.Demand
		h.Held, h.Given = q.Held, q.Held
		h.Expires = now + longestLife
		s.Saved += q.Returned // mint drops what there is no room for
		h.Given = s.give(l, d, h, now)
		h.Minted = s.mint(l, h)
	}
	a.Rate, a.Tokens, a.Mint = h.Given, tokens(l, h.Given), h.Minted
	a.ValidFor = max(h.Expires-now, 0)
	return a
}

// begin notes the epoch. A bucket that is new to this home is full, unless another home had it before: then it is empty.
func (s *Shares) begin(l *descriptor.Limit, d *Duty, now int64) {
	s.Epoch = d.Epoch
	if !s.Begun || s.From != d.From {
		*s = Shares{Epoch: d.Epoch, From: d.From, Begun: true, SavedAt: now}
		if d.From == 0 {
			s.Saved = int64(l.Capacity())
		}
	}
}

func (s *Shares) holder(region string) *Holder {
	i, found := slices.BinarySearchFunc(s.Holders, region, func(h Holder, name string) int { return cmp.Compare(h.Region, name) })
	if !found {
		s.Holders = slices.Insert(s.Holders, i, Holder{Region: region})
	}
	return &s.Holders[i]
}

// lose sets aside what an account had that is lost. It counts until it expires.
func (h *Holder) lose() {
	h.Lost += max(h.Held, h.Given)
	h.LostExpires = max(h.LostExpires, h.Expires)
}

// expire frees what nobody can use any more.
func (s *Shares) expire(now int64) {
	for i := range s.Holders {
		h := &s.Holders[i]
		if now >= h.LostExpires {
			h.Lost = 0
		}
		if now >= h.Expires {
			h.Held, h.Given = 0, 0
		}
	}
}

// save adds what has flowed in at the part of the rate that no region had.
func (s *Shares) save(l *descriptor.Limit, now int64) {
	ends := []int64{now}
	for i := range s.Holders {
		ends = append(ends, s.Holders[i].Expires, s.Holders[i].LostExpires)
	}
	slices.Sort(ends)
	window := uint64(micros(l.Window.Length()))
	for _, end := range ends {
		span := min(end, now) - s.SavedAt
		if span <= 0 {
			continue
		}
		free := int64(l.Requests)
		for i := range s.Holders {
			h := &s.Holders[i]
			if s.SavedAt < h.Expires {
				free -= max(h.Held, h.Given)
			}
			if s.SavedAt < h.LostExpires {
				free -= h.Lost
			}
		}
		hi, lo := bits.Mul64(uint64(max(free, 0)), uint64(span))
		lo, carry := bits.Add64(lo, uint64(s.Part), 0)
		var rest uint64
		n := l.Capacity() // at least, if 64 bits do not hold the quotient
		if hi += carry; hi < window {
			n, rest = bits.Div64(hi, lo, window)
		}
		s.Saved, s.Part = s.Saved+int64(min(n, l.Capacity())), int64(rest)
		s.SavedAt += span
	}
	s.SavedAt = now // also if the clock was set back
	if room := s.room(l); s.Saved >= room {
		s.Saved, s.Part = room, 0
	}
}

// counted is the rate that a region may be using.
func (h *Holder) counted() int64 { return max(h.Held, h.Given) + h.Lost }

// Elsewhere is how many tokens the parts of the regions other than one may have, and until when.
func (s *Shares) Elsewhere(l *descriptor.Limit, region string, now int64) (n, until int64) {
	for i := range s.Holders {
		if h := &s.Holders[i]; h.Region != region && now < h.Expires {
			n, until = n+tokens(l, max(h.Held, h.Given)), max(until, h.Expires)
		}
	}
	return n, until
}

// give is the part that a region gets: it shrinks at once, and grows as far as others have given up theirs.
func (s *Shares) give(l *descriptor.Limit, d *Duty, h *Holder, now int64) int64 {
	fair := s.fair(l, d, h, now)
	if fair <= h.Held {
		return fair
	}
	if now < s.Learning && s.Learning <= now+pastLife {
		return h.Held
	}
	free := int64(l.Requests)
	for i := range s.Holders {
		free -= s.Holders[i].counted()
	}
	return h.Held + max(min(fair-h.Held, free), 0)
}

// fair is the part of the rate that a region should have: what it needs, but not more than an equal part while others need theirs. What
// nobody needs is divided equally.
//
// It works like water that fills vessels of different heights. Every want below the level is met in full, which leaves more for the
// others, and raises the level.
func (s *Shares) fair(l *descriptor.Limit, d *Duty, h *Holder, now int64) int64 {
	regions := max(d.Regions, len(s.Holders))
	rate := int64(l.Requests)
	least := rate / int64(floorPart*regions)
	wants := make([]int64, 0, regions)
	for i := range s.Holders {
		x := &s.Holders[i]
		want := least
		if now < x.Expires {
			want = max(least, x.Demand+x.Demand/10+1)
		}
		wants = append(wants, want)
	}
	for len(wants) < regions { // they may come at any time
		wants = append(wants, least)
	}
	own := wants[slices.IndexFunc(s.Holders, func(x Holder) bool { return x.Region == h.Region })]
	slices.Sort(wants)
	left := rate
	for i, want := range wants {
		level := left / int64(len(wants)-i)
		if want >= level {
			return min(own, level)
		}
		left -= want
	}
	return own + left/int64(regions)
}

// reset saves the tokens that no region has a place for: an operator says that nothing is used.
func (s *Shares) reset(l *descriptor.Limit, now int64) {
	if !s.Begun {
		return
	}
	s.expire(now)
	s.Saved = s.room(l)
}

// room is how many tokens no region has a place for.
func (s *Shares) room(l *descriptor.Limit) int64 {
	room := int64(l.Capacity())
	for i := range s.Holders {
		room -= tokens(l, s.Holders[i].counted())
	}
	return max(room, 0)
}

// mint is how many of the saved tokens a region gets with its new part.
func (s *Shares) mint(l *descriptor.Limit, h *Holder) int64 {
	n := max(min(tokens(l, h.Given)-tokens(l, h.Held), s.Saved), 0)
	s.Saved -= n
	s.Saved = min(s.Saved, s.room(l))
	return n
}

// Holding is what a region's Redis keeps for a bucket: its part. The zero Holding has none.
type Holding struct {
	Incarnation uint64
	Epoch       uint64
	Generation  uint64
	Seen        int64

	Rate    int64 // requests per window
	Tokens  int64
	Expires int64
	State   backend.State // of the region's own bucket

	Question ShareQuestion
	Waiting  bool
	AskedAt  int64
	SentAt   int64

	Full bool // the last answer was Full

	// Returned is how many tokens the next question returns. If that question gets no answer they are lost: the home may have counted them.
	Returned int64

	demand demand
}

// renewal is how often a region asks for its part, so that a limit that was lowered, or a caller who was blocked, is known soon.
const renewal = second

// enter is like that of an account.
func (h *Holding) enter(r Reading) bool {
	if r.Now < r.Least || r.Generation < h.Generation {
		return false
	}
	if r.Generation > h.Generation || r.Now < h.Seen {
		h.Rate, h.Tokens, h.Expires, h.Returned, h.Waiting, h.SentAt = 0, 0, 0, 0, false, 0
		h.demand.since, h.demand.last = r.Now, min(h.demand.last, r.Now)
	}
	h.Generation, h.Seen = r.Generation, r.Now
	return true
}

// Take takes tokens from the region's part.
func (h *Holding) Take(r Reading, l *descriptor.Limit, hits int64) Taken {
	if !h.enter(r) {
		return Taken{SetBack: true}
	}
	h.demand.count += hits // including denied ones: they are the demand that another part would meet
	if hits > 0 {
		h.demand.last = r.Now
	}
	due := h.due(r.Now)
	own, ok := ofShare(l, h.Rate, h.Tokens)
	if !ok || r.Now >= h.Expires {
		return Taken{Due: due, Full: h.Full && r.Now < h.SentAt+2*renewal}
	}
	takes, outcomes := [1]backend.Take{{Limit: &own, Hits: hits}}, [1]backend.Outcome{}
	backend.Settle(takes[:], []*backend.State{&h.State}, outcomes[:], r.Now)
	o := &outcomes[0]
	return Taken{Allowed: o.Allowed, Left: h.Tokens - o.Used, Full: !o.Allowed, Due: due, Outcome: *o}
}

func (h *Holding) due(now int64) bool {
	if h.Waiting {
		return now >= h.SentAt+patience
	}
	return now >= h.SentAt+renewal
}

// Due reports whether the home has to be asked at now although no request comes: the part gets smaller as the demand does. A region that
// was idle for long lets its part expire.
func (h *Holding) Due(now int64) bool {
	return h.Rate > 0 && now < h.demand.last+longestLife && h.due(now)
}

// Fresh reports whether the region has never asked.
func (h *Holding) Fresh() bool { return h.Incarnation == 0 && h.Question.Number == 0 }

// LastsUntil is when nothing of the part matters any more.
func (h *Holding) LastsUntil(now int64) int64 { return max(now, h.Expires) + 2*pastLife }

// Refill makes the region's own bucket full, after an operator has reset it.
func (h *Holding) Refill() { h.State = backend.State{} }

// Ask returns the question that has to be sent to the home at now, if there is one.
func (h *Holding) Ask(r Reading, l *descriptor.Limit, region string, epoch uint64, fresh uint64) (ShareQuestion, bool) {
	if !h.enter(r) || epoch < h.Epoch {
		return ShareQuestion{}, false
	}
	if epoch > h.Epoch {
		h.Epoch, h.Waiting, h.SentAt = epoch, false, r.Now-renewal
	}
	if r.Now >= h.AskedAt+longestLife {
		h.Waiting = false
	}
	if !h.due(r.Now) {
		return ShareQuestion{}, false
	}
	h.SentAt = r.Now
	if h.Waiting {
		return h.Question, true
	}
	if h.Incarnation == 0 {
		h.Incarnation = fresh
	}
	if r.Now >= h.Expires {
		h.Rate, h.Tokens = 0, 0
	}
	h.demand.measure(r.Now)
	h.Waiting, h.AskedAt = true, r.Now
	h.Question = ShareQuestion{
		Region: region, Epoch: epoch, Incarnation: h.Incarnation, Number: h.Question.Number + 1, Nonce: fresh, Held: h.Rate,
		Demand: int64(min(h.demand.rate*float64(micros(l.Window.Length())), float64(l.Requests))), Returned: h.Returned,
	}
	h.Returned = 0
	return h.Question, true
}

// Apply takes in an answer, if the region waits for it. The part keeps the tokens that it has, as far as it still has room for them. The next
// question returns the rest. A part that has expired meanwhile begins without tokens, because its rate may have been another region's.
func (h *Holding) Apply(r Reading, l *descriptor.Limit, a *ShareAnswer) bool {
	if !h.enter(r) || !h.Waiting || a.Epoch != h.Epoch || a.Incarnation != h.Incarnation || a.Number != h.Question.Number || a.Nonce != h.Question.Nonce {
		return false
	}
	h.Waiting, h.Full = false, a.Result == Full
	switch a.Result {
	case Granted:
	case Full:
		h.Rate, h.Tokens = 0, 0
		return true
	case Stale:
		h.Incarnation, h.Question.Number, h.Rate, h.Tokens = 0, 0, 0, 0
		return true
	default:
		return true
	}
	had, more, step := int64(0), int64(0), int64(0)
	if own, ok := ofShare(l, h.Rate, h.Tokens); ok && r.Now < h.Expires {
		o := look(&own, &h.State, r.Now)
		had, more, step = h.Tokens-o.Used, micros(o.MoreAfter), own.Arithmetic.Step
	}
	expires := h.AskedAt + shortened(a.ValidFor) - unnoticed
	if h.Rate == a.Rate && h.Tokens == a.Tokens && r.Now < h.Expires && a.Mint == 0 {
		h.Expires = expires // the bucket continues as it is, with the fraction of a token that it has
		return true
	}
	h.Rate, h.Tokens, h.Expires, h.State = a.Rate, a.Tokens, expires, backend.State{}
	h.Returned = max(had+a.Mint-h.Tokens, 0)
	if own, ok := ofShare(l, h.Rate, h.Tokens); ok {
		if missing := h.Tokens - (had + a.Mint); missing > 0 {
			backend.Adjust(&own, &h.State, r.Now, r.Now, missing)
			if more > 0 && step > 0 { // the next token was on its way
				next := own.Arithmetic.Step
				h.State.Start -= max(next-int64(math.Ceil(float64(more)*float64(next+1)/float64(step))), 0)
			}
		}
	}
	return true
}

// look returns what is missing from a bucket.
func look(l *descriptor.Limit, s *backend.State, now int64) backend.Outcome {
	takes, outcomes := [1]backend.Take{{Limit: l}}, [1]backend.Outcome{}
	backend.Settle(takes[:], []*backend.State{s}, outcomes[:], now)
	return outcomes[0]
}
