package region

import (
	"cmp"
	"slices"
)

// Homes is which region counts under each rule in one epoch. It is kept in every region's Redis, because rules reach the processes one
// after another: if they name another home, that one would begin to count from zero, while the old one still counts. So the home that
// a region has heard of first stays the home until the epoch changes. The zero Homes has none.
type Homes struct {
	Epoch uint64
	Rules []RuleHome // sorted by Rule
}

// RuleHome is the home of the counters of one rule.
type RuleHome struct {
	Rule uint64 // descriptor.Regions.Rule
	Home string // as the rule named it; empty: a hash of the counter's key chooses it
}

// MostHomes is how many rules Homes keeps.
const MostHomes = 1 << 16

// Keep adds the rules that are not known yet, as far as there is room. It returns false, and changes nothing, if a later epoch is known.
func (h *Homes) Keep(epoch uint64, rules []RuleHome) bool {
	switch {
	case epoch < h.Epoch:
		return false
	case epoch > h.Epoch:
		*h = Homes{Epoch: epoch}
	}
	known := len(h.Rules)
	for _, r := range rules {
		if len(h.Rules) >= MostHomes {
			break
		}
		if _, ok := find(h.Rules[:known], r.Rule); !ok {
			h.Rules = append(h.Rules, r)
		}
	}
	slices.SortStableFunc(h.Rules, func(a, b RuleHome) int { return cmp.Compare(a.Rule, b.Rule) })
	h.Rules = slices.CompactFunc(h.Rules, func(a, b RuleHome) bool { return a.Rule == b.Rule })
	return true
}

func find(rules []RuleHome, rule uint64) (int, bool) {
	return slices.BinarySearchFunc(rules, rule, func(r RuleHome, rule uint64) int { return cmp.Compare(r.Rule, rule) })
}

// AppendRecord appends the record of the homes of an epoch.
func (h *Homes) AppendRecord(b []byte) []byte {
	w := writer{begin(b, 'M')}
	w.count(h.Epoch)
	var names []string
	at := make(map[string]int)
	for i := range h.Rules {
		name := h.Rules[i].Home
		if _, ok := at[name]; !ok {
			at[name] = len(names)
			names = append(names, name)
		}
	}
	w.count(uint64(len(names)))
	for _, name := range names {
		w.text(name)
	}
	w.count(uint64(len(h.Rules)))
	for i := range h.Rules {
		w.word(h.Rules[i].Rule)
		w.count(uint64(at[h.Rules[i].Home]))
	}
	return w.b
}

// ReadRecord reads what AppendRecord has written.
func (h *Homes) ReadRecord(b []byte) error {
	r := read(b, 'M')
	*h = Homes{Epoch: r.count()}
	var names []string
	for range r.length() {
		names = append(names, r.text())
	}
	used := 0 // of the names, which are written in the order of their first use
	for range r.length() {
		rule, at := r.word(), r.count()
		if n := len(h.Rules); at > uint64(used) || at >= uint64(len(names)) || n >= MostHomes || n > 0 && h.Rules[n-1].Rule >= rule {
			r.fail()
		}
		if r.failed {
			break
		}
		used = max(used, int(at)+1)
		h.Rules = append(h.Rules, RuleHome{Rule: rule, Home: names[at]})
	}
	for i := range names {
		if used != len(names) || slices.Contains(names[:i], names[i]) {
			r.fail()
			break
		}
	}
	return r.end()
}
