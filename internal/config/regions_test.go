package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// What the limits of a domain say about regions, in words, by the name of the limit.
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
  - {key: a, value: x, inherit: true, descriptors: [{key: c, rate_limit: {name: below, unit: second, requests_per_unit: 5, regions: {mode: home, home: us-1}}}]}
`
	for _, c := range []struct{ domain, limit, want string }{
		{"", "", "minute= day= alone= minute= day= below={mode: home, home: \"us-1\"}"},
		{"", ", regions: {mode: escrow}", "minute={mode: escrow} day={mode: escrow} alone= minute={mode: escrow} day={mode: escrow} below={mode: home, home: \"us-1\"}"},
		{"regions: {mode: escrow, home: eu}", "", `minute={mode: escrow, home: "eu"} day={mode: escrow, home: "eu"} alone= minute={mode: escrow, home: "eu"} day={mode: escrow, home: "eu"} below={mode: home, home: "us-1"}`},
		{"regions: {mode: escrow}", ", regions: {mode: regional}", "minute= day= alone= minute= day= below={mode: home, home: \"us-1\"}"},
		{"regions: {mode: regional}", "", "minute= day= alone= minute= day= below={mode: home, home: \"us-1\"}"},
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
				// A region that holds nothing refuses. Such hits must not use up what other regions have.
				if (l.Regions != nil) == l.CountsDenied() {
					t.Errorf("%+v: refused hits of %s count: %t", c, l.Name, l.CountsDenied())
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
		{"regions: escrow", "", "2:10: `regions` must be a map of keys (`mode` and `home`), this is the text \"escrow\""},
		{"regions: {home: eu}", "", "2:10: `regions` without a `mode`: write `regional`, `home`, `escrow` or `eventual`"},
		{"regions: {mode: Escrow}", "", "2:17: unknown `mode` \"Escrow\": did you mean `escrow`?"},
		{"regions: {mode: never}", "", "2:17: unknown `mode` \"never\": write `regional`, `home`, `escrow` or `eventual`"},
		{"regions: {mode: eventual, home: eu}", "", "2:33: `home` and `mode: eventual`: each region counts on its own, so there is no home; leave it out"},
		{"regions: {mode: home, home: ''}", "", "2:29: `home` is empty: write the name of a region, or leave it out"},
		{"regions: {mode: home, home: Europe}", "", "2:29: `home` must be the name of a region in lower case, such as eu or us-west-2, this is \"Europe\""},
		{"regions: {mode: regional, home: eu}", "", "2:33: `home` and `mode: regional`: each region counts on its own, so there is no home; leave it out"},
		{"regions: {mode: home, homes: eu}", "", "2:23: unknown key `homes`: did you mean `home`?"},

		{"admission: all_or_nothing", "rate_limit: {unit: minute, requests_per_unit: 600, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and `admission: all_or_nothing`: what a denied request took in one region would have to be given back from another; leave out one of them"},
		{"quota_buckets: {order: [k]}", "rate_limit: {unit: minute, requests_per_unit: 600, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and `quota_buckets`: shares of a limit are divided in one region only; leave out one of them"},
		{"", "quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 600, regions: {mode: home}}",
			"4:5: `mode: home` of `regions` and `quota_mode: true`: a region cannot know what the others deny; leave out one of them"},
		{"", "rate_limit: {algorithm: concurrency, max_in_flight: 9, ttl: 5m, regions: {mode: home}}",
			"4:5: `mode: home` of `regions` and `algorithm: concurrency`: places are counted in one region only"},
		{"regions: {mode: home}", "rate_limit: {algorithm: concurrency, max_in_flight: 9, ttl: 5m}",
			"4:5: `mode: home` of `regions`, which the domain says, and `algorithm: concurrency`: places are counted in one region only; or write `regions: {mode: regional}` in the limit"},
		{"regions: {mode: home}", "rate_limit: {algorithm: concurrency, max_in_flight: 9, ttl: 5m, regions: {mode: regional}}", ""},
		{"regions: {mode: home}", "rate_limit: {unit: minute, requests_per_unit: 9, algorithm: leaky_bucket}",
			"4:5: `mode: home` of `regions`, which the domain says, and a `leaky_bucket` in which requests wait: their turn is known in one region only; use `token_bucket` or `nodelay: all`; or write `regions: {mode: regional}` in the limit"},
		{"regions: {mode: home}", "rate_limit: {unit: minute, requests_per_unit: 9, algorithm: leaky_bucket, nodelay: all}", ""},
		{"", "reservations: true, rate_limit: {unit: minute, requests_per_unit: 600, regions: {mode: home}}",
			"4:5: `mode: home` of `regions` and `reservations`: they are kept in one region only; leave out one of them"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, penalty: 1h, regions: {mode: home}}",
			"4:5: `mode: home` of `regions` and `penalty`: a region cannot know whom the others punish; leave out one of them"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, lease: true, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and `lease: true`: the permits of a region do for its replicas what a lease does; leave out `lease`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, active: {weekdays: [monday]}, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and `active`: the regions would begin and end at different moments; leave out one of them"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, count_denied: true, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and `count_denied: true`: denied hits count nowhere then; leave out `count_denied`"},
		{"", "condition: true, rate_limit: {unit: minute, requests_per_unit: 600, scale: {by: k, max: 9}, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and `scale`: permits are granted under one number of requests; use `mode: home`"},
		{"", "condition: true, rate_limit: {unit: minute, requests_per_unit: 600, scale: {by: k, max: 9}, regions: {mode: home}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, algorithm: token_bucket, regions: {mode: escrow}}", ""},
		{"", "rate_limit: {unit: second, requests_per_unit: 80, algorithm: leaky_bucket, burst: 79, nodelay: all, regions: {mode: escrow}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, burst: 79, algorithm: token_bucket, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and a bucket of 79 with 600 requests per window: it is too small to be divided, two regions need 80 of both; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 79, burst: 600, algorithm: token_bucket, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and a bucket of 600 with 79 requests per window: it is too small to be divided, two regions need 80 of both; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, algorithm: token_bucket, refill: interval, regions: {mode: escrow}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, algorithm: token_bucket, regions: {mode: home}}", ""},
		{"", "rate_limit: {unit: second, requests_per_unit: 600, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and a window, or a part of one, of 1s: a permit would end before it can be used, 4s is the least; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_log, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and a window, or a part of one, of 1m0s: a permit would end before it can be used, 1m40s is the least; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 600, algorithm: sliding_window, precision: 60, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and a window, or a part of one, of 1s: a permit would end before it can be used, 4s is the least; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 79, regions: {mode: escrow}}",
			"4:5: `mode: escrow` of `regions` and a limit of 79: it is too small to be divided, two regions need 80; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 80, regions: {mode: escrow}}", ""},
		{"", "rate_limits: [{name: a, unit: minute, requests_per_unit: 600, regions: {mode: escrow}}, {name: b, unit: hour, requests_per_unit: 700}]",
			"4:5: the limits \"a\" and \"b\" have different `regions`: give all limits of a rule the same, or write a descriptor for each"},
		{"", "rate_limits: [{name: a, unit: minute, requests_per_unit: 600, regions: {mode: home, home: eu}}, {name: b, unit: hour, requests_per_unit: 700, regions: {mode: home, home: us}}]",
			"4:5: the limits \"a\" and \"b\" have different `regions`: give all limits of a rule the same, or write a descriptor for each"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, regions: {mode: eventual}}", ""},
		{"", "condition: true, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: sliding_window, scale: {by: k, max: 9}, regions: {mode: eventual}}", ""},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, align: first_hit, regions: {mode: eventual}}",
			"4:5: `mode: eventual` of `regions` and anything but a `fixed_window` on the clock or a `sliding_window`: counts of other kinds cannot be added up; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket, regions: {mode: eventual}}",
			"4:5: `mode: eventual` of `regions` and anything but a `fixed_window` on the clock or a `sliding_window`: counts of other kinds cannot be added up; use `mode: home`"},
		{"", "rate_limit: {unit: minute, requests_per_unit: 6, lease: true, regions: {mode: eventual}}",
			"4:5: `mode: eventual` of `regions` and `lease: true`: what a replica holds in advance would count as used in all regions; leave out `lease`"},
		{"", "rate_limit: {unlimited: true, regions: {mode: home}}", "4:53: `unlimited: true` and `regions`: nothing is counted, so leave it out"},
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

// The default of a domain was given to the limits of its own file, so all files of a domain must say the same.
func TestRegionsOfSeveralFiles(t *testing.T) {
	const (
		none   = "domain: d\n"
		escrow = "domain: d\nregions: {mode: escrow}\n"
		home   = "domain: d\nregions: {mode: home}\n"
		limit  = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 600, regions: {mode: home}}}]\n"
		all    = "domain: d\nadmission: all_or_nothing\n"
	)
	for _, c := range []struct {
		files []string
		want  string
	}{
		{[]string{escrow, escrow}, ""},
		{[]string{none, limit}, ""},
		{[]string{none, escrow}, "b.yaml:1:9: only one of the files of domain \"d\" has `regions`, the other is at a.yaml:1: say it in both, it holds for the limits of its own file"},
		{[]string{escrow, none}, "b.yaml:1:9: only one of the files of domain \"d\" has `regions`, the other is at a.yaml:1: say it in both, it holds for the limits of its own file"},
		{[]string{escrow, home}, "b.yaml:1:9: domain \"d\" has another `regions` at a.yaml:1: say it in one of them"},
		{[]string{limit, all}, "b.yaml:1:9: domain \"d\" has `admission: all_or_nothing` in one file and limits with `regions` in another, see a.yaml:1: leave out one of them"},
		{[]string{all, limit}, "b.yaml:1:9: domain \"d\" has `admission: all_or_nothing` in one file and limits with `regions` in another, see a.yaml:1: leave out one of them"},
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

// A large file is read in pieces, and the domain's default reaches all of them.
func TestRegionsInPieces(t *testing.T) {
	var b strings.Builder
	b.WriteString("domain: d\nregions: {mode: escrow}\ndescriptors:\n")
	for i := range 50 {
		fmt.Fprintf(&b, "  - {key: k, value: v%d, rate_limit: {unit: minute, requests_per_unit: 600}}\n", i)
	}
	s := readCut("a.yaml", []byte(b.String()), 100)
	if s == nil {
		t.Fatal("the file is not read in pieces")
	}
	for _, spec := range s.domains[0].Children {
		if r := spec.Rule.Limits[0].Regions; r == nil || r.Mode != descriptor.InEscrow {
			t.Fatalf("%s has %v", spec.Value, r)
		}
	}
}

// What a region knows a rule by is the same whatever its limits say, and another one for each path.
func TestIdentityOfRules(t *testing.T) {
	const file = `
domain: %s
regions: {mode: home%s}
descriptors:
  - {key: a, rate_limits: [{name: x, unit: minute, requests_per_unit: %s}, {name: y, unit: hour, requests_per_unit: 900}], descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 5}}]}
  - {key: a_b, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: a, value: b, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: a, values: [b, c], rate_limit: {unit: day, requests_per_unit: 5}}
`
	seen := make(map[uint64]string)
	identities := func(domain, home, requests string) (all []uint64) {
		tree, errs := Compile(filesOf(fmt.Sprintf(file, domain, home, requests)), CompileOptions{})
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for i, r := range tree.Rules {
			id := r.Limits[0].Regions.Rule
			where := fmt.Sprint(domain, i)
			if was, ok := seen[id]; id == 0 || ok && was != where {
				t.Errorf("%s and %s are %d", was, where, id)
			}
			seen[id] = where
			for k := range r.Limits {
				if r.Limits[k].Regions.Rule != id {
					t.Errorf("limits of %s differ", where)
				}
			}
			all = append(all, id)
		}
		return all
	}
	first := identities("d", "", "600")
	if again := identities("d", ", home: eu", "700"); len(first) != 5 || !slices.Equal(first, again) {
		t.Errorf("%d became %d", first, again)
	}
	identities("e", "", "600")
}
