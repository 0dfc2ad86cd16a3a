package hotkeys

import (
	"math"
	"math/bits"
)

const (
	slots   = 128
	noSlot  = 255
	indexed = 512 // places in the index
)

// summary is the Space-Saving sketch of Metwally, Agrawal and El Abbadi (2005), with weights. When all slots are used,
// a new key replaces one with the smallest count and inherits that count as its error. So count-err <= true <= count
// for every key in the summary, true <= the smallest count for every other key, and the smallest count is at most
// hits/128, as long as no sum is at its maximum.
//
// One scan over all counts finds the slots with the smallest count, and they are then used one after the other. With
// many keys that occur once, one scan serves about a hundred of them. A heap was rejected: it must be kept in order
// with every hit, and took twice as long. Keys are compared by a 64-bit hash with a secret seed.
//
// A summary has no pointers, so the garbage collector does not scan it.
type summary struct {
	slots [slots]slot // the data of one use is adjacent, because it is rarely in the L1 cache

	hits uint64 // hits of all keys: the sum of counts
	used int    // slots that have a key

	index [indexed]uint8 // slot by hash: open addressing, linear probing; at least three quarters are free

	smallest uint64       // the smallest count at the last scan
	lowest   [slots]uint8 // slots with that count at the last scan
	left     int          // how many of them are not used yet

	counts [slots]uint64 // hits per slot
}

// slot is three cache lines.
type slot struct {
	hash uint64
	err  uint64
	text text
}

func newSummary() *summary {
	s := new(summary)
	s.reset()
	return s
}

// reset empties the summary. Unused slots are never read, so they need no clearing.
func (s *summary) reset() {
	s.hits, s.used, s.left = 0, 0, 0
	for i := range s.index {
		s.index[i] = noSlot
	}
}

// add counts hits of a key.
func (s *summary) add(hash uint64, key []byte, hits uint64) {
	s.hits = plus(s.hits, hits)
	i := hash % indexed
	for ; s.index[i] != noSlot; i = (i + 1) % indexed {
		if at := s.index[i] % slots; s.slots[at].hash == hash {
			s.counts[at] = plus(s.counts[at], hits)
			return
		}
	}
	var at uint8
	var err uint64
	if s.used < slots {
		at = uint8(s.used)
		s.used++
	} else {
		at = s.lowestSlot()
		s.unindex(at)
		err = s.smallest
		for i = hash % indexed; s.index[i] != noSlot; i = (i + 1) % indexed {
		}
	}
	s.index[i] = at
	s.counts[at%slots] = plus(err, hits)
	to := &s.slots[at%slots]
	to.hash, to.err = hash, err
	to.text.set(key)
}

// lowestSlot returns a slot with the smallest count. All slots are in use.
func (s *summary) lowestSlot() uint8 {
	for s.left > 0 {
		s.left--
		if at := s.lowest[s.left%slots]; s.counts[at%slots] == s.smallest { // otherwise it was hit since the scan
			return at
		}
	}
	s.smallest = s.counts[0]
	for i := range s.counts {
		s.smallest = min(s.smallest, s.counts[i])
	}
	for i := range s.counts {
		if s.counts[i] == s.smallest {
			s.lowest[s.left%slots] = uint8(i)
			s.left++
		}
	}
	s.left--
	return s.lowest[s.left%slots]
}

// unindex removes a slot from the index and closes the gap: later slots that are not at the place of their hash move
// up.
func (s *summary) unindex(at uint8) {
	gap := s.slots[at%slots].hash % indexed
	for s.index[gap] != at {
		gap = (gap + 1) % indexed
	}
	for i := (gap + 1) % indexed; s.index[i] != noSlot; i = (i + 1) % indexed {
		home := s.slots[s.index[i]%slots].hash % indexed
		if (i-home)%indexed >= (i-gap)%indexed { // distances around the ring
			s.index[gap] = s.index[i]
			gap = i
		}
	}
	s.index[gap] = noSlot
}

// plus returns the sum of two numbers of hits, which stays at its maximum.
func plus(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return math.MaxUint64
}

// floor is an upper bound for the hits of keys that are not in the summary.
func (s *summary) floor() uint64 {
	if s.used < slots {
		return 0
	}
	floor := s.counts[0]
	for i := range s.counts {
		floor = min(floor, s.counts[i])
	}
	return floor
}
