package backend

import (
	"slices"
	"sort"

	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// concurrency allows hits while places are free. A hit takes a place and a refund gives one back. A place that is not
// given back becomes free when the window, which is the rule's ttl, has passed.
//
// The state is a sliding log: an entry for each place in use, with the time when it was taken. A refund drops the
// oldest entries. A refund does not name its place. With this choice no entry leaves before the request that it stands
// for is over, or is as old as the ttl. So more than the limit are never in flight. An entry may stay too long, instead
// of an older one that was lost.
type concurrency struct{ slidingLog }

func (concurrency) apply(l *descriptor.Limit, s *State, now, hits int64, c commit) Outcome {
	if hits >= 0 {
		return slidingLog{}.apply(l, s, now, hits, c)
	}
	o := slidingLog{}.apply(l, s, now, 0, c)
	o.Allowed, o.RetryAfter = true, 0 // the limit may be lower than it was
	if hits = refundable(hits, o.Used); hits == 0 || !c.adds(o.Allowed) {
		return o
	}
	// The entries that have left the window are older than all others, and go too.
	o.Used += hits
	s.Tail = slices.Delete(s.Tail, 0, len(s.Tail)-int(o.Used))
	if o.Used == 0 {
		o.MoreAfter, o.ResetAfter = 0, 0
	}
	return o
}

// adjust gives back the places that were taken at the time mark. If they have been given back already, by refunds that
// did not say which places they meant, it gives back the oldest ones.
func (concurrency) adjust(l *descriptor.Limit, s *State, now, mark, delta int64) {
	if delta >= 0 {
		slidingLog{}.adjust(l, s, now, mark, delta)
		return
	}
	a := &l.Arithmetic
	at, gone := ceilDiv(mark, a.Quantum), now/a.Quantum-a.Length/a.Quantum
	if at <= gone {
		return // they are free again
	}
	search := func(time int64) int {
		return sort.Search(len(s.Tail), func(i int) bool { return s.Start+int64(s.Tail[i]) >= time })
	}
	from := search(at)
	n := min(search(at+1)-from, int(-delta))
	s.Tail = slices.Delete(s.Tail, from, from+n)
	oldest := search(gone + 1)
	s.Tail = slices.Delete(s.Tail, oldest, min(oldest+int(-delta)-n, len(s.Tail)))
	if len(s.Tail) == 0 {
		*s = State{}
	}
}

func (concurrency) redis(*descriptor.Limit) *RedisForm { return &inFlightForm }

var inFlightForm = func() RedisForm {
	f := logForm
	f.Shape = scripts.InFlight
	return f
}()
