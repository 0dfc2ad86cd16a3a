package limiter

// A rule with `group` or `fold_case` counts several values of an entry as one. The grouped values choose the counter,
// the overrides, and the customers for whom a limit is enforced; events and usage show them. Costs and scales use the
// values as sent.

// group computes the grouped values of a subject's entries.
func (w *work) group(s *subject) {
	first := len(w.entries)
	w.entries = s.rule.AppendCounted(w.entries, s.sent)
	s.counted = w.entries[first:len(w.entries):len(w.entries)]
}
