package descriptor

import (
	"encoding/binary"
	"slices"
)

// checksums computes Tree.Checksum while a tree is compiled. It adds up one hash per level of the rules, so the order
// of files, domains and siblings does not matter. It does matter among siblings with patterns, because the first one
// that matches wins. Domains, rules and limits are hashed as the rows of DomainFacts, RuleFacts and LimitFacts write
// them.
type checksums struct {
	sum  uint64
	path uint64 // hash of all that matters from the domain to the current level

	text  []byte    // reused
	limit RuleLimit // reused
}

// domain starts a domain.
func (c *checksums) domain(d *Domain) {
	c.text = DomainFacts.appendTo(appendText(c.text[:0], d.Name), &d.DomainSettings)
	c.path = hashBytes(hashStart, c.text)
	c.sum += c.path
}

// level enters a level and adds it. patterns is the number of siblings with patterns before it, and shared the text
// that replaces its matching values in the name of a counter. leave goes back to the level above, with the result.
func (c *checksums) level(spec *NodeSpec, shared string, patterns int) (above uint64) {
	above = c.path
	b := appendText(c.text[:0], spec.Key)
	b = appendText(b, spec.Value)
	kind := spec.kind()
	if !hasPattern(kind) {
		patterns = 0
	}
	b = append(b, byte(kind), bit(spec.ValueToMetric), bit(spec.FoldCase), spec.Group.V4, spec.Group.V6,
		spec.Group.Capture)
	b = binary.AppendUvarint(b, uint64(patterns))
	b = appendText(b, shared)
	for _, v := range slices.Sorted(slices.Values(spec.Values)) {
		b = appendText(b, v)
	}
	c.text = b
	c.path = hashBytes(above, b)
	c.sum += c.path
	return above
}

// hasPattern reports whether the order of the siblings of this kind matters.
func hasPattern(kind MatchKind) bool { return kind == MatchWildcard || kind == MatchRegex }

// rule adds the rule of the current level: everything that affects decisions, and nothing of how it is written.
func (c *checksums) rule(r *Rule) {
	b := RuleFacts.appendTo(appendText(c.text[:0], r.Name), r)
	for i := range r.Limits {
		l := &r.Limits[i]
		b = append(appendText(b, l.Name), byte(l.Window.Unit), bit(l.Window.Named))
		b = binary.AppendUvarint(b, l.Requests)
		c.limit = RuleLimit{l, r, i}
		b = LimitFacts.appendTo(b, &c.limit)
	}
	c.text = b
	c.sum += hashBytes(c.path+1, b) // not the hash of a level with the same bytes
}

// appendText appends a text after its length, so that two lists of texts never have the same bytes.
func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func bit(yes bool) byte {
	if yes {
		return 1
	}
	return 0
}

// hashStart is the start of FNV-1a with 64 bits.
const hashStart = 14695981039346656037

// hashBytes continues a hash: FNV-1a, whose high bits are then mixed into the others.
func hashBytes(h uint64, b []byte) uint64 {
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 32
	return h * 0x9e3779b97f4a7c15
}
