package memory

import "slices"

// reservationTable has the reservations of a shard, by the key of their counter.
type reservationTable struct {
	all []*reservations // nil in unused positions
	// places are positions in all; empty while few counters have reservations, where it is cheaper to look at all of them
	index  index
	unused []uint32
	spare  []*reservations // empty ones, for the next counters
}

const (
	fewCounters = 8 // need no index
	mostSpare   = 4 // empty ones are kept
)

// find returns the reservations of a counter, or nil.
func (x *reservationTable) find(hash uint64, key []byte) *reservations {
	if x == nil {
		return nil
	}
	if x.index.slots == nil {
		for _, b := range x.all {
			if b.hash == hash && string(b.key) == string(key) {
				return b
			}
		}
		return nil
	}
	tag := tag(hash)
	for from := tag; ; {
		place, slot, ok := x.index.next(tag, from)
		if !ok {
			return nil
		}
		if b := x.all[place]; string(b.key) == string(key) {
			return b
		}
		from = slot + 1
	}
}

// add adds a counter without reservations. It is not in the table.
func (x *reservationTable) add(hash uint64, key []byte) *reservations {
	var b *reservations
	if last := len(x.spare) - 1; last >= 0 {
		b, x.spare = x.spare[last], x.spare[:last]
	} else {
		b = new(reservations)
	}
	if b.key == nil {
		b.key = b.short[:0]
	}
	b.hash, b.key = hash, append(b.key, key...)
	if x.index.slots == nil {
		x.all = append(x.all, b)
		if len(x.all) > fewCounters {
			for place, b := range x.all {
				x.index.add(tag(b.hash), uint64(place))
			}
		}
		return b
	}
	place := uint32(len(x.all))
	if last := len(x.unused) - 1; last >= 0 {
		place, x.unused = x.unused[last], x.unused[:last]
		x.all[place] = b
	} else {
		x.all = append(x.all, b)
	}
	x.index.add(tag(hash), uint64(place))
	return b
}

// remove removes a counter, unless it was removed before.
func (x *reservationTable) remove(b *reservations) {
	removed := false
	if x.index.slots == nil {
		removed = x.removeOfFew(b)
	} else {
		removed = x.removeOfMany(b)
	}
	if removed && len(x.spare) < mostSpare && b.empty() {
		x.spare = append(x.spare, b)
	}
}

func (x *reservationTable) removeOfFew(b *reservations) bool {
	place, last := slices.Index(x.all, b), len(x.all)-1
	if place < 0 {
		return false
	}
	x.all[place], x.all[last] = x.all[last], nil
	x.all = x.all[:last]
	return true
}

func (x *reservationTable) removeOfMany(b *reservations) bool {
	tag := tag(b.hash)
	for from := tag; ; {
		place, slot, ok := x.index.next(tag, from)
		if !ok {
			return false
		}
		if x.all[place] == b {
			x.all[place] = nil
			x.unused = append(x.unused, uint32(place))
			x.index.remove(slot)
			return true
		}
		from = slot + 1
	}
}

// none reports whether all counters are without reservations.
func (x *reservationTable) none() bool { return len(x.all) == len(x.unused) }
