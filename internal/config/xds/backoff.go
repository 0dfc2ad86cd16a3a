package xds

import (
	"math/rand/v2"
	"time"
)

// Backoff is a wait that grows by half with every failed attempt.
type Backoff struct {
	Initial time.Duration // before the first attempt
	Max     time.Duration // and never longer than this
	Factor  float64       // jitter as a fraction of the wait, 0 to 1: 0.5 means between half and one and a half of it
}

// after returns the wait before the next attempt, given the number of failed ones and a random r from 0 to 1.
func (b Backoff) after(failed int, r float64) time.Duration {
	wait := float64(b.Initial)
	for range failed {
		if wait *= 1.5; wait >= float64(b.Max) {
			break
		}
	}
	return spread(min(time.Duration(wait), b.Max), b.Factor, r)
}

// spread adds jitter to a wait, so that the replicas of a fleet do not act at the same moment.
func spread(wait time.Duration, factor, r float64) time.Duration {
	return wait + time.Duration(float64(wait)*factor*(2*r-1))
}

// rejections decides when a NACK is sent. Some servers answer a NACK immediately with the same rules. If each of these
// were answered immediately, the two sides would loop. So the first NACK is sent without delay, and each further one
// for the same rules waits twice as long as the one before.
type rejections struct {
	first, most time.Duration // the shortest and the longest wait

	version string
	content sum
	reason  string    // empty if nothing is rejected
	nacks   int       // sent for these rules
	last    time.Time // when the last NACK was sent
}

// known returns the reason for which this content was rejected before, if it was.
func (r *rejections) known(content sum) (reason string, known bool) {
	return r.reason, r.reason != "" && r.content == content
}

// reject records rejected rules, and returns how long to wait before the NACK. Rules with the same version or the same
// content are the same rules.
func (r *rejections) reject(version string, content sum, reason string, now time.Time) time.Duration {
	same := r.reason != "" && (r.content == content || r.version == version && version != "")
	if !same {
		r.nacks = 0
	}
	r.version, r.content, r.reason = version, content, reason
	wait := r.first
	for range r.nacks - 1 {
		if wait *= 2; wait >= r.most {
			break
		}
	}
	r.nacks++
	if r.last.IsZero() {
		return 0
	}
	wait = spread(min(wait, r.most), 0.25, rand.Float64())
	return max(r.last.Add(wait).Sub(now), 0)
}

// sent records that the NACK was sent.
func (r *rejections) sent(now time.Time) { r.last = now }

// accepted records an ACK: no rules are rejected any more.
func (r *rejections) accepted() { r.reason, r.nacks = "", 0 }
