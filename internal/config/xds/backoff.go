package xds

import (
	"math/rand/v2"
	"time"
)

// Backoff is a wait that grows by half with every attempt.
type Backoff struct {
	Initial time.Duration // before the first attempt
	Max     time.Duration // and never longer than this
	Factor  float64       // how far a wait may be from that, as a share of it: 0.5 is from half to one and a half. From 0 to 1
}

// after is the wait before an attempt that follows some failed ones. r is from 0 to 1.
func (b Backoff) after(failed int, r float64) time.Duration {
	wait := float64(b.Initial)
	for range failed {
		if wait *= 1.5; wait >= float64(b.Max) {
			break
		}
	}
	return spread(min(time.Duration(wait), b.Max), b.Factor, r)
}

// spread moves a wait by up to a share of it, so that a fleet does not act as one.
func spread(wait time.Duration, factor, r float64) time.Duration {
	return wait + time.Duration(float64(wait)*factor*(2*r-1))
}

// refusals says when a server is told that what it sent is refused. Some servers answer that at once with the same
// rules: told at once each time, they and we would be busy with nothing else. So the first word of a refusal goes out at
// once, and every further one waits, twice as long each time.
type refusals struct {
	first, most time.Duration // the shortest and the longest wait

	version string
	content sum
	reason  string    // empty: nothing is refused
	told    int       // how often of these rules
	last    time.Time // when anything was refused
}

// known is the reason why this content is refused, if it is known to be.
func (r *refusals) known(content sum) (reason string, known bool) {
	return r.reason, r.reason != "" && r.content == content
}

// refuse notes that rules are refused, and says how long to wait until the server is told. Rules of the same version or
// of the same content are the same.
func (r *refusals) refuse(version string, content sum, reason string, now time.Time) time.Duration {
	same := r.reason != "" && (r.content == content || r.version == version && version != "")
	if !same {
		r.told = 0
	}
	r.version, r.content, r.reason = version, content, reason
	wait := r.first
	for range r.told - 1 {
		if wait *= 2; wait >= r.most {
			break
		}
	}
	r.told++
	if r.last.IsZero() {
		return 0
	}
	wait = spread(min(wait, r.most), 0.25, rand.Float64())
	return max(r.last.Add(wait).Sub(now), 0)
}

// sent notes that the server has been told.
func (r *refusals) sent(now time.Time) { r.last = now }

// accepted notes that rules are in force: nothing is refused any more.
func (r *refusals) accepted() { r.reason, r.told = "", 0 }
