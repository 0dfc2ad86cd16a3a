package explain

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// closestDomain returns the domain with the most similar name, or "".
func closestDomain(t *descriptor.Tree, name string) string {
	var names []string
	for _, r := range t.Rules {
		if len(names) == 0 || names[len(names)-1] != r.Domain {
			names = append(names, r.Domain)
		}
	}
	return yamlform.Closest(name, names)
}

// guess returns what was probably meant by entries that match nothing: a similar key or value, or the same entries in
// another order. It returns "" if there is no guess.
func (x *explainer) guess(entries []descriptor.Entry, e *descriptor.Explanation) string {
	if x.domain == nil || len(e.Levels) == 0 {
		return ""
	}
	if other := x.reordered(entries); other != "" {
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
func (x *explainer) reordered(entries []descriptor.Entry) string {
	if len(entries) < 2 || len(entries) > maxReordered {
		return ""
	}
	order := make([]descriptor.Entry, 0, len(entries))
	used := make([]bool, len(entries))
	var try func() bool
	try = func() bool {
		if len(order) == len(entries) {
			return x.domain.Match(order) != nil
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
