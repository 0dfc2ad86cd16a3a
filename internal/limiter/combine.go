package limiter

// combine gives the request's code from its statuses: over if a descriptor that is not in quota mode is over, or if
// there are descriptors in quota mode and all of them are over.
//
// Under the global quota mode every descriptor is in quota mode, also one that no limit applies to: it passed, so the
// request passes. Unlimited rules have no say.
func (c *calculation) combine(d *Decision) {
	d.Code = OK
	quotas, quotasOver := 0, 0
	for i := range d.Statuses {
		over := d.Statuses[i].Code == OverLimit
		switch {
		case c.quota(i):
			quotas++
			if over {
				quotasOver++
			}
		case over:
			d.Code = OverLimit
		}
	}
	if quotas > 0 && quotas == quotasOver {
		d.Code = OverLimit
	}
}

// quota says whether a descriptor is in quota mode.
func (c *calculation) quota(i int) bool {
	r := c.resolved[i].rule
	if r != nil && r.Unlimited {
		return false
	}
	return c.settings.Quota || r != nil && r.Quota
}
