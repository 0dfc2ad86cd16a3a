package memory

// index finds places in an arena by a part of a hash, their tag. It is an open hash table with linear probing. A slot
// holds the tag with the place, so neither growing nor most steps of a search read the arena.
type index struct {
	slots []uint64 // tag<<placeBits | place+1, or 0; the length is a power of two
	used  int
}

const placeBits = 40

// tag is the part of a hash that an index uses. The lowest bits choose the shard.
func tag(hash uint64) uint32 { return uint32(hash >> placeBits) }

// next returns the next place with a tag, and the slot that it is in. Begin at the tag itself, and continue behind that
// slot.
func (x *index) next(tag, from uint32) (place uint64, slot uint32, ok bool) {
	if len(x.slots) == 0 {
		return 0, 0, false
	}
	mask := len(x.slots) - 1
	for at := int(from) & mask; ; at = (at + 1) & mask {
		s := x.slots[at]
		if s == 0 {
			return 0, 0, false
		}
		if uint32(s>>placeBits) == tag {
			return s&(1<<placeBits-1) - 1, uint32(at), true
		}
	}
}

// place returns the place in a slot. ok is false if the slot is free.
func (x *index) place(slot int) (place uint64, ok bool) {
	s := x.slots[slot]
	return s&(1<<placeBits-1) - 1, s != 0
}

// add adds a place. At most three quarters of the slots are used, so every search ends at a free one.
func (x *index) add(tag uint32, place uint64) {
	if x.used >= len(x.slots)/4*3 {
		old := x.slots
		x.slots = make([]uint64, max(8, 2*len(old)))
		for _, s := range old {
			if s != 0 {
				x.put(s)
			}
		}
	}
	x.put(uint64(tag)<<placeBits | (place + 1))
	x.used++
}

func (x *index) put(s uint64) {
	mask := len(x.slots) - 1
	at := int(s>>placeBits) & mask
	for x.slots[at] != 0 {
		at = (at + 1) & mask
	}
	x.slots[at] = s
}

// remove frees a slot. Slots behind it move up, so that searches for them do not end at the gap.
func (x *index) remove(slot uint32) {
	mask := len(x.slots) - 1
	gap := int(slot)
	for at := (gap + 1) & mask; x.slots[at] != 0; at = (at + 1) & mask {
		first := int(x.slots[at]>>placeBits) & mask
		if (at-first)&mask >= (at-gap)&mask {
			x.slots[gap] = x.slots[at]
			gap = at
		}
	}
	x.slots[gap] = 0
	x.used--
}

// reset empties the index and makes room for n places.
func (x *index) reset(n int) {
	size := 8
	for size/4*3 < n {
		size *= 2
	}
	if cap(x.slots) < size {
		x.slots = make([]uint64, size)
	} else {
		x.slots = x.slots[:size]
		clear(x.slots)
	}
	x.used = 0
}
