package limiter

// In quota mode, set by a rule or for the whole server, a request is denied only if all of its descriptors in quota
// mode are over their limits.
//
// With the server's setting every descriptor is in quota mode, even one without a limit: such a descriptor passes, so
// the request passes. Unlimited rules are never in quota mode.

// quota reports whether a descriptor is in quota mode.
func (w *work) quota(s *subject) bool {
	return !s.unlimited() && (w.snap.settings.Quota || s.rule != nil && s.rule.Quota)
}

// passedInQuotaMode reports whether some descriptor in quota mode passes for any count. Then the descriptors in quota
// mode cannot all be over.
func (w *work) passedInQuotaMode() bool {
	for i := range w.subjects {
		s := &w.subjects[i]
		if w.quota(s) && (s.shadow() || s.by != byRequest && (s.rule == nil || len(s.rule.Limits) == 0)) {
			return true
		}
	}
	return false
}

// code returns the request's code: it is over its limit if a descriptor outside quota mode is over, or if there are
// descriptors in quota mode and all of them are over.
func (w *work) code(statuses []Status) Code {
	quotas, quotasOver := 0, 0
	for i := range statuses {
		over := statuses[i].Code == OverLimit
		switch {
		case w.quota(&w.subjects[i]):
			quotas++
			if over {
				quotasOver++
			}
		case over:
			return OverLimit
		}
	}
	if quotas > 0 && quotas == quotasOver {
		return OverLimit
	}
	return OK
}
