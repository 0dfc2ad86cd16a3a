package ruletest

import (
	"math"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Forms of text in test files, as regular expressions for the whole.
const (
	spanForm    = `0|([0-9]+(\.[0-9]+)?(w|d|h|ms|m|us|s))+`
	instantForm = `[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ].*)?`
)

// Language is the language of test files.
func Language() config.Language {
	span := config.Type{Kind: config.Text, Pattern: spanForm, Form: "a duration such as 1d12h or 2.5s"}
	spanOr := func(other, words string) config.Type {
		return config.Type{Kind: config.Text, Pattern: spanForm + "|" + other, Form: span.Form + ", or " + words}
	}
	instant := config.Type{Kind: config.Text, Pattern: instantForm, Form: "a time (RFC 3339) or a date, which means midnight UTC"}
	text := config.Type{Kind: config.Text}
	flag := config.Type{Kind: config.Flag}
	number := func(least, most uint64) config.Type {
		return config.Type{Kind: config.Number, Least: least, Most: most}
	}
	descriptors := config.Key{Name: "descriptors", Type: config.Type{Kind: config.Anything, Form: "a descriptor, or a list of them"}, Doc: "what is asked: `key=value,key=value`, or the forms below"}
	weight := []config.Key{
		{Name: "peek", Type: flag, Doc: "look without adding anything"},
		{Name: "refund", Type: number(1, backend.MaxHits), Doc: "give so many hits back"},
		{Name: "override", Type: config.Type{Kind: config.Nested, Of: "override"}, Doc: "the limit that the request brings along"},
	}
	verdict := []config.Key{
		{Name: "code", Type: config.Type{Kind: config.Choice, Names: codeNames}, Doc: "the status"},
		{Name: "rule", Type: text, Doc: "the rule that decided: its path (`messaging.to_number`, the domain may be left out), its `name`, or the name of the one of its `rate_limits`; `override` if the request brought the limit, `none` if no rule applied or another one replaced it"},
		{Name: "limit", Type: number(0, math.MaxUint32), Doc: "`requests_per_unit` of the limit that decided"},
		{Name: "remaining", Type: number(0, math.MaxUint32), Doc: "hits left; 4294967295 if unlimited"},
		{Name: "reset", Type: span, Doc: "until the window ends or nothing is used any more, in whole seconds, rounded up"},
		{Name: "wait", Type: spanOr(never, "`never`"), Doc: "how long until the same request would pass, exactly; `never` if it is heavier than the limit; 0s if it passed"},
		{Name: "delay", Type: span, Doc: "how long a leaky bucket lets it wait"},
	}
	code := config.Type{Kind: config.Nested, Of: "expect", Names: codeNames}
	return config.Language{Maps: []config.Map{
		{Name: "file", What: fileShape.what, Keys: []config.Key{
			{Name: "rules", Type: config.Type{Kind: config.TextOrList}, Doc: "what is tested: a file or several, relative to the test file; absent: the file of the same name without `_test`"},
			{Name: "merge_domains", Type: flag, Doc: "rule files may share a domain, as with `MERGE_DOMAIN_CONFIG`"},
			{Name: "domain", Type: text, Doc: "the domain of requests; absent: the only one of the rules"},
			{Name: "start", Type: instant, Doc: "when cases begin; absent: 2011-12-22T00:00:00Z, at which a window of every unit begins"},
			{Name: "settings", Type: config.Type{Kind: config.Nested, Of: "settings"}, Doc: "what the operator sets for the service"},
			{Name: "cases", Type: config.Type{Kind: config.ListOf, Of: "case"}, Required: true, Doc: "the tests"},
		}},
		{Name: "settings", What: settingsShape.what, Keys: []config.Key{
			{Name: "shadow_mode", Type: flag, Doc: "as `SHADOW_MODE`"},
			{Name: "quota_mode", Type: flag, Doc: "as `QUOTA_MODE`"},
			{Name: "admission", Type: config.Type{Kind: config.Choice, Names: descriptor.AdmissionNames[1:]}, Doc: "admission of domains that do not say"},
			{Name: "stop_when_over", Type: flag, Doc: "as `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`"},
			{Name: "calendar_months", Type: flag, Doc: "as `USE_CALENDAR_MONTH_RATE_LIMIT`"},
			{Name: "headers", Type: config.Type{Kind: config.Choices, Names: descriptor.HeaderFamilyNames}, Doc: "headers in domains that do not say"},
		}},
		{Name: "case", What: caseShape.what, Keys: []config.Key{
			{Name: "name", Type: text, Required: true, Doc: "what it shows"},
			{Name: "start", Type: instant, Doc: "as above, for this case"},
			{Name: "settings", Type: config.Type{Kind: config.Nested, Of: "settings"}, Doc: "as above, for this case; settings that it does not name stay as the file has them"},
			{Name: "steps", Type: config.Type{Kind: config.ListOf, Of: "step"}, Required: true, Doc: "what happens, in order"},
			{Name: "domain", Type: text, Doc: "as in a step, for all steps that do not say"},
			descriptors,
		}},
		{Name: "step", What: stepShape.what, Keys: append([]config.Key{
			{Name: "at", Type: spanOr(instantForm, "a time"), Doc: "when: since the start, or a time; absent: together with the last request of the step before"},
			{Name: "after", Type: span, Doc: "when, counted from the last request of the step before"},
			{Name: "repeat", Type: number(1, maxRepeat), Doc: "how many times; absent: 1"},
			{Name: "every", Type: span, Doc: "the time between two of them; absent: 0"},
			{Name: "expect", Type: code, Required: true, Doc: "what must come: a status, or a map"},
			{Name: "hits", Type: number(1, math.MaxUint32), Doc: "how much each descriptor adds; absent: 1"},
			{Name: "domain", Type: text, Doc: "the domain of the request"},
			descriptors,
		}, weight...)},
		{Name: "descriptor", What: descriptorShape.what, Keys: append([]config.Key{
			{Name: "entries", Type: config.Type{Kind: config.Anything, Form: "`key=value,key=value`, or a list of maps"}, Doc: "the descriptor's entries"},
			{Name: "hits", Type: number(0, math.MaxUint64), Doc: "as in a step; 0 is `peek: true`"},
		}, weight...)},
		{Name: "override", What: overrideShape.what, Keys: []config.Key{
			{Name: "requests_per_unit", Type: number(0, math.MaxUint32), Doc: "how many per window; absent: 0"},
			{Name: "unit", Type: config.Type{Kind: config.Choice, Names: descriptor.UnitNames}, Required: true, Doc: "the window"},
		}},
		{Name: "expect", What: expectShape.what, Keys: append(append([]config.Key{}, verdict...), []config.Key{
			{Name: "passed", Type: number(0, maxRepeat), Doc: "how many of the repeated requests pass"},
			{Name: "headers", Type: config.Type{Kind: config.AnyMap}, Doc: "headers of the response by name; `null` for one that must be absent. Others may be there"},
			{Name: "descriptors", Type: config.Type{Kind: config.ListOf, Of: "verdict", Names: codeNames}, Doc: "for each descriptor a status or a map of the keys above, without `headers`; `null` for one that does not matter"},
		}...)},
		{Name: "verdict", What: verdictShape.what, Keys: verdict},
	}}
}
