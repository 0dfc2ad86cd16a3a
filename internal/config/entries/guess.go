package entries

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Guess returns a probable correction for entries that match nothing: a similar key or value, or the same entries in
// another order. It returns "" without a guess.
func Guess(entries []descriptor.Entry, e *descriptor.Explanation) string {
	if e.Rule != nil || e.Domain == nil || len(e.Levels) == 0 {
		return ""
	}
	if other := reordered(e.Domain, entries); other != "" {
		return other
	}
	last := &e.Levels[len(e.Levels)-1]
	if last.Reason == "" {
		return ""
	}
	if len(last.Candidates) > 0 { // the key is right
		if value := yamlform.Closest(last.Entry.Value, last.Values); value != "" {
			return last.Entry.Key + "=" + value
		}
		return ""
	}
	return yamlform.Closest(last.Entry.Key, last.Keys)
}

const maxReordered = 5 // most entries: the number of orders grows fast

// reordered returns an order of the entries that matches a rule, or "".
func reordered(d *descriptor.Domain, entries []descriptor.Entry) string {
	if len(entries) < 2 || len(entries) > maxReordered {
		return ""
	}
	order := make([]descriptor.Entry, 0, len(entries))
	used := make([]bool, len(entries))
	var try func() bool
	try = func() bool {
		if len(order) == len(entries) {
			return d.Match(order) != nil
		}
		for i := range entries {
			if used[i] {
				continue
			}
			used[i], order = true, append(order, entries[i])
			if try() {
				return true
			}
			used[i], order = false, order[:len(order)-1]
		}
		return false
	}
	if !try() {
		return ""
	}
	var keys []string
	for _, e := range order {
		keys = append(keys, e.Key)
	}
	return "the order " + strings.Join(keys, ", ")
}
