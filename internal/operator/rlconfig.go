package operator

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// writeRules writes a line per limit in the reference's form, which scripts read. Settings that the reference does not have
// are appended to the line. Settings of a domain are a comment before its rules.
func writeRules(w io.Writer, tree *descriptor.Tree) {
	if tree == nil {
		return
	}
	domain := ""
	for _, r := range tree.Rules {
		if r.Domain != domain {
			domain = r.Domain
			writeDomain(w, tree.Domain(domain))
		}
		if r.Unlimited {
			fmt.Fprintf(w, "%s: unit=UNKNOWN requests_per_unit=0%s, unlimited: true\n", r.Path, flagsOf(r))
		}
		for i := range r.Limits {
			l := &r.Limits[i]
			unit, requests := l.Window.Unit, l.Requests
			if l.Algorithm == descriptor.Concurrency {
				unit, requests = descriptor.UnitUnknown, 0
			}
			fmt.Fprintf(w, "%s: unit=%s requests_per_unit=%d%s%s", r.Path, strings.ToUpper(unit.String()), requests, flagsOf(r), extensionsOf(l))
			if scale := r.ScaleOf(i); scale != nil {
				fmt.Fprintf(w, ", scale: {by: %s, max: %d}", strconv.Quote(scale.Key), scale.Max)
			}
			if active := r.ActiveTimes(i); active != nil {
				fmt.Fprintf(w, ", active: %s", strconv.Quote(active.Words()))
			}
			if len(r.Limits) > 1 {
				fmt.Fprintf(w, ", name: %s", l.Name)
			}
			fmt.Fprintln(w)
		}
	}
}

// writeDomain writes the settings of a domain, if it has any.
func writeDomain(w io.Writer, d *descriptor.Domain) {
	var s string
	if d.Admission != descriptor.AdmissionDefault {
		s += ", admission: " + descriptor.AdmissionNames[d.Admission]
	}
	if d.OnError != descriptor.OnErrorDefault {
		s += ", on_error: " + descriptor.OnErrorNames[d.OnError]
	}
	if d.Headers != nil {
		s += ", headers: " + d.Headers.String()
	}
	if d.RequestOverride != descriptor.RequestOverrideDefault {
		s += ", request_override: " + descriptor.RequestOverrideNames[d.RequestOverride]
	}
	if d.Refunds != descriptor.RefundsDefault {
		s += ", refunds: " + descriptor.RefundsNames[d.Refunds]
	}
	if d.EnvoyDelay {
		s += ", envoy_delay: true"
	}
	if d.QuotaBuckets != nil {
		s += ", quota_buckets: " + d.QuotaBuckets.String()
	}
	if s != "" {
		fmt.Fprintf(w, "# domain %s%s\n", d.Name, s)
	}
}

func flagsOf(r *descriptor.Rule) string {
	s := fmt.Sprintf(", shadow_mode: %t, quota_mode: %t", r.Shadow, r.Quota)
	if r.OnError != descriptor.OnErrorDefault {
		s += ", on_error: " + descriptor.OnErrorNames[r.OnError]
	}
	for i, l := range r.Levels {
		group, fold := r.GroupAt(i)
		if fold {
			s += fmt.Sprintf(", fold_case: %s", strconv.Quote(l.Key))
		}
		if group != (descriptor.Group{}) {
			s += fmt.Sprintf(", group: %s %s", strconv.Quote(l.Key), group)
		}
	}
	if c := r.HitCost(); c != nil {
		s += ", cost: " + c.String()
	}
	for i, w := range r.Cost() {
		if i == 0 {
			s += ", cost:"
		}
		s += fmt.Sprintf(" %s=%v", strconv.Quote(w.Name), float64(w.Millionths)/descriptor.WeightOne)
	}
	return s
}

func extensionsOf(l *descriptor.Limit) string {
	if l.Algorithm == descriptor.Concurrency {
		return fmt.Sprintf(", algorithm: %s, max_in_flight: %d, ttl: %s", l.Algorithm, l.Requests, l.TTL()) + enforcementOf(l)
	}
	var s string
	if l.Window.Multiplier > 1 {
		s += fmt.Sprintf(", unit_multiplier: %d", l.Window.Multiplier)
	}
	if l.Window.Location != nil {
		s += ", calendar: " + l.Window.Location.String()
		if l.Window.WeekStart > 0 {
			s += ", week_start: " + descriptor.WeekStartNames[l.Window.WeekStart]
		}
	}
	if l.Algorithm != descriptor.FixedWindow {
		s += ", algorithm: " + l.Algorithm.String()
	}
	if l.Precision > 1 {
		s += fmt.Sprintf(", precision: %d", l.Precision)
	}
	if l.Has(descriptor.SettingBurst) {
		s += fmt.Sprintf(", burst: %d", l.Burst)
	}
	if l.Interval {
		s += ", refill: interval"
	}
	if l.FirstHit {
		s += ", align: first_hit"
	}
	if l.NoDelay > 0 {
		s += ", nodelay: " + nodelay(l)
	}
	if l.CountDenied != descriptor.DeniedDefault {
		s += fmt.Sprintf(", count_denied: %t", l.CountDenied == descriptor.DeniedCount)
	}
	if l.Lease {
		s += ", lease: true"
	}
	s += enforcementOf(l)
	if l.Penalty != nil {
		s += ", penalty: " + l.PenaltyText()
	}
	if h := l.Reservations; h != nil {
		s += fmt.Sprintf(", reservations: {ttl: %v, max_ttl: %v, max_share: %v, max_outstanding: %d, on_expire: %s}",
			h.TTL, h.MaxTTL, float64(h.MaxShare)/descriptor.MaxShareWhole, h.MaxOutstanding, onExpire(h))
	}
	return s
}

func enforcementOf(l *descriptor.Limit) string {
	var s string
	switch l.Enforcement {
	case descriptor.EnforcedInShadow:
		s = ", shadow: true"
	case descriptor.EnforcedForSome:
		s = fmt.Sprintf(", enforce_percent: %d", l.EnforcePercent)
	case descriptor.EnforcedSoftly:
		s = ", soft: true"
	}
	if l.WarnAt > 0 {
		s += fmt.Sprintf(", warn_at: %d", l.WarnAt)
	}
	return s
}

// onExpire is the value as rule files write it.
func onExpire(h *descriptor.Reservations) string {
	if h.Release {
		return "release"
	}
	return "charge"
}

// nodelay is the value as rule files write it.
func nodelay(l *descriptor.Limit) string {
	if l.NoDelay == descriptor.NoDelayAll {
		return "all"
	}
	return strconv.FormatUint(uint64(l.NoDelay), 10)
}
