package descriptor

import (
	"slices"
	"strings"
)

// HasKeys reports whether the domain has a rule for the keys of these entries, in this order, regardless of their
// values. It distinguishes a request that no rule happens to match now from one that none can ever match, such as one
// with a misspelt key. The last entry may name a reservation.
//
// It reads all rules of the domain, so callers should remember the result.
func (d *Domain) HasKeys(entries []Entry) bool {
	if d == nil {
		return false
	}
	if last := len(entries) - 1; last > 0 && ReservationEntry(entries[last].Key) && d.HasKeys(entries[:last]) {
		return true
	}
	if len(entries) == 0 {
		return false
	}
	if path := d.path(entries); path[len(path)-1] != noNode && len(d.below(path[len(path)-1])) == 0 {
		return true // a level without a limit, which exempts
	}
	return slices.ContainsFunc(d.rules, func(r *Rule) bool {
		return r != nil && slices.EqualFunc(r.Levels, entries,
			func(l Level, e Entry) bool { return l.Key == e.Key || starMayMatch(l.Key, e.Key) })
	})
}

// starMayMatch reports whether a key with a star matches some entry with a key: it is matched against the key, an
// underscore and the value.
func starMayMatch(starred, key string) bool {
	before, _, found := strings.Cut(starred, "*")
	return found && (strings.HasPrefix(key, before) || strings.HasPrefix(before, key+"_"))
}
