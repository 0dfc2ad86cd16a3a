package descriptor

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// checksums computes Tree.Checksum while a tree is compiled. It adds up one hash per level of the rules, so the order of
// files, domains and siblings does not matter. It does matter among siblings with patterns, because the first one that
// matches wins.
//
// While a version is replaced, replicas of both versions compare their checksums. So the bytes of the keys below never change, and a new
// key is not added to them: Fact.hashed appends it where it is used.
type checksums struct {
	sum  uint64
	path uint64 // hash of all that matters from the domain to the current level

	text  []byte    // reused
	limit RuleLimit // reused
}

// domain begins a domain.
func (c *checksums) domain(d *Domain) {
	b := appendText(c.text[:0], d.Name)
	b = append(b, byte(d.Admission), byte(d.OnError))
	if d.RequestOverride > RequestHonour {
		b = append(b, 'o', byte(d.RequestOverride))
	}
	if d.Refunds > RefundsAllow {
		b = append(b, 'r', byte(d.Refunds))
	}
	if d.EnvoyDelay {
		b = append(b, 'e')
	}
	if d.Headers != nil {
		b = append(b, byte(d.Headers.Families))
		for _, h := range d.Headers.Own {
			b = appendText(b, h.String())
		}
	}
	if q := d.QuotaBuckets; q != nil && (len(q.Order) > 0 || q.Deny) {
		b = appendText(append(b, 'q'), q.String())
	}
	b = DomainFacts.appendHashed(b, &d.DomainSettings)
	c.text = b
	c.path = hashBytes(hashStart, b)
	c.sum += c.path
}

// level enters a level and adds it. patterns is how many siblings with patterns come before it, and shared what its
// matching values share as the name of a counter. leave goes back to what it returns.
func (c *checksums) level(spec *NodeSpec, shared string, patterns int) (above uint64) {
	above = c.path
	b := appendText(c.text[:0], spec.Key)
	b = appendText(b, spec.Value)
	kind := spec.kind()
	b = append(b, byte(kind), bit(spec.ValueToMetric))
	for _, v := range slices.Sorted(slices.Values(spec.Values)) {
		b = appendText(b, v)
	}
	b = appendText(b, shared)
	if spec.FoldCase || spec.Group != (Group{}) {
		b = append(b, 'g', bit(spec.FoldCase), spec.Group.V4, spec.Group.V6, spec.Group.Capture)
	}
	if hasPattern(kind) {
		b = binary.AppendUvarint(b, uint64(patterns))
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
	b := appendText(c.text[:0], r.Name)
	for _, name := range slices.Sorted(slices.Values(r.Replaces)) {
		b = appendText(b, name)
	}
	b = append(b, bit(r.Unlimited), bit(r.Shadow), bit(r.Quota), byte(r.OnError), bit(r.DetailedMetric))
	if r.Overridable() {
		b = binary.AppendUvarint(append(b, 'o'), overrideBound(r.OverrideMax))
	}
	if r.Usage {
		b = append(b, 'u')
	}
	for _, w := range r.Cost() {
		b = binary.AppendUvarint(appendText(append(b, 'c'), w.Name), w.Millionths)
	}
	if c := r.HitCost(); c != nil {
		b = appendText(append(b, 'f'), c.String())
	}
	if r.Metadata != nil {
		b = fmt.Appendf(b, "%#v", r.Metadata) // fmt sorts the keys of a map
	}
	for i := range r.Limits {
		if s := r.ScaleOf(i); s != nil {
			b = binary.AppendUvarint(appendText(append(b, 's', byte(i)), s.Key), s.Max)
		}
	}
	for i := range r.Limits {
		a := r.ActiveTimes(i)
		if a == nil {
			continue
		}
		b = binary.AppendVarint(append(b, 'a', byte(i), a.Days), a.From)
		b = binary.AppendVarint(b, a.Until)
		b = binary.AppendUvarint(b, uint64(a.Begin))
		b = appendText(binary.AppendUvarint(b, uint64(a.End)), a.Zone.String())
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		b = appendText(b, l.Name)
		zone := ""
		if l.Window.Location != nil {
			zone = l.Window.Location.String()
		}
		b = appendText(b, zone)
		if l.Window.WeekStart > 0 {
			b = append(b, 'w', l.Window.WeekStart)
		}
		b = append(b, byte(l.Window.Unit), bit(l.Window.Named), byte(l.Algorithm), bit(l.Interval), bit(l.FirstHit), byte(l.CountDenied), bit(l.Lease))
		for _, n := range [...]uint64{l.Requests, uint64(max(l.Window.Multiplier, 1)), l.Burst, uint64(l.Precision), uint64(l.NoDelay)} {
			b = binary.AppendUvarint(b, n)
		}
		if l.Varies() {
			b = append(b, 'v', byte(l.Enforcement), l.EnforcePercent, l.WarnAt)
		}
		if l.Penalty != nil {
			b = binary.AppendUvarint(append(b, 'p'), l.Penalty.Requests)
		}
		if v := l.Reservations; v != nil {
			b = append(b, 'h', bit(v.Release))
			for _, n := range [...]uint64{uint64(v.TTL), uint64(v.MaxTTL), uint64(v.MaxShare), uint64(v.MaxOutstanding)} {
				b = binary.AppendUvarint(b, n)
			}
		}
		c.limit = RuleLimit{l, r, i}
		b = LimitFacts.appendHashed(b, &c.limit)
	}
	b = RuleFacts.appendHashed(b, r)
	c.text = b
	c.sum += hashBytes(c.path+1, b) // not the hash of a level with the same bytes
}

// overrideBound returns the number that a checksum has for the bound of overrides. No bound is 1<<32 - 1, as in the versions where
// that was the largest bound: while such a version is replaced, all replicas report the same rules.
func overrideBound(most uint64) uint64 {
	switch {
	case most == OverrideUnbounded:
		return math.MaxUint32
	case most >= math.MaxUint32:
		return most + 1
	default:
		return most
	}
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
