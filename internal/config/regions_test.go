package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Region settings of the limits of a domain, in words, by the name of the limit.
func TestRegions(t *testing.T) {
	const file = `
domain: d
%s
descriptors:
  - key: a
    rate_limits:
      - {name: minute, unit: minute, requests_per_unit: 600 %s}
      - {name: day, unit: day, requests_per_unit: 10000 %[2]s}
  - key: b
    rate_limit: {name: alone, unit: hour, requests_per_unit: 100, regions: {mode: regional}}
  - {key: a, value: x, inherit: true, descriptors: [{key: c, rate_limit: {name: below, unit: second, requests_per_unit: 5, regions: {home: us-1}}}]}
`
	for _, c := range []struct{ domain, limit, want string }{
		{"", "", "minute= day= alone= minute= day= below={home: us-1}"},
		{"", ", regions: {mode: eventual}", "minute={mode: eventual} day={mode: eventual} alone= minute={mode: eventual} day={mode: eventual} below={home: us-1}"},
		{"regions: {home: eu}", "", "minute={home: eu} day={home: eu} alone= minute={home: eu} day={home: eu} below={home: us-1}"},
		{"regions: {home: hash}", ", regions: {mode: regional}", "minute= day= alone= minute= day= below={home: us-1}"},
		{"regions: {mode: regional}", "", "minute= day= alone= minute= day= below={home: us-1}"},
	} {
		tree, errs := Compile(filesOf(fmt.Sprintf(file, c.domain, c.limit)), CompileOptions{})
		if len(errs) > 0 {
			t.Errorf("%+v: %v", c, errs)
			continue
		}
		var got []string
		for _, r := range tree.Rules {
			for i := range r.Limits {
				l := &r.Limits[i]
				got = append(got, l.Name+"="+l.Regions.String())
				// Hits that a region denies because of the others' hits must not use up the others' remaining hits.
				if (l.Regions != nil && !l.Regions.HasHome()) == l.CountsDenied() {
					t.Errorf("%+v: denied hits of %s count: %t", c, l.Name, l.CountsDenied())
				}
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%+v:\n got %s\nwant %s", c, text, c.want)
		}
	}
}

func TestWrongRegionsSayWhere(t *testing.T) {
	for _, c := range []struct{ domain, descriptor, want string }{
		{"regions: eu", "", "2:10: `regions` must be a map of keys (`home` and `mode`), not the text \"eu\""},
		{"regions: {}", "", "2:10: `regions` without a `home`: write `regions: {home: eu}` with the name of the region that counts, or `regions: {mode: eventual}`"},
		{"regions: {mode: Eventual}", "", "2:17: unknown `mode` \"Eventual\": did you mean `eventual`?"},
		{"regions: {mode: escrow}", "", "2:17: unknown `mode` \"escrow\": write `regional` or `eventual`"},
		{"regions: {mode: eventual, home: eu}", "", "2:33: `home` and `mode` cannot be combined: with a home, one region counts for all, and there is no mode; leave one of them out"},
		{"regions: {home: ''}", "", "2:17: `home` must be the name of a region in lower case, such as eu or us-west-2, or hash, not \"\""},
		{"regions: {home: Europe}", "", "2:17: `home` must be the name of a region in lower case, such as eu or us-west-2, or hash, not \"Europe\""},
		{"regions: {homes: eu}", "", "2:11: unknown key `homes`: did you mean `home`?"},

		{"admission: all_or_nothing", "rate_limit: {unit: minute, requests_per_unit: 600, regions: {home: eu}}", ""},
		{"quota_buckets: {order: [k]}", "rate_limit: {unit: minute, requests_per_unit: 600, regions: {home: eu}}",
			"4:5: `regions: {home: eu}` and `quota_buckets` cannot be combined: shares are divided in one region only; leave out one of them"},
		{"", "quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 600, regions: {home: eu}}", ""},
		{"", "rate_limit: {algorithm: concurrency, max_in_flight: 9, ttl: 5m, regions: {home: hash}}",
			"4:5: `regions: {home: hash}` and `algorithm: concurrency` cannot be combined: requests in flight are counted in one region only"},
		{"regions: {home: eu}", "rate_limit: {algorithm: concurrency, max_in_flight: 9, ttl: 5m}",
			"4:5: `regions: {home: eu}`, which the domain says, and `algorithm: concurrency` cannot be combined: requests in flight are counted in one region only; or write `regions: {mode: regional}` in the limit"},
		{"regions: {home: eu}", "rate_limit: {algorithm: concurrency, max_in_flight: 9, ttl: 5m, regions: {mode: regional}}", ""},
		{"regions: {home: eu}", "rate_limit: {unit: minute, requests_per_unit: 9, algorithm: leaky_bucket}",
			"4:5: `regions: {home: eu}`, which the domain says, and a `leaky_bucket` in which requests wait cannot be combined: the trip to another region takes longer than the wait; use `token_bucket` or `nodelay: all`; or write `regions: {mode: regional}` in the limit"},
		{"regions: {home: eu}", "rate_limit: {unit: minute, requests_per_unit: 9, algorithm: leaky_bucket, nodelay: all}", ""},
		{"", "reservations: true, rate_limit: {unit: minute, requests_per_unit: 600, regions: {home: eu}}",
			"4:5: `regions: {home: eu}` and `reservations` cannot be combined: they are kept in one region only; leave out one of them"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, lease: true, regions: {home: eu}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, lease: true, algorithm: sliding_window, regions: {home: hash}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, lease: true, algorithm: token_bucket, regions: {home: eu}}",
			"4:5: `regions: {home: eu}` and `lease: true` without a window on which all regions agree: use `home` with `fixed_window` or `sliding_window`, or leave out `lease`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, lease: true, regions: {mode: eventual}}",
			"4:5: `regions: {mode: eventual}` and `lease: true` without a window on which all regions agree: use `home` with `fixed_window` or `sliding_window`, or leave out `lease`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, penalty: 1h, regions: {home: eu}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, active: {weekdays: [monday]}, regions: {home: eu}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, count_denied: true, regions: {home: eu}}", ""},
		{"", "condition: true, rate_limit: {unit: minute, requests_per_unit: 600, scale: {by: k, max: 9}, regions: {home: eu}}", ""},
		{"", "rate_limit: {unit: second, requests_per_unit: 5, algorithm: token_bucket, refill: interval, regions: {home: eu}}", ""},
		{"", "rate_limit: {unit: second, requests_per_unit: 5, algorithm: sliding_log, regions: {home: eu}}", ""},
		{"", "rate_limits: [{name: a, unit: minute, requests_per_unit: 600, regions: {home: eu}}, {name: b, unit: hour, requests_per_unit: 700}]",
			"4:5: the limits \"a\" and \"b\" have different `regions`: give all limits of a rule the same, or write a descriptor for each"},
		{"", "rate_limits: [{name: a, unit: minute, requests_per_unit: 600, regions: {home: eu}}, {name: b, unit: hour, requests_per_unit: 700, regions: {home: us}}]",
			"4:5: the limits \"a\" and \"b\" have different `regions`: give all limits of a rule the same, or write a descriptor for each"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, regions: {mode: eventual}}", ""},
		{"", "condition: true, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: sliding_window, scale: {by: k, max: 9}, regions: {mode: eventual}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, align: first_hit, regions: {mode: eventual}}",
			"4:5: `regions: {mode: eventual}` and anything but a `fixed_window` on the clock or a `sliding_window`: counts of other kinds cannot be added up; use `home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket, regions: {mode: eventual}}",
			"4:5: `regions: {mode: eventual}` and anything but a `fixed_window` on the clock or a `sliding_window`: counts of other kinds cannot be added up; use `home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, penalty: 1h, regions: {mode: eventual}}",
			"4:5: `regions: {mode: eventual}` and `penalty`: a region cannot know whom the others punish; use `home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, active: {weekdays: [monday]}, regions: {mode: eventual}}",
			"4:5: `regions: {mode: eventual}` and `active`: the regions would start and end at different moments; use `home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, count_denied: true, regions: {mode: eventual}}",
			"4:5: `regions: {mode: eventual}` and `count_denied: true`: each region would count what it denies because of the others; use `home`"},
		{"", "rate_limit: {unlimited: true, regions: {home: eu}}", "4:53: `unlimited: true` and `regions` cannot be combined: nothing is counted, so leave it out"},
	} {
		text := "domain: d\n" + c.domain + "\n"
		if c.descriptor != "" {
			text += "descriptors:\n  - {key: k, " + c.descriptor + "}\n"
		}
		_, errs := Compile(filesOf(text), CompileOptions{})
		got := ""
		if len(errs) > 0 {
			got = strings.TrimPrefix(errs[0].Error(), "a.yaml:")
		}
		if len(errs) > 1 || got != c.want {
			t.Errorf("%s %s:\n got %v\nwant %s", c.domain, c.descriptor, errs, c.want)
		}
	}
}

// The default of a domain was applied to the limits of the same file only, so all files of a domain must agree.
func TestRegionsOfSeveralFiles(t *testing.T) {
	const (
		none  = "domain: d\n"
		eu    = "domain: d\nregions: {home: eu}\n"
		us    = "domain: d\nregions: {home: us}\n"
		limit = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 600, regions: {home: eu}}}]\n"
	)
	for _, c := range []struct {
		files []string
		want  string
	}{
		{[]string{eu, eu}, ""},
		{[]string{none, limit}, ""},
		{[]string{none, eu}, "b.yaml:1:9: only one of the files of domain \"d\" has `regions`, the other is at a.yaml:1: say it in both, it holds for the limits of its own file"},
		{[]string{eu, none}, "b.yaml:1:9: only one of the files of domain \"d\" has `regions`, the other is at a.yaml:1: say it in both, it holds for the limits of its own file"},
		{[]string{eu, us}, "b.yaml:1:9: domain \"d\" has another `regions` at a.yaml:1: say it in one of them"},
	} {
		_, errs := Compile(filesOf(c.files...), CompileOptions{Merge: true})
		var got []string
		for _, err := range errs {
			got = append(got, err.Error())
		}
		if want := []string{c.want}; len(errs) > 0 && !slices.Equal(got, want) || len(errs) == 0 && c.want != "" {
			t.Errorf("%q:\n got %q\nwant %q", c.files, got, c.want)
		}
	}
}
