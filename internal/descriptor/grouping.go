package descriptor

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Group is how a level's values are grouped: all values of a group share one counter. The zero value groups nothing.
type Group struct {
	V4, V6  uint8 // addresses count as their networks of this many bits; 0 groups no addresses of this family
	Capture uint8 // number of the expression's capture group whose text counts; 0 without one
}

// ParseGroup parses a group as rule files write it: ipv6/64, ipv4/24,ipv6/56 or $1.
func ParseGroup(text string) (Group, error) {
	wrong := func() error {
		return fmt.Errorf("%q is not a group: write networks, such as ipv6/64 or ipv4/24,ipv6/56, or a capture group of "+
			"`value_regex`, such as $1", text)
	}
	var g Group
	if number, ok := strings.CutPrefix(text, "$"); ok {
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil || n < 1 || n > 9 || len(number) != 1 {
			return Group{}, wrong()
		}
		return Group{Capture: uint8(n)}, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		family, number, _ := strings.Cut(strings.TrimPrefix(part, " "), "/")
		bits, most := &g.V4, 32
		switch family {
		case "ipv4":
		case "ipv6":
			bits, most = &g.V6, 128
		default:
			return Group{}, wrong()
		}
		n, err := strconv.Atoi(number)
		switch {
		case err != nil || strconv.Itoa(n) != number:
			return Group{}, wrong()
		case n < 1 || n > most:
			return Group{}, fmt.Errorf("%q: an address of %s has networks of 1 to %d bits", part, family, most)
		case *bits != 0:
			return Group{}, fmt.Errorf("%q has %s twice", text, family)
		}
		*bits = uint8(n)
	}
	return g, nil
}

// String returns the group as rule files write it.
func (g Group) String() string {
	if g.Capture > 0 {
		return "$" + strconv.Itoa(int(g.Capture))
	}
	var parts []string
	if g.V4 > 0 {
		parts = append(parts, "ipv4/"+strconv.Itoa(int(g.V4)))
	}
	if g.V6 > 0 {
		parts = append(parts, "ipv6/"+strconv.Itoa(int(g.V6)))
	}
	return strings.Join(parts, ",")
}

// Wider reports whether a group has more addresses than the network, so that the network cannot have several groups.
func (g Group) Wider(network netip.Prefix) bool {
	bits := g.V6
	if network.Addr().Is4() {
		bits = g.V4
	}
	return bits > 0 && int(bits) < network.Bits()
}

// grouping computes the counted value from the value that a client sends.
type grouping struct {
	group     Group
	fold      bool
	addresses bool     // values are addresses and networks
	capture   *capture // nil if the group is not a capture group
}

// newGrouping returns nil if the values of a level are not grouped. All notations of an address are one group where a
// network matches it, even without `group`.
func newGrouping(spec *NodeSpec) (*grouping, error) {
	network := spec.Kind == MatchCIDR
	if spec.Group == (Group{}) && !spec.FoldCase && !network || spec.Condition || spec.ShareThreshold {
		return nil, nil
	}
	g := &grouping{group: spec.Group, fold: spec.FoldCase, addresses: network || spec.Group.V4 > 0 || spec.Group.V6 > 0}
	if n := spec.Group.Capture; n > 0 {
		var err error
		if g.capture, err = newCapture(spec.Value, int(n), spec.FoldCase); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// oneAddress reports whether only the notations of one address count as one. Then the counter's key has no mark: it is
// the key of the usual notation, so that it also stays the same where a plan has other networks, or none.
func (g *grouping) oneAddress() bool { return g.addresses && g.group == (Group{}) }

// mark returns the text that distinguishes a group from others of the same pattern, in keys of rules that can share
// counters.
func (g *grouping) mark() string {
	if g.fold {
		return g.group.String() + "~="
	}
	return g.group.String() + "="
}

// counted returns the counted value. The counted value of an address is the first address of its network: it is in the
// same group. A text that is not an address counts as itself.
func (g *grouping) counted(value string) string {
	switch {
	case g.capture != nil:
		value = g.capture.of(value)
	case g.addresses:
		return g.address(value)
	}
	if g.fold {
		return Fold(value)
	}
	return value
}

// address returns the counted value of an address or a network: the first address of the group that contains it, an
// address in its usual notation, or a network that is larger than a group. It takes memory only if the value does not
// contain this text.
func (g *grouping) address(value string) string {
	p, ok := ParseNetwork(value)
	if !ok {
		return value
	}
	bits := int(g.group.V6)
	if p.Addr().Is4() {
		bits = int(g.group.V4)
	}
	var buf [64]byte
	var text []byte
	switch {
	case bits > 0 && bits <= p.Bits():
		text = netip.PrefixFrom(p.Addr(), bits).Masked().Addr().AppendTo(buf[:0])
	case p.IsSingleIP():
		text = p.Addr().AppendTo(buf[:0])
	default:
		text = p.AppendTo(buf[:0])
	}
	for _, at := range [...]int{0, 1, len(value) - len(text)} { // the start, after a bracket, and the end
		if at >= 0 && at+len(text) <= len(value) && string(text) == value[at:at+len(text)] {
			return value[at : at+len(text)]
		}
	}
	return string(text)
}

// Grouped reports whether the rule groups the values of a level.
func (r *Rule) Grouped() bool { return r.shared != nil && r.shared.grouped }

// group returns how the values of a level are grouped, or nil if they are not.
func (r *Rule) group(level int) *grouping {
	if r.shared != nil && level < len(r.shared.levels) {
		return r.shared.levels[level].group
	}
	return nil
}

// GroupAt returns how the values of a level are grouped, and whether the case of their letters does not matter.
func (r *Rule) GroupAt(level int) (group Group, fold bool) {
	g := r.group(level)
	if g == nil {
		return Group{}, false
	}
	return g.group, g.fold
}

// Counted returns the value that counts instead of the value of an entry.
func (r *Rule) Counted(level int, value string) string {
	g := r.group(level)
	if g == nil {
		return value
	}
	return g.counted(value)
}

// CountedEntries returns the entries with the values that count: the entries themselves if the rule groups no values.
func (r *Rule) CountedEntries(entries []Entry) []Entry {
	if r == nil || !r.Grouped() {
		return entries
	}
	return r.AppendCounted(make([]Entry, 0, len(entries)), entries)
}

// AppendCounted appends the entries with the values that count.
func (r *Rule) AppendCounted(dst, entries []Entry) []Entry {
	for i, e := range entries {
		dst = append(dst, Entry{e.Key, r.Counted(i, e.Value)})
	}
	return dst
}
