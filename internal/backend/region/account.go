package region

import (
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Account is what a region's Redis keeps for a counter whose home is another region. The zero Account holds nothing.
type Account struct {
	Incarnation uint64 // random; 0: not asked yet
	Epoch       uint64
	Generation  uint64 // of the clock
	Seen        int64  // latest time of the clock

	Grants []Grant // oldest first

	// The last question. While it waits for an answer, it is repeated as it is, so that the home can tell what the account has
	// heard.
	Question Question
	Waiting  bool
	AskedAt  int64 // when it was asked first: what it brings is valid from then on
	SentAt   int64 // when it was sent last

	Again     int64  // not before this time
	Full      bool   // the last answer was Full: until Again, a take is denied by the limit
	Remaining int64  // at the home, by its last answer
	Limit     uint64 // the same
	Rules     uint64 // the same

	demand demand
}

// demand measures how many permits a region uses.
type demand struct {
	rate  float64 // permits per microsecond
	count int64   // of permits since
	since int64
	last  int64 // take
	size  int64 // of the last grant
	asked int64 // when it was asked for
}

const (
	// patience is how long an account waits for an answer before it asks again.
	patience = second / 2

	// refresh is how often an account in use asks at least, so that a limit that was lowered, or a caller who was blocked, is known soon.
	// While the home says to others that its rules are those of the last answer, it asks every rarely: to report what it uses.
	refresh, rarely = second, 5 * second

	// idle is after which time without a take an account returns what it holds.
	idle = second

	// mostGrants is how many grants an account keeps.
	mostGrants = 8

	// memory is over which time demand is measured.
	memory = 2 * second
)

// Taken is what became of a take from an account.
type Taken struct {
	Allowed bool
	Left    int64 // permits that the account still has
	Due     bool  // it is time to ask the home
	Full    bool  // denied, and the home had nothing left: it is not worth waiting for an answer
	SetBack bool  // the clock was set back, and the caller has to raise the generation, or read it

	Outcome backend.Outcome // in the region's part of a bucket, if it has one
}

// enter looks at the clock before a script uses an account. If the clock was set back, what the account holds would last too long:
// it is given up.
func (a *Account) enter(r Reading) bool {
	if r.Now < r.Least || r.Generation < a.Generation {
		return false
	}
	if r.Generation > a.Generation || r.Now < a.Seen {
		for i := range a.Grants {
			g := &a.Grants[i]
			g.giveUp()
			g.Expires = min(g.Expires, r.Now) // hits that are given back later are not used either
		}
		a.Waiting, a.Again, a.SentAt = false, 0, 0
		a.demand.since, a.demand.last = r.Now, min(a.demand.last, r.Now)
	}
	a.Generation, a.Seen = r.Generation, r.Now
	return true
}

// Take uses permits of the account, the oldest first. Permits that are not there are not waited for: the caller asks the home, and
// tries again when the answer was applied.
func (a *Account) Take(r Reading, hits int64) Taken {
	if !a.enter(r) {
		return Taken{SetBack: true}
	}
	a.demand.last = r.Now
	left := a.Left(r.Now)
	t := Taken{Allowed: hits <= left, Left: left}
	if t.Allowed {
		a.demand.count += hits
		t.Left -= hits
		for i := range a.Grants {
			if g := &a.Grants[i]; r.Now < g.Expires {
				n := min(hits, g.rest())
				g.Used += n
				hits -= n
			}
		}
	}
	t.Due = a.due(r, hits)
	t.Full = !t.Allowed && a.Full && r.Now < a.Again
	return t
}

// Offer is what takes may do without a step on the account, as long as nobody changes it. What they have used is taken in by Spent before
// the next step. They may use Left permits together, before Until. It is time for a step, which may ask the home, from Again on if less
// than Low is left, and from Due on unless Rules is not 0 and the home's rules are known to be these.
type Offer struct {
	Left, Low         int64
	Until, Again, Due int64
	Rules             uint64
	Full              bool // until Again, a take that finds too little is denied by the limit
	Remaining         int64
}

// Offer returns what takes may do after now. All permits must be valid for it, because nobody will know which of them were used.
func (a *Account) Offer(now int64) Offer {
	o := Offer{Left: a.Left(now), Low: a.demand.size / 2, Until: a.Bound(now), Again: a.Again, Full: a.Full, Remaining: a.Remaining, Due: max(a.Again, a.SentAt+refresh), Rules: a.Rules}
	if a.Waiting {
		o.Low, o.Due, o.Rules = 0, a.SentAt+patience, 0
	}
	return o
}

// Bound is before which time a change of the account must be written: while all grants are valid that were when it was computed, at now.
func (a *Account) Bound(now int64) int64 {
	until := int64(never)
	for i := range a.Grants {
		if g := &a.Grants[i]; now < g.Expires && (g.rest() > 0 || g.Used > 0) {
			until = min(until, g.Expires)
		}
	}
	return until
}

// Spent takes in what was used under Offers until now. The account may have been offered several times, and grants may have expired
// since. Each permit was used while all that were valid then sufficed for it and for those before it. So the valid ones may have
// been used, whichever these are; what they do not suffice for was used before the others expired, beginning with the last to expire.
// The last of them was used at last, or before.
func (a *Account) Spent(now, hits, last int64) {
	if hits <= 0 {
		return
	}
	a.demand.count += hits
	a.demand.last = max(a.demand.last, last)
	use := func(g *Grant) {
		n := min(hits, g.rest())
		g.Used += n
		hits -= n
	}
	for i := range a.Grants {
		if now < a.Grants[i].Expires {
			use(&a.Grants[i])
		}
	}
	for hits > 0 {
		var last *Grant
		for i := range a.Grants {
			if g := &a.Grants[i]; g.rest() > 0 && (last == nil || g.Expires > last.Expires) {
				last = g
			}
		}
		if last == nil {
			return // the record has lost writes
		}
		use(last)
	}
}

// Left is how many permits may be used at now.
func (a *Account) Left(now int64) (n int64) {
	for i := range a.Grants {
		if now < a.Grants[i].Expires {
			n += a.Grants[i].rest()
		}
	}
	return n
}

// GiveBack gives back hits that were used, from the grants that may still be used, the latest first. It reports whether it did: hits
// of grants that have ended are lost, and a refund of more than what was used is dropped.
//
// The home may have heard already that the permits are used. Then it no longer takes them back if the account returns them, so they
// stay charged: that is too strict, and never too loose.
func (a *Account) GiveBack(r Reading, hits int64) bool {
	if !a.enter(r) {
		return false
	}
	used := int64(0)
	for i := range a.Grants {
		if g := &a.Grants[i]; r.Now < g.Expires {
			used += g.Used
		}
	}
	if used < hits {
		return false
	}
	for i := len(a.Grants) - 1; hits > 0; i-- { // it ends: so many are used
		if g := &a.Grants[i]; r.Now < g.Expires {
			n := min(hits, g.Used)
			g.Used -= n
			hits -= n
		}
	}
	return true
}

// Fresh reports whether the account has never asked.
func (a *Account) Fresh() bool { return a.Incarnation == 0 && a.Question.Number == 0 }

// Due reports whether the home has to be asked at now, for so many permits that requests wait for.
func (a *Account) Due(r Reading, need int64) bool { return a.due(r, need) }

// due reports whether the home has to be asked at now: because a take needs permits, because the account is half empty, or to
// return what is not used. A take that needs permits does not ask while the last answer said that there are none.
func (a *Account) due(r Reading, need int64) bool {
	now := r.Now
	if a.Waiting {
		return now >= a.SentAt+patience
	}
	if now < a.Again {
		return false
	}
	again := a.SentAt + refresh
	if a.Rules != 0 && a.Rules == r.Rules {
		again = a.SentAt + rarely
	}
	return need > 0 || a.low(now) || now >= a.SentAt+idle && a.returns(now) > 0 || now >= again && a.Left(now) > 0
}

// low reports whether an account in use is half empty.
func (a *Account) low(now int64) bool { return a.Left(now) < a.demand.size/2 && !a.demand.idle(now) }

// returns is how many permits the account would return at now: those that have expired, and those that it does not need.
func (a *Account) returns(now int64) (n int64) {
	for i := range a.Grants {
		if g := &a.Grants[i]; now >= g.Expires {
			n += g.rest()
		}
	}
	return n + a.excess(now)
}

// excess is how many valid permits the account does not need: all if it is idle, else what exceeds the last grant and twice the
// demand.
func (a *Account) excess(now int64) int64 {
	left := a.Left(now)
	if !a.demand.idle(now) {
		left -= max(2*a.demand.ahead(), a.demand.size)
	}
	return max(left, 0)
}

func (d *demand) idle(now int64) bool { return now >= d.last+idle }

// ahead is how many permits are used in half of a grant's life.
func (d *demand) ahead() int64 { return int64(math.Ceil(min(d.rate*longestLife/2, math.MaxInt32))) }

// measure updates the rate at now. What was used long ago counts less.
func (d *demand) measure(now int64) {
	dt := now - d.since
	if dt < memory/8 {
		return
	}
	w := math.Exp(-float64(dt) / memory)
	d.rate = d.rate*w + (1-w)*float64(d.count)/float64(dt)
	d.count, d.since = 0, now
}

// Ask returns the question that has to be sent to the home at now, if there is one. need is how many permits a request waits for.
// fresh is random: it becomes the nonce of a new question, and the incarnation of a new account.
func (a *Account) Ask(r Reading, region string, epoch uint64, need int64, fresh uint64) (Question, bool) {
	if !a.enter(r) || epoch < a.Epoch {
		return Question{}, false
	}
	if epoch > a.Epoch {
		// An answer to the question that waits may come from a home that is none any more.
		a.Epoch, a.Waiting, a.Again = epoch, false, 0
	}
	if r.Now >= a.AskedAt+longestLife {
		a.Waiting = false // what the answer brings would have expired
	}
	a.demand.measure(r.Now)
	if !a.due(r, need) {
		return Question{}, false
	}
	a.SentAt = r.Now
	if a.Waiting {
		return a.Question.clone(), true
	}
	if a.Incarnation == 0 {
		a.Incarnation = fresh // never 0
	}
	low := a.low(r.Now)
	a.giveBack(r.Now)
	want := int64(0)
	if now, d := r.Now, &a.demand; !d.idle(now) {
		want = d.ahead() - a.Left(now)
		if a.Left(now) < d.size/2 && now < d.asked+memory {
			want = max(want, 2*d.size) // the last grant was used up fast
		}
	}
	if len(a.Grants) >= mostGrants {
		want, need = 0, 0
	}
	if need == 0 && !low {
		want = 0 // it only reports
	}
	a.Waiting, a.AskedAt = true, r.Now
	a.Question = Question{
		Region: region, Epoch: epoch, Incarnation: a.Incarnation, Number: a.Question.Number + 1, Nonce: fresh,
		Grants: slices.Clone(a.Grants), Want: want, Need: need,
	}
	return a.Question.clone(), true
}

func (q Question) clone() Question {
	q.Grants = slices.Clone(q.Grants)
	return q
}

// giveBack returns what has expired, and what is not needed, the newest permits first.
func (a *Account) giveBack(now int64) {
	excess := a.excess(now)
	for i := len(a.Grants) - 1; i >= 0; i-- {
		g := &a.Grants[i]
		if now >= g.Expires {
			g.giveUp()
			continue
		}
		n := min(excess, g.rest())
		g.Returned += n
		excess -= n
	}
}

// Apply takes in an answer, if the account waits for it, and reports whether it did. An account that waits has not heard the answer
// yet, whoever sent the question and however often.
func (a *Account) Apply(r Reading, ans *Answer) bool {
	if !a.enter(r) || !a.Waiting || ans.Epoch != a.Epoch || ans.Incarnation != a.Incarnation || ans.Number != a.Question.Number || ans.Nonce != a.Question.Nonce {
		return false
	}
	a.Waiting, a.Full = false, ans.Result == Full
	if ans.Limit < a.Limit {
		// The limit was lowered, or the caller was blocked. What was granted may be more than the new limit: it goes back with the next
		// question, and the home grants what still fits.
		for i := range a.Grants {
			a.Grants[i].giveUp()
		}
	}
	a.Limit, a.Rules = ans.Limit, ans.Rules
	switch ans.Result {
	case Stale: // begin anew: the home counts what this account held as used
		a.Grants, a.Incarnation, a.Question.Number = nil, 0, 0
		return true
	case Inactive, Outdated:
		a.Again = r.Now + min(max(ans.RetryAfter, patience), second)
		return true
	}
	// The home knows now what the question said: grants of which nothing was left then are settled.
	reported := a.Question.Grants
	a.Grants = slices.DeleteFunc(a.Grants, func(g Grant) bool {
		return slices.ContainsFunc(reported, func(q Grant) bool { return q.is(&g) && q.rest() == 0 })
	})
	a.Remaining = ans.Remaining
	if ans.Result != Granted {
		if a.Question.Want > 0 || a.Question.Need > 0 {
			a.demand.size = 0 // it asks for more again when a request needs permits
		}
		if a.Full {
			a.Again = r.Now + min(max(ans.RetryAfter, patience/4), second)
		}
		return true
	}
	g := Grant{
		Incarnation: a.Incarnation, Number: ans.Number, Permits: ans.Permits, Charged: ans.Charged, Ends: ans.Ends,
		Expires: a.AskedAt + shortened(ans.ValidFor) - unnoticed,
	}
	if r.Now >= g.Expires {
		g.giveUp() // it goes back with the next question
	}
	a.demand.size, a.demand.asked = g.rest(), a.AskedAt
	a.Grants = append(a.Grants, g)
	return true
}
