package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestActive(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - key: a
    rate_limits:
      - {name: day, unit: minute, requests_per_unit: 5}
      - {name: night, unit: minute, requests_per_unit: 1, active: {zone: Europe/Berlin, hours: 22:00-24:00, weekdays: [monday, sunday]}}
  - key: b
    rate_limit: {unit: minute, requests_per_unit: 1, active: {from: 2026-07-01, until: 2026-12-24T18:30, zone: Europe/Berlin}}
  - {key: c, rate_limit: {unit: minute, requests_per_unit: 1}}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	var got []string
	for _, r := range tree.Rules {
		for i := range r.Limits {
			got = append(got, fmt.Sprint(r.Path, " ", r.LimitWords(i)))
		}
	}
	want := []string{
		"d.a 5 per minute, fixed window",
		"d.a 1 per minute, fixed window, only on monday, sunday from 22:00 to 24:00 in Europe/Berlin",
		"d.b 1 per minute, fixed window, only since 2026-07-01 00:00 until 2026-12-24 18:30 in Europe/Berlin",
		"d.c 1 per minute, fixed window",
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	b, c := tree.Rules[1], tree.Rules[2]
	if from := time.Unix(b.ActiveTimes(0).From, 0).UTC(); from != time.Date(2026, 6, 30, 22, 0, 0, 0, time.UTC) || c.Scheduled() {
		t.Errorf("from %s; %+v", from, c)
	}
	// A counter of envoyproxy/ratelimit applies always.
	key := string(descriptor.KeyBuilder{Format: descriptor.KeysLyft}.AppendKey(nil, "d", []descriptor.Entry{{Key: "b", Value: "x"}}, b, &b.Limits[0]))
	if key != "d|b=x|fa60" {
		t.Errorf("the key is %s", key)
	}
}

// Quiet hours and Sundays: limits with the same window count separately if their active times differ.
func TestActiveLimitsOfOneWindow(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - key: a
    rate_limits:
      - {name: quiet hours, unit: day, requests_per_unit: 0, active: {hours: 21:00-08:00}}
      - {name: sunday, unit: day, requests_per_unit: 0, active: {weekdays: [sunday]}}
      - {name: day, unit: day, requests_per_unit: 9}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	rule, keys := tree.Rules[0], make(map[string]bool)
	for i := range rule.Limits {
		keys[string(descriptor.KeyBuilder{}.AppendKey(nil, "d", []descriptor.Entry{{Key: "a", Value: "x"}}, rule, &rule.Limits[i]))] = true
	}
	if len(keys) != 3 {
		t.Errorf("keys: %v", keys)
	}
	_, _, errs = rulesOf(t, `
domain: d
descriptors:
  - {key: a, rate_limits: [{name: x, unit: day, requests_per_unit: 1, active: {hours: 21:00-08:00}}, {name: y, unit: day, requests_per_unit: 1}, {name: z, unit: day, requests_per_unit: 2}]}
`)
	if len(errs) != 1 || !strings.Contains(errs[0], `the limits "y" and "z" have the same algorithm and window`) {
		t.Errorf("two limits that always apply: %q", errs)
	}
}

func TestActiveErrors(t *testing.T) {
	for text, want := range map[string]string{
		"active: always":                                                     "`active` must be a map",
		"active: {}":                                                         "`active` without a time",
		"active: {zone: UTC}":                                                "`active` without a time",
		"active: {weekday: [monday]}":                                        "unknown key `weekday`: did you mean `weekdays`?",
		"active: {weekdays: []}":                                             "`weekdays` is empty",
		"active: {weekdays: [mon]}":                                          "monday",
		"active: {weekdays: monday}":                                         "`weekdays` must be a list",
		"active: {weekdays: [monday, monday]}":                               "\"monday\" twice in `weekdays`",
		"active: {hours: 8-20}":                                              "`hours` must be two times of a day",
		"active: {hours: 08:00-25:00}":                                       "`hours` must be two times of a day",
		"active: {hours: 24:00-08:00}":                                       "`hours` must be two times of a day",
		"active: {hours: 08:00-08:00}":                                       "`hours` start and end at \"08:00\"",
		"active: {from: tomorrow}":                                           "`from` must be a day or a time",
		"active: {from: 2026-02-30}":                                         "`from` must be a day or a time",
		"active: {until: 2026-02-03T4:00}":                                   "`until` must be a day or a time",
		"active: {until: 1960-01-01}":                                        "`until` must be a day or a time",
		"active: {from: 2026-02-03, until: 2026-02-03}":                      "`until` is not after `from`",
		"active: {from: 2026-02-03, zone: Mars}":                             "unknown time zone \"Mars\"",
		"active: {hours: 08:00-20:00, zone: Local}":                          "unknown time zone \"Local\"",
		"active: {hours: 08:00-20:00}, unlimited: true":                      "",
		"active: {hours: 08:00-20:00}}, reservations: true, metadata: {a: 1": "`reservations` and `active`",
	} {
		_, _, errs := rulesOf(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1, "+text+"}}")
		if len(errs) == 0 || !strings.Contains(strings.Join(errs, "\n"), want) {
			t.Errorf("%s\ngot  %q\nwant %s", text, errs, want)
		}
	}
	_, _, errs := rulesOf(t, "domain: d\ndescriptors:\n- {key: a, rate_limit: {algorithm: concurrency, max_in_flight: 1, ttl: 1m, active: {hours: 08:00-20:00}}}")
	if len(errs) != 1 || !strings.Contains(errs[0], "`active` cannot be used with `concurrency`") {
		t.Error(errs)
	}
}
