package limiter

// A rule with `group` or `fold_case` counts several values of an entry as one. The entries with the values that count
// choose the counter, the overrides, and the callers for whom a limit is enforced; events and usage show them. Costs
// and scales look at what was sent.

// group finds the values that count.
func (w *work) group(s *subject) {
	first := len(w.entries)
	w.entries = s.rule.AppendCounted(w.entries, s.sent)
	s.counted = w.entries[first:len(w.entries):len(w.entries)]
}
