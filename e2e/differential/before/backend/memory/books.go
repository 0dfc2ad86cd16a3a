package memory

import "slices"

// books are the books of a shard, by the key of their counter.
type books struct {
	all    []*book // nil: the position is not used
	index  index   // places are positions in all; empty while there are few books, where it is cheaper to look at all of them
	unused []uint32
	spare  []*book // empty ones, for the next counters
}

const (
	fewBooks  = 8 // need no index
	mostSpare = 4 // empty books are kept
)

// find returns the book of a counter, or nil.
func (x *books) find(hash uint64, key []byte) *book {
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

// add adds an empty book for a counter. It has none.
func (x *books) add(hash uint64, key []byte) *book {
	var b *book
	if last := len(x.spare) - 1; last >= 0 {
		b, x.spare = x.spare[last], x.spare[:last]
	} else {
		b = new(book)
	}
	if b.key == nil {
		b.key = b.short[:0]
	}
	b.hash, b.key = hash, append(b.key, key...)
	if x.index.slots == nil {
		x.all = append(x.all, b)
		if len(x.all) > fewBooks {
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

// remove removes a book, unless it was removed before.
func (x *books) remove(b *book) {
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

func (x *books) removeOfFew(b *book) bool {
	place, last := slices.Index(x.all, b), len(x.all)-1
	if place < 0 {
		return false
	}
	x.all[place], x.all[last] = x.all[last], nil
	x.all = x.all[:last]
	return true
}

func (x *books) removeOfMany(b *book) bool {
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

// none reports whether there are no books.
func (x *books) none() bool { return len(x.all) == len(x.unused) }
