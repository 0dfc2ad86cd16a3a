package descriptor

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
)

// Fact is one key of the rule language: how it is shown and hashed. Package config has a row of the same name that
// reads the key.
type Fact[T any] struct {
	Key string

	// text returns the value as a rule file writes it, or "" if there is nothing to show.
	text func(of *T) string

	// words describes the value for people, in a sentence about a limit: ", leased". Nil if the key has no words, or if
	// they stand elsewhere.
	words func(of *T) string

	// hidden means that /rlconfig leaves the key out. It is still part of Tree.Checksum.
	hidden bool
}

// Facts are the keys that describe a T, in the order in which /rlconfig shows them.
type Facts[T any] []Fact[T]

// Of yields the keys that a T has and that are not hidden, and their values as a rule file writes them.
func (f Facts[T]) Of(of *T) iter.Seq2[string, string] {
	return func(yield func(key, text string) bool) {
		for i := range f {
			if f[i].hidden {
				continue
			}
			if text := f[i].text(of); text != "" && !yield(f[i].Key, text) {
				return
			}
		}
	}
}

// appendTo appends the keys that a T has, with their values. A key without a value adds nothing, so rules that do not
// use a new key keep their checksum.
func (f Facts[T]) appendTo(b []byte, of *T) []byte {
	for i := range f {
		if text := f[i].text(of); text != "" {
			b = appendText(appendText(b, f[i].Key), text)
		}
	}
	return b
}

// DomainFacts are the keys of a domain.
var DomainFacts = Facts[DomainSettings]{
	{Key: "admission", text: func(d *DomainSettings) string { return AdmissionNames[d.Admission] }},
	{Key: "on_error", text: func(d *DomainSettings) string { return OnErrorNames[d.OnError] }},
	{Key: "headers", text: func(d *DomainSettings) string { return d.Headers.String() }},
	{Key: "request_override", text: func(d *DomainSettings) string { return RequestOverrideNames[d.RequestOverride] }},
	{Key: "refunds", text: func(d *DomainSettings) string { return RefundsNames[d.Refunds] }},
	{Key: "envoy_delay", text: func(d *DomainSettings) string { return when(d.EnvoyDelay, "true") }},
	{Key: "quota_buckets", text: func(d *DomainSettings) string { return d.QuotaBuckets.String() }},
	{Key: "regions", text: func(d *DomainSettings) string { return d.Regions.String() }},
}

// RuleFacts are the keys of a rule.
var RuleFacts = Facts[Rule]{
	{Key: "shadow_mode", text: func(r *Rule) string { return strconv.FormatBool(r.Shadow) }},
	{Key: "quota_mode", text: func(r *Rule) string { return strconv.FormatBool(r.Quota) }},
	{Key: "on_error", text: func(r *Rule) string { return OnErrorNames[r.OnError] }},
	{Key: "fold_case", text: func(r *Rule) string { return r.groupings("fold_case") }},
	{Key: "group", text: func(r *Rule) string { return r.groupings("group") }},
	{Key: "cost", text: (*Rule).costs},
	{Key: "unlimited", text: func(r *Rule) string { return when(r.Unlimited, "true") }},
	{Key: "detailed_metric", hidden: true, text: func(r *Rule) string { return when(r.DetailedMetric, "true") }},
	{Key: "overridable", hidden: true, text: func(r *Rule) string {
		return when(r.Overridable(), decimal(r.OverrideMax))
	}},
	{Key: "usage", hidden: true, text: func(r *Rule) string { return when(r.Usage, "true") }},
	{Key: "replaces", hidden: true, text: func(r *Rule) string {
		if r.Replaces == nil {
			return ""
		}
		return fmt.Sprintf("%q", slices.Sorted(slices.Values(r.Replaces)))
	}},
	{Key: "metadata", hidden: true, text: func(r *Rule) string {
		if r.Metadata == nil {
			return ""
		}
		return fmt.Sprintf("%#v", r.Metadata) // fmt sorts the keys of a map
	}},
}

// RuleLimit is a limit of a rule.
type RuleLimit struct {
	*Limit
	Rule  *Rule // nil where only words are asked for
	Index int   // index of the limit in the rule
}

// LimitFacts are the keys of a limit. Limit.Words describes enforcement after all others, and Rule.LimitWords the
// additions of a rule.
var LimitFacts = Facts[RuleLimit]{
	{Key: "unit_multiplier", text: func(l *RuleLimit) string {
		return when(l.Window.Multiplier > 1 && l.Algorithm != Concurrency, decimal(l.Window.Multiplier))
	}},
	{Key: "calendar",
		text:  func(l *RuleLimit) string { return when(l.Window.Location != nil, l.Window.Location.String()) },
		words: func(l *RuleLimit) string { return l.Window.CalendarWords() }},
	{Key: "week_start",
		text: func(l *RuleLimit) string { return when(l.Window.WeekStart > 0, WeekStartNames[l.Window.WeekStart]) },
		words: func(l *RuleLimit) string {
			return when(l.Window.WeekStart > 0, ", weeks from "+WeekStartNames[l.Window.WeekStart])
		}},
	{Key: "algorithm",
		text: func(l *RuleLimit) string {
			return when(l.Algorithm != FixedWindow && l.Algorithm != SharedWindow, l.Algorithm.String())
		},
		words: func(l *RuleLimit) string { return l.algorithmWords() }},
	{Key: "max_in_flight", text: func(l *RuleLimit) string {
		return when(l.Algorithm == Concurrency,
			decimal(l.Requests))
	}},
	{Key: "ttl", text: func(l *RuleLimit) string { return when(l.Algorithm == Concurrency, l.TTL()) }},
	{Key: "precision", text: func(l *RuleLimit) string { return when(l.Precision > 1, decimal(l.Precision)) }},
	{Key: "burst", text: func(l *RuleLimit) string { return when(l.Has(SettingBurst), decimal(l.Burst)) }},
	{Key: "refill", text: func(l *RuleLimit) string { return when(l.Interval, "interval") }},
	{Key: "align", text: func(l *RuleLimit) string { return when(l.FirstHit, "first_hit") }},
	{Key: "nodelay", text: func(l *RuleLimit) string { return when(l.NoDelay > 0, l.NoDelayText()) }},
	{Key: "count_denied",
		text: func(l *RuleLimit) string { return [...]string{DeniedCount: "true", DeniedDrop: "false"}[l.CountDenied] },
		words: func(l *RuleLimit) string {
			return [...]string{DeniedCount: ", denied hits count", DeniedDrop: ", denied hits do not count"}[l.CountDenied]
		}},
	{Key: "lease",
		text:  func(l *RuleLimit) string { return when(l.Lease, "true") },
		words: func(l *RuleLimit) string { return when(l.Lease, ", leased") }},
	{Key: "shadow", text: func(l *RuleLimit) string { return when(l.Enforcement == EnforcedInShadow, "true") }},
	{Key: "enforce_percent", text: func(l *RuleLimit) string {
		return when(l.Enforcement == EnforcedForSome,
			decimal(l.EnforcePercent))
	}},
	{Key: "soft", text: func(l *RuleLimit) string { return when(l.Enforcement == EnforcedSoftly, "true") }},
	{Key: "warn_at", text: func(l *RuleLimit) string { return when(l.WarnAt > 0, decimal(l.WarnAt)) }},
	{Key: "penalty",
		text:  func(l *RuleLimit) string { return l.PenaltyText() },
		words: func(l *RuleLimit) string { return l.PenaltyWords() }},
	{Key: "reservations",
		text: func(l *RuleLimit) string { return when(l.Algorithm != Concurrency, l.Reservations.String()) },
		words: func(l *RuleLimit) string {
			return when(l.Reservations != nil, ", reservations "+l.Reservations.Words())
		}},
	{Key: "regions",
		text: func(l *RuleLimit) string { return l.Regions.String() },
		words: func(l *RuleLimit) string {
			return l.Regions.Words()
		}},
	{Key: "scale", text: func(l *RuleLimit) string { return l.Rule.ScaleOf(l.Index).String() }},
	{Key: "classes", text: func(l *RuleLimit) string { return l.Rule.ClassesOf(l.Index).String() }},
	{Key: "active", text: func(l *RuleLimit) string {
		if a := l.Rule.ActiveTimes(l.Index); a != nil {
			return strconv.Quote(a.Words())
		}
		return ""
	}},
	{Key: "name", text: func(l *RuleLimit) string { return when(len(l.Rule.Limits) > 1, l.Name) }},
}

func when(so bool, text string) string {
	if so {
		return text
	}
	return ""
}

func decimal[N uint8 | uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 10) }
