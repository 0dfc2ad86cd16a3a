package limiter

// combine sets the request's code from its statuses. The request is over its limit if a descriptor outside quota mode is
// over, or if there are descriptors in quota mode and all of them are over.
//
// With the global quota mode every descriptor is in quota mode, even one without a limit: such a descriptor passes, so the
// request passes. Unlimited rules are never in quota mode.
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

// quota reports whether descriptor i is in quota mode.
func (c *calculation) quota(i int) bool {
	r := c.resolved[i].rule
	if c.resolved[i].unlimited() {
		return false
	}
	return c.settings.Quota || r != nil && r.Quota
}
