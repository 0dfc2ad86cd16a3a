package rulecheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// The codes of findings. They are part of the interface: comments in rule files, flags and pipelines name them.
const (
	codeRefused         = "refused"
	codeDirective       = "directive"
	codeNeverMatches    = "never-matches"
	codeHidesChildren   = "hides-children"
	codeNoCatchAll      = "no-catch-all"
	codeCIDROverlap     = "cidr-overlap"
	codeStarAlone       = "star-alone"
	codeStarAddress     = "star-address"
	codeStarInside      = "star-inside"
	codeStarBoundary    = "star-boundary"
	codeValueLiteral    = "value-literal"
	codeRegexDot        = "regex-dot"
	codeNoRules         = "no-rules"
	codeNoLimit         = "no-limit"
	codeFlagWithout     = "flag-without-limit"
	codeNoRequests      = "no-requests"
	codeZeroLimit       = "zero-limit"
	codeUnlimitedNumber = "unlimited-number"
	codeNeverRefuses    = "never-refuses"
	codeSmallBurst      = "small-burst"
	codeWindowUnnamed   = "window-unnamed"
	codePerSecond       = "per-second"
	codeSmallShare      = "small-share"
	codeReserveLevel    = "reserve-level"
	codeNoReservations  = "no-reservations"
	codeCostTooHigh     = "cost-too-high"
	codeCostOfOne       = "cost-of-one"
	codeDelayAlone      = "delay-alone"
	codeBucketOrder     = "bucket-order"
	codeReplacesNobody  = "replaces-nobody"
	codeNoSuchLimit     = "no-such-limit"
	codeNameTwice       = "name-twice"
	codeSameText        = "same-text"
	codeTimeOver        = "time-over"
	codeShadowTwice     = "shadow-twice"
	codeShareOfOne      = "share-of-one"
	codePenaltyShort    = "penalty-short"
	codePenaltyOfAll    = "penalty-of-all"
	codeLeaseInList     = "lease-in-list"
	codeLongValue       = "long-value"
	codeSkipped         = "skipped"
)

// Code is a kind of finding.
type Code struct {
	Name string
	What string // what it finds, in one line
}

// Codes are all kinds of findings, errors first.
var Codes = []Code{
	{codeRefused, "the service would reject the file; the message says why"},
	{codeNeverMatches, "a rule that no value can reach, because other rules match everything that it matches"},
	{codeHidesChildren, "a node with a value that lacks the levels below its sibling without a value"},
	{codeNoCatchAll, "values of a key are named, and other values have no limit"},
	{codeCIDROverlap, "a network within another one"},
	{codeStarAlone, "a lone `*`, which is not the same as no value"},
	{codeStarAddress, "a `*` in an address, which matches names too"},
	{codeStarInside, "a `*` in the middle, which matches separators too"},
	{codeStarBoundary, "a `*` right next to a letter of a path or host name, which also matches longer names"},
	{codeValueLiteral, "a `value` that looks like an expression, a network, a template or a list, but is compared as plain text"},
	{codeRegexDot, "a `.` in a `value_regex` that was probably meant as a dot"},
	{codeLongValue, "a `value_regex` whose higher limit is reached by long values that another node should match"},
	{codeNoRules, "a domain without descriptors"},
	{codeNoLimit, "a descriptor without a limit and without further levels"},
	{codeFlagWithout, "a flag on a descriptor that has no limit of its own"},
	{codeNoRequests, "`requests_per_unit` left out: nothing passes"},
	{codeZeroLimit, "a limit of 0: nothing passes"},
	{codeUnlimitedNumber, "`requests_per_unit` next to `unlimited: true`"},
	{codeNeverRefuses, "a limit that never denies anything, because a limit next to it denies first"},
	{codeSmallBurst, "a token bucket that holds less than one window's requests"},
	{codeWindowUnnamed, "a window for which `current_limit.unit` has no word"},
	{codePerSecond, "a limit per second without a lease, where the round trip to Redis weighs most"},
	{codeLeaseInList, "`lease` in a list of several limits, where it has no effect"},
	{codeSmallShare, "a `max_share` that is less than one hit of the limit: nothing can be reserved"},
	{codeReserveLevel, "a limit on `reserve_id` or `commit_id`: there each reservation has a counter of its own"},
	{codeNoReservations, "a node with a value that lacks the `reservations` of its sibling without a value"},
	{codeCostTooHigh, "a `cost` above the limit: such a request never passes"},
	{codeCostOfOne, "a `cost` by a value that has a counter of its own"},
	{codeDelayAlone, "`envoy_delay` in a domain in which no request waits"},
	{codeBucketOrder, "`order` of `quota_buckets` with a key that no rule has, or with keys in an order that no rule has"},
	{codeReplacesNobody, "`replaces` of a name that no rate limit of the domain has"},
	{codeNoSuchLimit, "a header `of` a name that no rate limit of the domain has"},
	{codeNameTwice, "a name that several rules of a domain have"},
	{codeSameText, "two siblings whose key and value, joined with `_`, are the same text"},
	{codeTimeOver, "a limit with `active` whose `until` is over: it never applies again"},
	{codeShadowTwice, "`shadow`, `soft` or `enforce_percent` in a limit whose descriptor is in shadow mode"},
	{codeShareOfOne, "`enforce_percent` where all callers have one counter"},
	{codePenaltyShort, "`penalty` that is over before the limit itself lets the caller pass again"},
	{codePenaltyOfAll, "`penalty` of a counter that all callers share: one offender gets all of them denied"},
	{codeSkipped, "a file that is not loaded because of its name; a warning if it has a domain"},
	{codeDirective, "a `# check:` comment that is misspelt, has no reason, or accepts a finding that is not there"},
}

// knownCode returns an error unless there is a code of that name that can be disabled. The error suggests a name.
func knownCode(name string) error {
	if name == codeRefused {
		return fmt.Errorf("%s cannot be left out: the files would not load", codeRefused)
	}
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
