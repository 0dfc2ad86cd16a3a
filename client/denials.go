package client

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

const (
	askAgain = time.Second // after this time one request is sent, although the denial still holds
	shards   = 16
	searched = 16      // denials that are looked at to find one that has ended
	maxKept  = 4 << 10 // bytes of a buffer for keys that is used again
)

// denials remembers which requests the service refuses, and until when. A request is identified by all that it consists of, so a denial of a
// large one does not refuse a small one.
type denials struct {
	seed  maphash.Seed
	shard [shards]denialShard
	most  int // in each shard
}

type denialShard struct {
	mu     sync.Mutex
	denied map[string]*denial
}

type denial struct {
	decision limits.Decision
	since    time.Time
	until    time.Time
	asked    time.Time // when the service was last asked
}

func newDenials(most int) *denials {
	d := &denials{seed: maphash.MakeSeed(), most: max(most/shards, 1)}
	for i := range d.shard {
		d.shard[i].denied = make(map[string]*denial)
	}
	return d
}

func (d *denials) of(hash uint64) *denialShard { return &d.shard[hash%shards] }

// find returns the answer to a request that is refused without a call.
func (d *denials) find(key []byte, now time.Time) (limits.Decision, bool) {
	s := d.of(maphash.Bytes(d.seed, key))
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.denied[string(key)]
	switch {
	case known == nil:
		return limits.Decision{}, false
	case !now.Before(known.until):
		delete(s.denied, string(key))
		return limits.Decision{}, false
	case now.Sub(known.asked) >= askAgain:
		known.asked = now // the others are refused meanwhile
		return limits.Decision{}, false
	}
	return known.answer(now), true
}

// answer is the decision as it is now.
func (d *denial) answer(now time.Time) limits.Decision {
	answer, passed := d.decision, now.Sub(d.since)
	answer.Source = limits.DenialCache
	answer.Statuses = slices.Clone(answer.Statuses)
	less := func(t time.Duration) time.Duration { return max(t-passed, 0) }
	if answer.RetryAfter != limits.Never {
		answer.RetryAfter = less(answer.RetryAfter)
	}
	for i := range answer.Statuses {
		st := &answer.Statuses[i]
		if st.RetryAfter != limits.Never {
			st.RetryAfter = less(st.RetryAfter)
		}
		st.ResetAfter = less(st.ResetAfter)
	}
	return answer
}

// learn remembers an answer of the service if it is a denial, and forgets a denial if it is none.
func (d *denials) learn(key string, now time.Time, answer *limits.Decision) {
	s := d.of(maphash.String(d.seed, key))
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer.Allowed || answer.Source != limits.Counted || answer.RetryAfter == 0 {
		delete(s.denied, key)
		return
	}
	lasts := answer.RetryAfter
	if lasts == limits.Never {
		lasts = askAgain // a change of the rules may allow it
	}
	if s.denied[key] == nil && len(s.denied) >= d.most {
		s.makeRoom(now)
	}
	s.denied[key] = &denial{decision: *answer, since: now, until: now.Add(lasts), asked: now}
}

// makeRoom forgets denials that have ended, of the first ones that it finds, or else one that has not.
func (s *denialShard) makeRoom(now time.Time) {
	looked, forgotten, last := 0, 0, ""
	for key, d := range s.denied { // in no order
		if !now.Before(d.until) {
			delete(s.denied, key)
			forgotten++
		}
		last = key
		if looked++; looked == searched {
			break
		}
	}
	if forgotten == 0 {
		delete(s.denied, last)
	}
}

// keys are buffers for keys. Large ones are not kept.
var keys = sync.Pool{New: func() any { return new([]byte) }}

// cacheable reports whether a denial of a request may be remembered: a peek asks for the present state.
func cacheable(r *limits.Request) bool {
	return !r.Amount.Peek && !slices.ContainsFunc(r.Descriptors, func(d limits.Descriptor) bool { return d.Amount != nil && d.Amount.Peek })
}

// appendKey appends what identifies a request. Lengths come before texts, so different requests have different keys.
func appendKey(b []byte, r *limits.Request) []byte {
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	amount := func(a *limits.Amount) {
		b = binary.AppendUvarint(b, a.Hits)
		b = binary.AppendUvarint(b, uint64(len(a.Units)))
		if len(a.Units) == 0 {
			return
		}
		for _, name := range slices.Sorted(maps.Keys(a.Units)) {
			text(name)
			b = binary.AppendUvarint(b, a.Units[name])
		}
	}
	text(r.Domain)
	amount(&r.Amount)
	b = binary.AppendUvarint(b, uint64(len(r.Descriptors)))
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		b = binary.AppendUvarint(b, uint64(len(d.Entries)))
		for _, e := range d.Entries {
			text(e.Key)
			text(e.Value)
		}
		if d.Amount == nil {
			b = append(b, 0)
			continue
		}
		b = append(b, 1)
		amount(d.Amount)
	}
	return b
}
