package config

import (
	"math"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Language says which keys a language of YAML files has, and what each means: what a schema and a reference are made of.
// What reads the keys is elsewhere; a test holds the two together.
type Language struct {
	Maps []Map // the first is the file itself
}

// Map is one map of a language.
type Map struct {
	Name string // for references from Type.Of
	What string // in words, as error messages have it
	Keys []Key
}

// Key is one key of a map.
type Key struct {
	Name      string
	Type      Type
	Doc       string // what it means, in Markdown
	Required  bool
	Extension bool // envoyproxy/ratelimit does not have it
}

// Type is what a key's value may be.
type Type struct {
	Kind        Kind
	Names       []string // of Choice and Choices
	Least, Most uint64   // of Number
	Word        string   // of Number: a word that may stand in its place
	Of          string   // of Nested and ListOf: the name of a Map
	Pattern     string   // of Text, if it must have a form: a regular expression for the whole
	Form        string   // of Text with a Pattern: the form in words
}

// Kind is the kind of a Type.
type Kind int

// Kinds of values.
const (
	Anything Kind = iota // Form says what, if not everything
	Text
	TextList
	TextOrList // one text, or a list of them
	Flag
	Number
	Choice  // one of Names
	Choices // a list of some of Names
	Nested  // a map
	ListOf  // a list of maps
	AnyMap  // a map of anything
)

// Rules is the language of rule files.
func Rules() Language {
	onError := Type{Kind: Choice, Names: descriptor.OnErrorNames[1:]}
	algorithms := func(names ...descriptor.Algorithm) string {
		var all []string
		for _, n := range names {
			all = append(all, n.String())
		}
		return List(all, "and")
	}
	limit := []Key{
		{Name: "unit", Type: Type{Kind: Choice, Names: descriptor.UnitNames}, Required: true, Doc: "the window, in any case of letters; a month has 30 days, a year 365, unless `calendar` or the server's `USE_CALENDAR_MONTH_RATE_LIMIT` says otherwise"},
		{Name: "requests_per_unit", Type: Type{Kind: Number, Most: math.MaxUint32}, Doc: "how many per window; absent: 0, nothing passes"},
		{Name: "unlimited", Type: Type{Kind: Flag}, Doc: "everything passes and nothing is counted; in place of `unit`, and only in `rate_limit`"},
		{Name: "name", Type: Type{Kind: Text}, Doc: "stands in answers, and lets other rules replace this one; required in `rate_limits`"},
		{Name: "replaces", Type: Type{Kind: ListOf, Of: "replaces"}, Doc: "when this rule matches, the rate limits of these names are left out of the same request"},
		{Name: "unit_multiplier", Type: Type{Kind: Number, Least: 1, Most: math.MaxUint32}, Extension: true, Doc: "the window is so many units long, up to 90 years; absent: 1"},
		{Name: "algorithm", Type: Type{Kind: Choice, Names: descriptor.AlgorithmNames}, Extension: true, Doc: "how the limit is held; absent: `fixed_window`"},
		{Name: "burst", Type: Type{Kind: Number, Most: math.MaxUint32}, Extension: true, Doc: "of " + algorithms(descriptor.TokenBucket) + ": what the bucket holds, at least 1; of " + algorithms(descriptor.LeakyBucket) + ": how many may wait; absent: `requests_per_unit`"},
		{Name: "refill", Type: Type{Kind: Choice, Names: []string{"greedy", "interval"}}, Extension: true, Doc: "of " + algorithms(descriptor.TokenBucket) + ": continuously (default), or `requests_per_unit` at once on each window's boundary"},
		{Name: "align", Type: Type{Kind: Choice, Names: []string{"clock", "first_hit"}}, Extension: true, Doc: "of " + algorithms(descriptor.FixedWindow) + ", and of " + algorithms(descriptor.TokenBucket) + " with `refill: interval`: windows start on the clock (default), or at a counter's first hit"},
		{Name: "calendar", Type: Type{Kind: Text, Pattern: "[A-Za-z][A-Za-z0-9_+/-]*", Form: "a time zone of the IANA database"}, Extension: true, Doc: "of " + algorithms(descriptor.FixedWindow) + " of a day and longer, without `unit_multiplier` and `first_hit`: windows follow the zone's calendar: local midnight, Mondays, months and years as long as they are"},
		{Name: "precision", Type: Type{Kind: Number, Least: 1, Most: 60}, Extension: true, Doc: "of " + algorithms(descriptor.SlidingWindow) + ": sub-windows that the estimate is built from; they must be whole microseconds long; absent: 1"},
		{Name: "nodelay", Type: Type{Kind: Number, Most: descriptor.NoDelayAll - 1, Word: "all"}, Extension: true, Doc: "of " + algorithms(descriptor.LeakyBucket) + ": so many of those that wait pass at once; absent: 0"},
		{Name: "lease", Type: Type{Kind: Flag}, Extension: true, Doc: "permits may be taken from Redis in batches and decided on locally; never more than the limit passes"},
		{Name: "count_denied", Type: Type{Kind: Flag}, Extension: true, Doc: "of " + algorithms(descriptor.FixedWindow, descriptor.SlidingLog) + ": refused hits count too; absent: true for a `fixed_window` under `admission: independent`, else false"},
	}
	return Language{Maps: []Map{
		{Name: "file", What: documentShape.what, Keys: []Key{
			{Name: "domain", Type: Type{Kind: Text}, Required: true, Doc: "the domain that these rules belong to, as callers name it"},
			{Name: "descriptors", Type: Type{Kind: ListOf, Of: "descriptor"}, Doc: "the first level of rules"},
			{Name: "admission", Type: Type{Kind: Choice, Names: descriptor.AdmissionNames[1:]}, Extension: true, Doc: "how the descriptors of one request weigh on each other: each for itself, or a refused request consumes nothing anywhere; absent: as the server says"},
			{Name: "on_error", Type: onError, Extension: true, Doc: "what happens when counters cannot be read; absent: as the server says"},
			{Name: "headers", Type: Type{Kind: Choices, Names: descriptor.HeaderFamilyNames}, Extension: true, Doc: "what clients of this domain are told; `[]`: nothing; absent: as the server says"},
		}},
		{Name: "descriptor", What: descriptorShape.what, Keys: []Key{
			{Name: "key", Type: Type{Kind: Text}, Required: true, Doc: "the key of the caller's entry on this level; with `*`, key and value are a wildcard for the whole entry, `key_value`"},
			{Name: "value", Type: Type{Kind: Text}, Doc: "the entry's value; with `*` a wildcard, any bytes in its place; absent or empty: any value"},
			{Name: "values", Type: Type{Kind: TextList}, Extension: true, Doc: "any of these values"},
			{Name: "value_regex", Type: Type{Kind: Text}, Extension: true, Doc: "values that the expression (RE2) matches as a whole"},
			{Name: "value_cidr", Type: Type{Kind: Text, Pattern: "[0-9a-fA-F.:]+/[0-9]+", Form: "a network, such as 10.0.0.0/8"}, Extension: true, Doc: "addresses in this network"},
			{Name: "rate_limit", Type: Type{Kind: Nested, Of: "limit"}, Doc: "the limit of a caller's descriptor that ends here. Without it such a descriptor has no limit"},
			{Name: "rate_limits", Type: Type{Kind: ListOf, Of: "limit"}, Extension: true, Doc: "several limits in place of one"},
			{Name: "descriptors", Type: Type{Kind: ListOf, Of: "descriptor"}, Doc: "the next level"},
			{Name: "shadow_mode", Type: Type{Kind: Flag}, Doc: "judged and measured, not enforced"},
			{Name: "quota_mode", Type: Type{Kind: Flag}, Doc: "a request is refused for quota descriptors only when all of them are over"},
			{Name: "detailed_metric", Type: Type{Kind: Flag}, Doc: "the metric is named by the caller's keys and values instead of the rule's"},
			{Name: "value_to_metric", Type: Type{Kind: Flag}, Doc: "on this level the metric takes the caller's value"},
			{Name: "share_threshold", Type: Type{Kind: Flag}, Doc: "the values that match share one counter; needs a wildcard, `values`, `value_regex` or `value_cidr`"},
			{Name: "on_error", Type: onError, Extension: true, Doc: "what happens when its counters cannot be read; absent: as the domain says"},
			{Name: "metadata", Type: Type{Kind: AnyMap}, Doc: "anything; part of the answer's dynamic metadata when the rule passes"},
		}},
		{Name: "limit", What: "`rate_limit`, and each entry of `rate_limits`", Keys: limit},
		{Name: "replaces", What: replacesShape.what, Keys: []Key{
			{Name: "name", Type: Type{Kind: Text}, Required: true, Doc: "the `name` of another rate limit"},
		}},
	}}
}

// Belonging is a key of a limit that only some algorithms have a meaning for.
type Belonging struct {
	Key        string
	Algorithms []string
}

// OnlyFor says which keys of a limit belong to which algorithms.
func OnlyFor() []Belonging {
	var all []Belonging
	for _, b := range belongs {
		s := Belonging{Key: b.key}
		for a, name := range descriptor.AlgorithmNames {
			l := descriptor.Limit{Algorithm: descriptor.Algorithm(a), Interval: true}
			if b.to(&l) {
				s.Algorithms = append(s.Algorithms, name)
			}
		}
		all = append(all, s)
	}
	return all
}
