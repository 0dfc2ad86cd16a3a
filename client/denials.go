package client

import (
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

const (
	// askAgain is how long a denial is used before one call asks the service again.
	askAgain = time.Second
	// maxDenialKey bounds the memory of the denial cache.
	maxDenialKey = 1 << 10
	// evictFrom is how many denials are looked at to find one to replace.
	evictFrom = 8
	// forever is when a denial ends for which no wait helps. The service is asked about it every second, as about the
	// others.
	forever = 100 * 365 * 24 * time.Hour
)

// denials are the denied requests that a client remembers. A nil *denials remembers none.
type denials struct {
	max int

	mu    sync.Mutex
	known map[string]*denial // key: the bytes of the request
}

// denial is a request that was denied. Only ask changes.
type denial struct {
	answer limits.Decision
	at     time.Time // time of the answer
	until  time.Time // the request would pass then
	ask    time.Time // when the next call asks the service again
}

func newDenials(most int) *denials {
	return &denials{max: most, known: make(map[string]*denial)}
}

// find returns the remembered denial of a request, or nil without an active one. Once a second it returns ask for one
// call, which then asks the service.
func (d *denials) find(key []byte, now time.Time) (known *denial, ask bool) {
	if d == nil {
		return nil, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known = d.known[string(key)]
	switch {
	case known == nil:
		return nil, false
	case !now.Before(known.until):
		delete(d.known, string(key))
		return nil, false
	case !now.Before(known.ask):
		known.ask = now.Add(askAgain) // if no answer comes
		return known, true
	}
	return known, false
}

// learn remembers an answer of the service if it is a denial. Otherwise it removes the remembered denial of the
// request.
func (d *denials) learn(key []byte, answer *limits.Decision, known *denial, now time.Time) {
	denied := !answer.Allowed && answer.Source == limits.Counted && answer.RetryAfter != 0 && len(key) <= maxDenialKey
	if d == nil || !denied && known == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !denied {
		delete(d.known, string(key))
		return
	}
	lasts := answer.RetryAfter
	if lasts == limits.Never {
		lasts = forever
	}
	next := &denial{answer: *answer, at: now, until: now.Add(lasts), ask: now.Add(askAgain)}
	next.answer.Source = limits.DenialCache
	next.answer.Statuses, next.answer.Headers = slices.Clone(answer.Statuses), slices.Clone(answer.Headers)
	if _, replaced := d.known[string(key)]; !replaced && len(d.known) >= d.max {
		d.evict(now)
	}
	d.known[string(key)] = next
}

// evict removes one of a few denials: the one that ends first. Go starts each loop over a map at a random place.
func (d *denials) evict(now time.Time) {
	var first string
	var end time.Time
	seen := 0
	for key, known := range d.known {
		if seen == 0 || known.until.Before(end) {
			first, end = key, known.until
		}
		if seen++; seen == evictFrom || !now.Before(end) {
			break
		}
	}
	delete(d.known, first)
}

// decision is the answer to a call at now, which is before until. Its times are relative to now.
func (d *denial) decision(now time.Time) limits.Decision {
	past := now.Sub(d.at)
	answer := d.answer
	answer.Headers = slices.Clone(answer.Headers) // the caller may change its answer
	answer.Statuses = slices.Clone(answer.Statuses)
	answer.RetryAfter = left(answer.RetryAfter, past)
	for i := range answer.Statuses {
		s := &answer.Statuses[i]
		s.RetryAfter = left(s.RetryAfter, past)
		s.ResetAfter = (max(0, s.ResetAfter-past) + time.Second - 1).Truncate(time.Second)
	}
	return answer
}

// left returns the rest of the wait d after the time past.
func left(d, past time.Duration) time.Duration {
	if d == limits.Never {
		return d
	}
	return max(0, d-past)
}
