package simulate

import (
	"hash/crc32"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// comparedCounter is one counter under the exact log and under each alternative. Every one of them goes on from what it admitted
// itself.
type comparedCounter struct {
	key   string
	hash  uint32
	limit *comparedLimit
	with  *alternatives

	// log has the requests of the last window that somebody admitted, oldest first, from first on. It is nil if they take too
	// much memory: then the counter is not compared.
	log   []admitted
	first int

	exact  int64                  // hits that the exact log admitted in the last window
	sums   [maxAlternatives]int64 // the same of each alternative
	states [maxAlternatives]backend.State
}

// admitted is a number of hits that were admitted at one time.
type admitted struct {
	at   int64 // microseconds since 1970
	hits int64
	by   uint32 // a bit for each alternative, and exactBit
}

const (
	exactBit     = 1 << maxAlternatives
	counterBytes = 1400 // of a counter without its key and without what grows with its hits, with its share of the map
	admittedSize = 24   // bytes
)

func newComparedCounter(l *comparedLimit, with *alternatives, key string) *comparedCounter {
	return &comparedCounter{key: key, hash: crc32.Checksum([]byte(key), castagnoli), limit: l, with: with, log: make([]admitted, 0, 4)}
}

// bytes is how much memory the counter takes, about.
func (k *comparedCounter) bytes() int {
	n := counterBytes + len(k.key) + admittedSize*cap(k.log)
	for i := range k.states {
		n += 4 * cap(k.states[i].Tail)
	}
	return n
}

// drop stops comparing the counter.
func (k *comparedCounter) drop() {
	k.log, k.states = nil, [maxAlternatives]backend.State{}
}

// take attempts a take under the exact log and under each alternative, and counts the differences.
func (k *comparedCounter) take(now, hits int64, countDenied bool) {
	k.forget(now - k.with.window)
	k.limit.decisions++
	by := uint32(0)
	exact := k.exact+hits <= k.with.requests
	if exact {
		k.exact += hits
		by = exactBit
	} else {
		k.limit.refused++
	}
	for i := range k.with.limits {
		l := k.with.limits[i]
		if l == nil {
			continue
		}
		take := [1]backend.Take{{Limit: l, Hits: hits, CountDenied: countDenied && i == asWritten}}
		var outcome [1]backend.Outcome
		backend.Settle(take[:], []*backend.State{&k.states[i]}, outcome[:], now)
		c := &k.limit.counts[i]
		c.decisions++
		switch passes := outcome[0].Allowed; {
		case passes:
			k.sums[i] += hits
			by |= 1 << i
			c.most = max(c.most, float64(k.sums[i])/float64(k.with.requests))
			if !exact {
				c.admitted++
			}
		case exact:
			c.refused++
		}
	}
	if by != 0 {
		k.remember(admitted{now, hits, by})
	}
}

// remember adds a request to the log.
func (k *comparedCounter) remember(a admitted) {
	if n := len(k.log); n > k.first && k.log[n-1].at == a.at && k.log[n-1].by == a.by {
		k.log[n-1].hits += a.hits // many logs have whole seconds
		return
	}
	if len(k.log) == cap(k.log) && k.first > len(k.log)/2 {
		k.log = k.log[:copy(k.log, k.log[k.first:])]
		k.first = 0
	}
	k.log = append(k.log, a)
}

// forget drops what was admitted at a time or before.
func (k *comparedCounter) forget(until int64) {
	for ; k.first < len(k.log) && k.log[k.first].at <= until; k.first++ {
		a := &k.log[k.first]
		if a.by&exactBit != 0 {
			k.exact -= a.hits
		}
		for i := range k.sums {
			if a.by&(1<<i) != 0 {
				k.sums[i] -= a.hits
			}
		}
	}
	if k.first == len(k.log) {
		k.log, k.first = k.log[:0], 0
	}
}

// expired reports whether the counter is equivalent to an unused one.
func (k *comparedCounter) expired(now int64) bool {
	if n := len(k.log); n > 0 && k.log[n-1].at > now-k.with.window {
		return false
	}
	for i, l := range k.with.limits {
		if l != nil && !k.states[i].Unused() && backend.Expires(l, &k.states[i]) > now {
			return false
		}
	}
	return true
}
