package descriptor

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// networks finds the smallest of many networks that holds an address. The addresses are cut where a network begins or
// ends; each piece knows the child of the smallest network around it. Finding a piece is one binary search, however
// many networks there are and however they lie within each other. A look-up per length of prefix, the rejected way, asks
// up to 33 times for IPv4 and 129 times for IPv6.
type networks struct {
	list []network // in file order

	// The pieces of each kind, by their first address: of IPv4 the address alone, which is a fifth of the memory to
	// search through.
	four      []uint32
	fourChild []node
	six       []address
	sixChild  []node
}

// network is one value_cidr.
type network struct {
	prefix netip.Prefix
	child  node
}

// find returns the child for an address, noNode if no network holds it.
func (n *networks) find(a address, four bool) node {
	if four {
		if at := lastNotAfter(n.four, uint32(a.low)); at >= 0 {
			return n.fourChild[at]
		}
		return noNode
	}
	from, to := 0, len(n.six)
	for from < to {
		mid := int(uint(from+to) / 2)
		if a.before(n.six[mid]) {
			to = mid
		} else {
			from = mid + 1
		}
	}
	if from == 0 {
		return noNode
	}
	return n.sixChild[from-1]
}

// lastNotAfter is the place of the last number that is not above x, -1 if all are.
func lastNotAfter(sorted []uint32, x uint32) int {
	from, to := 0, len(sorted)
	for from < to {
		mid := int(uint(from+to) / 2)
		if x < sorted[mid] {
			to = mid
		} else {
			from = mid + 1
		}
	}
	return from - 1
}

func (a address) before(b address) bool { return a.compare(b) < 0 }

func (a address) compare(b address) int {
	return cmp.Or(cmp.Compare(a.high, b.high), cmp.Compare(a.low, b.low))
}

func (a address) next() address {
	a.low++
	if a.low == 0 {
		a.high++
	}
	return a
}

// span is a network by its first and last address.
type span struct {
	first, last address
	child       node
}

func spanOf(n network) (s span, four bool) {
	s.child = n.child
	if a := n.prefix.Addr(); a.Is4() {
		b := a.As4()
		s.first.low = uint64(binary.BigEndian.Uint32(b[:]))
		s.last.low = s.first.low | (uint64(1)<<(32-n.prefix.Bits()) - 1)
		return s, true
	}
	b := n.prefix.Addr().As16()
	s.first = address{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
	s.last = s.first
	if n.prefix.Bits() <= 64 {
		s.last.high |= ^uint64(0) >> n.prefix.Bits() // a shift by 64 gives 0
		s.last.low = ^uint64(0)
	} else {
		s.last.low |= ^uint64(0) >> (n.prefix.Bits() - 64)
	}
	return s, false
}

// build makes the pieces of the list.
func (n *networks) build() {
	var four, six []span
	for _, x := range n.list {
		if s, is := spanOf(x); is {
			four = append(four, s)
		} else {
			six = append(six, s)
		}
	}
	n.four, n.fourChild, n.six, n.sixChild = nil, nil, nil, nil
	cut(four, func(first address, child node) {
		if first.low>>32 != 0 {
			return // beyond the last address
		}
		n.four, n.fourChild = append(n.four, uint32(first.low)), append(n.fourChild, child)
	})
	cut(six, func(first address, child node) {
		n.six, n.sixChild = append(n.six, first), append(n.sixChild, child)
	})
}

// cut calls piece for the pieces that spans cut the addresses into, by their first address. Spans lie within each
// other or apart, as networks do.
func cut(spans []span, piece func(first address, child node)) {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(a.first.compare(b.first), b.last.compare(a.last))
	})
	var open []span // around the place where we stand, each within the one before
	var pending address
	child, waiting := noNode, false // of the piece that begins at pending
	begin := func(first address, c node) {
		if waiting && first != pending {
			piece(pending, child)
		}
		pending, child, waiting = first, c, true
	}
	closeTop := func() {
		last := open[len(open)-1].last
		open = open[:len(open)-1]
		around := noNode
		if len(open) > 0 {
			around = open[len(open)-1].child
		}
		if last != (address{^uint64(0), ^uint64(0)}) {
			begin(last.next(), around)
		}
	}
	for _, s := range spans {
		for len(open) > 0 && open[len(open)-1].last.before(s.first) {
			closeTop()
		}
		open = append(open, s)
		begin(s.first, s.child)
	}
	for len(open) > 0 {
		closeTop()
	}
	if waiting {
		piece(pending, child)
	}
}
