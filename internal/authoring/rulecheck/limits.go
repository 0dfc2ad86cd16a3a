package rulecheck

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// allShadow reports whether there are limits below a node and all of them are in shadow mode.
func (n *node) allShadow() bool {
	for _, child := range n.children {
		if child.rule != nil && !child.rule.Shadow || child.rule == nil && !child.allShadow() {
			return false
		}
	}
	return len(n.children) > 0
}

// limits checks the limits of a node.
func (c *checker) limits(n *node) {
	if n.rule == nil {
		for _, f := range n.flags {
			if f.text == "shadow_mode" && n.allShadow() {
				continue // Envoy Gateway writes it on every level above a shadow rule
			}
			advice := "move it to the descriptors below that have limits"
			if n.inherits {
				advice = "write the limit here too"
			}
			c.add(Warning, f.at, codeNoEffect, advice,
				"`%s` has no effect here: it applies to a descriptor's own limit, and this one has none", f.text)
		}
		if len(n.children) == 0 && !n.inherits {
			c.add(Warning, n.at, codeNoLimit,
				"write `rate_limit`; for an exception from a sibling's limit, `rate_limit: {unlimited: true}`",
				"this descriptor has no limit and no further levels")
		}
		return
	}
	c.reservations(n)
	c.cost(n)
	for i := range n.limits {
		l := &n.limits[i]
		if n.rule.Unlimited {
			if _, given := l.given["requests_per_unit"]; given {
				c.add(Warning, l.position("requests_per_unit"), codeNoEffect, "leave out one of them",
					"`requests_per_unit` has no effect next to `unlimited: true`, because nothing is counted")
			}
			continue
		}
		if l.Limit != nil {
			c.over(n, i)
			c.requests(n, l)
			c.burst(l)
			c.window(l)
			c.enforcement(n, l)
			c.penalty(n, l)
			c.home(n, l)
		}
	}
}

// over finds limits that never apply again.
func (c *checker) over(n *node, i int) {
	active := n.rule.ActiveTimes(i)
	if active == nil {
		return
	}
	if end := active.Until; end != 0 && end <= c.now.Unix() {
		c.add(Warning, n.limits[i].position("active"), codeTimeOver, "remove it, or write another `until`",
			"this limit never applies again: its `until` is in the past")
	}
}

// enforcement finds limits whose enforcement has no effect, or not the one that it seems to have.
func (c *checker) enforcement(n *node, l *limit) {
	key := map[descriptor.Enforcement]string{
		descriptor.EnforcedInShadow: "shadow", descriptor.EnforcedForSome: "enforce_percent",
		descriptor.EnforcedSoftly: "soft",
	}[l.Enforcement]
	switch {
	case key == "":
	case n.rule.Shadow:
		c.add(Warning, l.position(key), codeNoEffect,
			"remove this key, or `shadow_mode`, which applies to all limits of the descriptor",
			"`%s` has no effect: `shadow_mode` puts the limit in shadow for everyone", key)
	case l.Enforcement == descriptor.EnforcedForSome && oneCounter(n.rule):
		c.add(Warning, l.position(key), codeSharedCounter,
			"write `shadow: true`, or give each customer a counter",
			"`enforce_percent` on a counter that all customers share: the limit is enforced for all of them or for none")
	}
}

// oneCounter reports whether everything that matches a rule has one counter.
func oneCounter(r *descriptor.Rule) bool {
	for i, l := range r.Levels {
		if !r.Shares(i) && l.Kind != descriptor.MatchExact || descriptor.HasWildcard(l.Key) {
			return false
		}
	}
	return true
}

// reservations finds rules under which nothing is ever reserved.
func (c *checker) reservations(n *node) {
	if descriptor.ReservationEntry(n.key) && n.rule.Reservable() {
		c.add(Warning, n.keyAt, codeReserveLevel,
			fmt.Sprintf("leave out the level `%s`: write the limit, and `reservations`, on the level above", n.key),
			"`%s` names a reservation of the rule above. Here every reservation has its own counter, which is never full", n.key)
	}
	for i := range n.limits {
		l := n.limits[i].Limit
		if l == nil || l.Reservations == nil || l.Requests == 0 || l.Reservations.Largest(l) > 0 {
			continue
		}
		c.add(Warning, n.largest, codeSmallShare, fmt.Sprintf("write a `max_share` of at least %v", leastShare(l)),
			"this share of %d hits is less than one hit: every reservation is denied", l.Capacity())
		return
	}
}

// leastShare returns the smallest max_share of a limit that allows a reservation of one hit.
func leastShare(l *descriptor.Limit) float64 {
	millionths := (descriptor.MaxShareWhole + int64(l.Capacity()) - 1) / int64(l.Capacity())
	return float64(millionths) / descriptor.MaxShareWhole
}

// delay finds envoy_delay where no limit delays a request.
func (c *checker) delay(d *domain) {
	waits := false
	d.each(func(n *node) {
		for i := range n.limits {
			l := n.limits[i].Limit
			waits = waits || l != nil && l.Algorithm == descriptor.LeakyBucket && l.Burst > uint64(l.NoDelay)
		}
	})
	for _, at := range d.delays {
		if !waits {
			c.add(Warning, at, codeNoEffect, "remove it, or write `algorithm: leaky_bucket` with a `burst` above `nodelay`",
				"`envoy_delay` has no effect: no limit of the domain lets requests wait")
		}
	}
}

// requests finds limits that deny every request.
func (c *checker) requests(n *node, l *limit) {
	if l.Requests > 0 {
		return
	}
	if _, given := l.given["requests_per_unit"]; !given {
		c.add(Warning, l.at, codeZeroLimit, "write how many requests pass, or `requests_per_unit: 0` if none",
			"`requests_per_unit` is missing, which means 0: nothing passes")
		return
	}
	if l.Scheduled {
		return // the usual way to deny everything at some hours
	}
	severity, whom := Warning, "nothing that reaches this rule passes"
	if n.kind == descriptor.MatchExact || n.kind == descriptor.MatchValues || n.kind == descriptor.MatchCIDR {
		severity, whom = Info, "every customer named here is denied" // a usual way to block an address
	}
	c.add(severity, l.position("requests_per_unit"), codeZeroLimit,
		"if you want no limit, write `unlimited: true` instead of `unit` and `requests_per_unit`",
		"a limit of 0: %s", whom)
}

// burst finds token buckets that hold less than one window adds.
func (c *checker) burst(l *limit) {
	if !l.Has(descriptor.SettingRefill) || l.Burst >= l.Requests {
		return
	}
	at := l.position("burst")
	if l.Interval {
		c.add(Warning, at, codeSmallBurst, fmt.Sprintf("write a `burst` of at least %d, or leave it out", l.Requests),
			"each refill brings %d and the bucket holds %d: the rest is lost, and customers never reach the rate", l.Requests,
			l.Burst)
		return
	}
	perSecond := float64(l.Requests) / l.Window.Length().Seconds()
	if l.Burst > 1 && float64(l.Burst) < perSecond {
		c.add(Warning, at, codeSmallBurst,
			fmt.Sprintf("write a `burst` of at least %d, or 1 for evenly spaced requests", int64(perSecond)),
			"the bucket is full after %s without requests: customers whose requests are not evenly spaced never reach the rate",
			time.Duration(float64(l.Burst)/perSecond*float64(time.Second)).Round(time.Microsecond))
		return
	}
	c.add(Info, at, codeSmallBurst, "nothing to change if you intend that",
		"the bucket holds %d of the %d per %s: no more than that pass at the same time, and a request with more hits "+
			"never passes",
		l.Burst, l.Requests, windowName(l.Window))
}

// window finds windows that answers cannot name, and windows that are expensive.
func (c *checker) window(l *limit) {
	if l.Algorithm == descriptor.Concurrency {
		return // it has none
	}
	if unit, _ := l.Window.OnWire(); unit == descriptor.UnitUnknown {
		at := l.position("unit")
		if l.Window.Location != nil {
			at = l.position("calendar")
		}
		c.add(Info, at, codeWindowUnnamed,
			"nothing to change unless clients read that field, or Envoy's own x-ratelimit-limit, which then leaves out the "+
				"limit. The headers `ietf` and `x-ratelimit` show the window in seconds",
			"the answer's `current_limit.unit` cannot name a window of %s and says UNKNOWN", windowName(l.Window))
	}
	if l.Window.Length() <= time.Second && !l.Lease && l.Requests > 0 {
		c.add(Info, l.position("unit"), codePerSecond,
			"with a slow store, try `lease: true`, or give limits per second their own Redis (REDIS_PERSECOND)",
			"a limit per second or less has the busiest counters, and a slow decision may count after its window")
	}
}

// windowName returns a window in words.
func windowName(w descriptor.Window) string {
	switch {
	case w.Location != nil && w.Multiplier > 1:
		return fmt.Sprintf("%d calendar %ss in %s", w.Multiplier, w.Unit, w.Location)
	case w.Location != nil:
		return "a calendar " + w.Unit.String() + " in " + w.Location.String()
	case w.Multiplier > 1:
		return fmt.Sprintf("%d %ss", w.Multiplier, w.Unit)
	default:
		return w.Unit.String()
	}
}

// replaced returns the names of limits that some rule of the domain replaces.
func (d *domain) replaced() []string {
	var names []string
	d.each(func(n *node) {
		for _, r := range n.replaces {
			names = append(names, r.text)
		}
	})
	return names
}

// leases finds leases without effect: a request that counts under several limits of a list always asks the store.
func (c *checker) leases(d *domain) {
	replaced := d.replaced()
	d.each(func(n *node) {
		for i := range n.limits {
			for j := range n.limits {
				l, other := &n.limits[i], &n.limits[j]
				if i == j || l.Limit == nil || !l.Lease || other.Limit == nil || other.Scheduled ||
					slices.Contains(replaced, other.name) {
					continue
				}
				if l.Regions != nil && l.Regions.HasHome() && other.Lease { // permits of both answer a request far from the home
					continue
				}
				c.add(Warning, l.position("lease"), codeNoEffect, "remove it: a rule can lease only a single limit",
					"`lease` of the limit %s has no effect: requests also count under the limit %s, and one trip to Redis counts both",
					yamlform.Quote(l.name), yamlform.Quote(other.name))
				break
			}
		}
	})
}

// superfluous finds limits that no request can reach because of another limit of the same rule. Limits that some rule
// replaces are left out, because they are sometimes the only limit.
func (c *checker) superfluous(d *domain) {
	replaced := d.replaced()
	d.each(func(n *node) {
		for i := range n.limits {
			for j := range n.limits {
				a, b := &n.limits[i], &n.limits[j]
				if i == j || slices.Contains(replaced, a.name) || slices.Contains(replaced, b.name) || !windows(a) || !windows(b) ||
					a.Scheduled {
					continue
				}
				if a.Enforcement == descriptor.EnforcedForAll && within(a, b) {
					c.add(Warning, b.at, codeNeverDenies, "remove it, or make it smaller than the other one",
						"the limit %s is never reached, because %s denies first", yamlform.Quote(b.name), yamlform.Quote(a.name))
				}
			}
		}
	})
}

// windows reports whether a limit bounds the requests in a window of its length.
func windows(l *limit) bool {
	return l.Limit != nil && l.Requests > 0 && (l.Algorithm == descriptor.FixedWindow ||
		l.Algorithm == descriptor.SlidingLog)
}

// within reports whether a never lets more hits pass in a window of b than b does.
func within(a, b *limit) bool {
	la, lb := a.Window.Length(), b.Window.Length()
	if a.Window.Location != nil {
		la -= la / 10 // the shortest month has 28 days of the nominal 30
	}
	if b.Window.Location != nil {
		lb += lb / 20 // the longest day has 25 hours
	}
	// touched is how many windows of a overlap one window of b. If both are aligned to the clock, these are whole windows;
	// else there are also parts of windows at both ends. A log bounds every span of its length.
	var touched time.Duration
	switch {
	case onClock(a) && onClock(b) && la >= lb && la%lb == 0:
		touched = 1
	case onClock(a) && onClock(b) && lb%la == 0:
		touched = lb / la
	case a.Algorithm == descriptor.SlidingLog:
		touched = (lb + la - 1) / la
	default:
		touched = (lb+la-1)/la + 1
	}
	high, low := bits.Mul64(uint64(touched), a.Requests)
	return high == 0 && low <= b.Requests
}

// onClock reports whether a limit's windows are aligned to the clock.
func onClock(l *limit) bool {
	return l.Algorithm == descriptor.FixedWindow && !l.FirstHit && l.Window.Location == nil
}
