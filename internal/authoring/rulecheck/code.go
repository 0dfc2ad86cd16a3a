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
	codeNameEscaped     = "name-escaped"
	codeNameOfWindow    = "name-of-window"
	codeLongNumber      = "long-number"
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
	codeInvisible       = "invisible"
	codeOctal           = "octal"
	codeNewline         = "newline"
	codeNoAddress       = "no-address"
	codeNoRegion        = "no-region"
	codeHomeWaits       = "home-waits"
)

// Code is a kind of finding.
type Code struct {
	Name string
	What string // what it finds, in one line
}

// Codes are all kinds of findings, errors first.
var Codes = []Code{
	{codeRefused, "the service would reject the file; the message says why"},
	{codeNoRegion, "a `home` that is not one of the regions, if `--regions` or `RATELIMITD_REGIONS` names them"},
	{codeNeverMatches, "a rule that no value reaches, because others match all of its values"},
	{codeHidesChildren, "a node with a value, without the levels below its sibling for any value"},
	{codeNoCatchAll, "some values of a key have a limit, all others none"},
	{codeCIDROverlap, "a network inside another one"},
	{codeStarAlone, "a lone `*`, which is not the same as no value"},
	{codeStarAddress, "a `*` in an address: it matches names too"},
	{codeStarInside, "a `*` in the middle: it matches separators too"},
	{codeStarBoundary, "a `*` right next to a letter of a path or host name: it matches longer names too"},
	{codeValueLiteral, "a `value` that looks like an expression, a network, a template or a list, but is plain text"},
	{codeRegexDot, "a `.` in a `value_regex` that probably means a dot"},
	{codeInvisible, "a character that nobody sees, or typographic quotes, in a key, a value or a name"},
	{codeOctal, "a number that begins with 0, which YAML reads as octal"},
	{codeNewline, "a `.` in a `value_regex` that does not match a newline, where such a value has no limit"},
	{codeNoAddress, "a `value` of an address in a form that callers do not send"},
	{codeLongValue, "a `value_regex` with a higher limit, which long values of another node reach too"},
	{codeNoRules, "a domain without descriptors"},
	{codeNoLimit, "a descriptor without a limit or further levels"},
	{codeFlagWithout, "a flag on a descriptor without a limit"},
	{codeNoRequests, "`requests_per_unit` left out: nothing passes"},
	{codeZeroLimit, "a limit of 0: nothing passes"},
	{codeUnlimitedNumber, "`requests_per_unit` next to `unlimited: true`"},
	{codeNeverRefuses, "a limit that never denies, because another one denies first"},
	{codeSmallBurst, "a token bucket smaller than one window's requests"},
	{codeWindowUnnamed, "a window that `current_limit.unit` cannot name"},
	{codeNameEscaped, "a limit's `name` with characters that headers cannot have; quotes and control characters are a warning, others (info)"},
	{codeNameOfWindow, "limits without a name that headers of the IETF draft call by the same window"},
	{codeLongNumber, "a limit of more digits than headers of the IETF draft can have"},
	{codePerSecond, "a limit per second without a lease, where the round trip to Redis weighs most"},
	{codeHomeWaits, "a limit with a `home`: where its requests wait for another region"},
	{codeLeaseInList, "`lease` in a list of several limits, where it has no effect"},
	{codeSmallShare, "a `max_share` below one hit: nothing can be reserved"},
	{codeReserveLevel, "a limit on `reserve_id` or `commit_id`: each reservation gets a counter of its own"},
	{codeNoReservations, "a node with a value, without the `reservations` of its sibling for any value"},
	{codeCostTooHigh, "a `cost` above the limit: such requests never pass"},
	{codeCostOfOne, "a `cost` by a value with a counter of its own"},
	{codeDelayAlone, "`envoy_delay` in a domain in which no request waits"},
	{codeBucketOrder, "an `order` of `quota_buckets` that no rule follows, or with a key of no rule"},
	{codeReplacesNobody, "a `replaces` of a limit that does not exist in the domain"},
	{codeNoSuchLimit, "a header `of` a limit that does not exist in the domain"},
	{codeNameTwice, "one name for several rules of a domain"},
	{codeSameText, "siblings whose key and value, joined with `_`, are the same text"},
	{codeTimeOver, "`active` with an `until` in the past: the limit never applies again"},
	{codeShadowTwice, "`shadow`, `soft` or `enforce_percent` under a descriptor in shadow mode"},
	{codeShareOfOne, "`enforce_percent` where all callers have one counter"},
	{codePenaltyShort, "a `penalty` that ends before the limit itself admits the caller again"},
	{codePenaltyOfAll, "a `penalty` on a counter that all callers share: one offender gets all of them denied"},
	{codeSkipped, "(info, unless the file contains a domain) a file that is not loaded because of its name"},
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
