package hotkeys

const (
	slots   = 128
	noSlot  = 255
	indexed = 512 // places in the index
)

// summary is the Space-Saving sketch of Metwally, Agrawal and El Abbadi (2005), with weights: a key that finds no room
// takes the place of one with the smallest count and inherits that count as its error. So count-err <= true <= count for
// every key that is there, true <= the smallest count for every other, and the smallest is at most hits/128.
//
// The smallest are found by looking at all counts, and then used up one after the other: where many keys come by once,
// that is one look for some hundred of them. A heap, the rejected way, has to be kept in order with every hit; it took
// twice as long. Keys are told apart by a 64-bit hash that nobody outside can compute.
//
// A summary has no pointers, so the garbage collector has nothing to look at in it.
type summary struct {
	slots [slots]slot // what one use touches lies together: it is rarely in the cache that is nearest

	hits uint64 // of all keys; the counts add up to it
	used int    // slots that have a key

	index [indexed]uint8 // slot by hash: open addressing, linear probing; three quarters of it are free

	smallest uint64       // the smallest count when it was last looked for
	lowest   [slots]uint8 // slots that had it then
	left     int          // how many of them have not been used up

	counts [slots]uint64 // by slot
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

// reset forgets everything. Slots that are not in use are never looked at.
func (s *summary) reset() {
	s.hits, s.used, s.left = 0, 0, 0
	for i := range s.index {
		s.index[i] = noSlot
	}
}

// add counts hits of a key.
func (s *summary) add(hash uint64, key []byte, hits uint64) {
	s.hits += hits
	i := hash % indexed
	for ; s.index[i] != noSlot; i = (i + 1) % indexed {
		if at := s.index[i] % slots; s.slots[at].hash == hash {
			s.counts[at] += hits
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
	s.counts[at%slots] = err + hits
	to := &s.slots[at%slots]
	to.hash, to.err = hash, err
	to.text.set(key)
}

// lowestSlot is a slot with the smallest count, where all are in use.
func (s *summary) lowestSlot() uint8 {
	for s.left > 0 {
		s.left--
		if at := s.lowest[s.left%slots]; s.counts[at%slots] == s.smallest { // else it was hit since
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

// unindex takes a slot out of the index, and closes the gap: what stands behind it and does not stand where its hash
// says moves up.
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

// floor is what a key that is not there may have been counted at most.
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
