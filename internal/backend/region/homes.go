package region

import (
	"cmp"
	"slices"
)

// Homes is which region counts under each rule in one epoch. It is kept in every region's Redis, because rules reach the replicas one
// after another: if they name another home, that one would begin to count from zero, while the old one still counts. So the home that
// a region has heard of first stays the home until the epoch changes. The zero Homes has none.
//
// If a new epoch makes a region the home of counters, its replicas must know the regions before: Epoch.Before. If they do not, a rule
// whose counters would come here keeps the home of the epoch before. That one counts no more, so nobody does.
type Homes struct {
	Epoch   uint64
	Regions []string   // of the epoch
	Rules   []RuleHome // sorted by Rule

	Former []RuleHome // of the epoch before: those that are not in Rules. None if Epoch.Before is known.
	Left   bool       // a region of the epoch before is not in Regions, and Epoch.Before is not known
}

// RuleHome is the home of the counters of one rule.
type RuleHome struct {
	Rule uint64 // descriptor.Regions.Rule
	Home string // as the rule named it; empty: a hash of the counter's key chooses it
}

// MostHomes is how many rules Homes keeps.
const MostHomes = 1 << 16

// NoHome is the home of a rule if a hash chose it before, a region has left the list, and Epoch.Before is not known. It is no region.
const NoHome = "-"

// Keep adds the rules that are not known yet, as far as there is room. e.Home is the region that keeps them. Keep returns false, and changes nothing,
// if a later epoch is known.
func (h *Homes) Keep(e *Epoch, rules []RuleHome) bool {
	switch {
	case e.Number < h.Epoch:
		return false
	case e.Number > h.Epoch:
		next := Homes{Epoch: e.Number, Regions: e.Regions}
		if e.Before == nil {
			next.Former = h.Rules
			next.Left = slices.ContainsFunc(h.Regions, func(name string) bool { return !slices.Contains(e.Regions, name) })
		}
		*h = next
	}
	known := len(h.Rules)
	for _, r := range rules {
		if len(h.Rules) >= MostHomes {
			break
		}
		if _, ok := find(h.Rules[:known], r.Rule); !ok {
			r.Home = h.first(e.Home, r)
			h.Rules = append(h.Rules, r)
		}
	}
	if len(h.Rules) == known {
		return true
	}
	slices.SortStableFunc(h.Rules, func(a, b RuleHome) int { return cmp.Compare(a.Rule, b.Rule) })
	h.Rules = slices.CompactFunc(h.Rules, func(a, b RuleHome) bool { return a.Rule == b.Rule })
	h.Former = slices.DeleteFunc(h.Former, func(r RuleHome) bool {
		_, ok := find(h.Rules, r.Rule)
		return ok
	})
	return true
}

// first returns the home of a rule that is named first in this epoch.
func (h *Homes) first(own string, r RuleHome) string {
	i, ok := find(h.Former, r.Rule)
	switch {
	case !ok || r.Home != "" && r.Home != own:
		return r.Home // none of its counters come here
	case h.Former[i].Home == own:
		return r.Home // all were here
	case h.Former[i].Home == "" && h.Left:
		return NoHome // some were in the region that has left
	default:
		return h.Former[i].Home
	}
}

func find(rules []RuleHome, rule uint64) (int, bool) {
	return slices.BinarySearchFunc(rules, rule, func(r RuleHome, rule uint64) int { return cmp.Compare(r.Rule, rule) })
}

// AppendRecord appends the record of the homes of an epoch.
func (h *Homes) AppendRecord(b []byte) []byte {
	w := writer{begin(b, 'M')}
	w.count(h.Epoch)
	w.flags(h.Left)
	w.texts(h.Regions)
	var names []string
	at := make(map[string]int)
	for _, rules := range [...][]RuleHome{h.Rules, h.Former} {
		for i := range rules {
			name := rules[i].Home
			if _, ok := at[name]; !ok {
				at[name] = len(names)
				names = append(names, name)
			}
		}
	}
	w.texts(names)
	for _, rules := range [...][]RuleHome{h.Rules, h.Former} {
		w.count(uint64(len(rules)))
		for i := range rules {
			w.word(rules[i].Rule)
			w.count(uint64(at[rules[i].Home]))
		}
	}
	return w.b
}

// ReadRecord reads what AppendRecord has written.
func (h *Homes) ReadRecord(b []byte) error {
	r := read(b, 'M')
	*h = Homes{Epoch: r.count()}
	r.flags(&h.Left)
	h.Regions = r.texts()
	names := r.texts()
	used := 0 // of the names, which are written in the order of their first use
	for _, rules := range [...]*[]RuleHome{&h.Rules, &h.Former} {
		for range r.length() {
			rule, at := r.word(), r.count()
			if n := len(*rules); at > uint64(used) || at >= uint64(len(names)) || n >= MostHomes || n > 0 && (*rules)[n-1].Rule >= rule {
				r.fail()
			}
			if r.failed {
				break
			}
			used = max(used, int(at)+1)
			*rules = append(*rules, RuleHome{Rule: rule, Home: names[at]})
		}
	}
	for i := range names {
		if used != len(names) || slices.Contains(names[:i], names[i]) {
			r.fail()
			break
		}
	}
	return r.end()
}
