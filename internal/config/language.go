package config

import (
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Rules returns the language of rule files.
func Rules() yamlform.Language {
	limit := limitForm.Map
	limit.What = "a limit"
	return yamlform.Language{Maps: []*yamlform.Map{
		&fileForm.Map, &descriptorForm.Map, &headerForm.Map, &quotaBucketsForm.Map, &overridableForm.Map,
		&reservationsForm.Map, &limit,
		&scaleForm.Map, &regionsForm.Map, &classesForm.Map, &activeForm.Map, &replacesForm.Map,
	}}
}

// Applicability lists the algorithms that use a key of a limit.
type Applicability struct {
	Key        string
	Algorithms []string
}

// OnlyFor returns the keys of a limit that only some algorithms use.
func OnlyFor() []Applicability {
	var all []Applicability
	for i := range limitRows {
		row := &limitRows[i]
		if row.appliesTo == 0 {
			continue
		}
		a := Applicability{Key: row.Name}
		for n, name := range descriptor.AlgorithmNames {
			l := descriptor.Limit{Algorithm: descriptor.Algorithm(n), Interval: true}
			if l.Has(row.appliesTo) {
				a.Algorithms = append(a.Algorithms, name)
			}
		}
		all = append(all, a)
	}
	return all
}

// NotInFlight returns the keys of a limit that a concurrency limit must not have. `lease: false` is allowed.
func NotInFlight() []string {
	var names []string
	for i := range limitRows {
		if row := &limitRows[i]; !row.inFlight() && row.Name != "lease" {
			names = append(names, row.Name)
		}
	}
	return names
}

// CountingKeys returns the keys of a limit that must not be used with `unlimited: true`.
func CountingKeys() []string {
	var names []string
	for i := range limitRows {
		if !limitRows[i].unlimited {
			names = append(names, limitRows[i].Name)
		}
	}
	return names
}

// Matchers returns the keys of a descriptor that determine how values are matched. A descriptor has at most one of
// them.
func Matchers() map[string]descriptor.MatchKind {
	kinds := make(map[string]descriptor.MatchKind)
	for i := range descriptorRows {
		if row := &descriptorRows[i]; row.matches != 0 {
			kinds[row.Name] = row.matches
		}
	}
	return kinds
}

// NeedLimit returns the keys of a descriptor that mean nothing without a rate limit.
func NeedLimit() []string {
	var names []string
	for i := range descriptorRows {
		if descriptorRows[i].needsLimit {
			names = append(names, descriptorRows[i].Name)
		}
	}
	return names
}
