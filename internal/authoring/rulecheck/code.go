package rulecheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// The codes of warnings and notes. They are part of the interface: comments in rule files, flags and pipelines name
// them.
const (
	codeDirective     = "directive"
	codeNeverMatches  = "never-matches"
	codeNotInherited  = "not-inherited"
	codeNoCatchAll    = "no-catch-all"
	codeCIDROverlap   = "cidr-overlap"
	codeStarAlone     = "star-alone"
	codeStarAddress   = "star-address"
	codeStarInside    = "star-inside"
	codeStarBoundary  = "star-boundary"
	codeValueLiteral  = "value-literal"
	codeRegexDot      = "regex-dot"
	codeNoLimit       = "no-limit"
	codeNoEffect      = "no-effect"
	codeZeroLimit     = "zero-limit"
	codeNeverDenies   = "never-denies"
	codeSmallBurst    = "small-burst"
	codeWindowUnnamed = "window-unnamed"
	codePerSecond     = "per-second"
	codeNotForHeaders = "not-for-headers"
	codeNameOfWindow  = "name-of-window"
	codeSmallShare    = "small-share"
	codeReserveLevel  = "reserve-level"
	codeCostTooHigh   = "cost-too-high"
	codeCostOfOne     = "cost-of-one"
	codeBucketOrder   = "bucket-order"
	codeNoSuchLimit   = "no-such-limit"
	codeNameTwice     = "name-twice"
	codeSameText      = "same-text"
	codeTimeOver      = "time-over"
	codeSharedCounter = "shared-counter"
	codePenaltyShort  = "penalty-short"
	codeLongValue     = "long-value"
	codeSkipped       = "skipped"
	codeInvisible     = "invisible"
	codeOctal         = "octal"
	codeNewline       = "newline"
	codeNoAddress     = "no-address"
	codeHomeWaits     = "home-waits"
)

// Code is a kind of finding.
type Code struct {
	Name string
	What string // the problem that it finds, in one line
}

// Codes are all kinds of findings that an author can accept. Errors cannot be accepted.
var Codes = []Code{
	{codeNeverMatches, "a rule that no value reaches, because others match first"},
	{codeNotInherited, "a value without the deeper levels or `reservations` of the general rule"},
	{codeNoCatchAll, "some values of a key have a limit, and the others none"},
	{codeCIDROverlap, "a network inside another one"},
	{codeStarAlone, "a lone `*`, which is not the same as no value"},
	{codeStarAddress, "a `*` in an address: it matches names too"},
	{codeStarInside, "a `*` in the middle: it matches separators too"},
	{codeStarBoundary, "a `*` next to a letter of a path or host: it matches longer names too"},
	{codeValueLiteral, "a `value` that looks like an expression, network, template or list, but is plain text"},
	{codeRegexDot, "a `.` in a `value_regex` that probably means a dot"},
	{codeInvisible, "an invisible character or typographic quote in a key, value or name"},
	{codeOctal, "a number that starts with 0, which YAML reads as octal"},
	{codeNewline, "a `.` in a `value_regex`: a value with a newline has no limit"},
	{codeNoAddress, "an address in a form that clients do not send"},
	{codeLongValue, "a `value_regex` with a higher limit, which other long values reach too"},
	{codeNoLimit, "a descriptor without a limit or levels, or a domain without descriptors"},
	{codeNoEffect, "a key without effect, such as a flag without a limit"},
	{codeZeroLimit, "a limit of 0 or without `requests_per_unit`: nothing passes"},
	{codeNeverDenies, "a limit that never denies, because another denies first"},
	{codeSmallBurst, "a token bucket smaller than one window's requests"},
	{codeWindowUnnamed, "a window that `current_limit.unit` cannot name"},
	{codeNotForHeaders, "a `name` or a number that headers cannot contain"},
	{codeNameOfWindow, "limits without a name that IETF headers cannot tell apart"},
	{codePerSecond, "a limit per second without `lease`, so every request asks Redis"},
	{codeHomeWaits, "a limit with a `home`, whose requests wait for another region"},
	{codeSmallShare, "a `max_share` below one hit: nothing can be reserved"},
	{codeReserveLevel, "a limit on `reserve_id` or `commit_id`: each reservation gets its own counter"},
	{codeCostTooHigh, "a `cost` above the limit: such requests never pass"},
	{codeCostOfOne, "a `cost` by a value that has its own counter"},
	{codeBucketOrder, "an `order` of `quota_buckets` that no rule follows"},
	{codeNoSuchLimit, "a `replaces` or a header's `of` that names no limit of the domain"},
	{codeNameTwice, "one name for several rules of a domain"},
	{codeSameText, "two rules whose key and value, joined with `_`, are the same text"},
	{codeTimeOver, "`active` with an `until` in the past: the limit never applies again"},
	{codeSharedCounter, "a `penalty` or `enforce_percent` on a counter that all customers share"},
	{codePenaltyShort, "a `penalty` that ends before the limit would pass the customer again"},
	{codeSkipped, "a file that is not loaded because of its name"},
	{codeDirective, "a `# check:` comment that is misspelt, without a reason, or without a finding"},
}

// knownCode returns an error unless there is a code of that name. The error suggests a name.
func knownCode(name string) error {
	names := make([]string, len(Codes))
	for i, c := range Codes {
		names[i] = c.Name
	}
	if slices.Contains(names, name) {
		return nil
	}
	if c := yamlform.Closest(name, names); c != "" {
		return fmt.Errorf("unknown code %q: did you mean %s?", name, c)
	}
	return fmt.Errorf("unknown code %q: there are %s", name, strings.Join(names, ", "))
}
