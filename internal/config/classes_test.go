package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestClasses(t *testing.T) {
	_, tree, errs := rulesOf(t, `
domain: d
descriptors:
  - key: app
    descriptors:
      - key: kind
        condition: true
        fold_case: true
        descriptors:
          - key: path
            rate_limits:
              - {name: own, unit: hour, requests_per_unit: 7}
              - {name: all, unit: day, calendar: UTC, requests_per_unit: 50, classes: {by: kind, guaranteed_percent: {"*": 10, Paid: 30, CRITICAL: 20}}}
  - {key: app, value: big, inherit: true}
`)
	if errs != nil {
		t.Fatal(errs)
	}
	if len(tree.Rules) != 2 {
		t.Fatalf("%d rules", len(tree.Rules))
	}
	for _, rule := range tree.Rules {
		if c := rule.ClassesOf(0); c != nil || rule.Limits[0].Algorithm != descriptor.FixedWindow {
			t.Errorf("%s: the limit without classes has %+v", rule.Path, c)
		}
		c := rule.ClassesOf(1)
		want := &descriptor.Classes{Key: "kind", Level: 1, Fold: true, Of: []descriptor.Class{{Name: "*", Percent: 10}, {Name: "critical", Percent: 20}, {Name: "paid", Percent: 30}}}
		if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(descriptor.Classes{}, "Position")); diff != "" {
			t.Errorf("%s: %s", rule.Path, diff)
		}
		l := rule.Limits[1]
		if p := l.Classes.Percent; l.Algorithm != descriptor.SharedWindow || p != [descriptor.MaxClasses]uint8{10, 20, 30} || l.Classes.Names != c.Parts().Names {
			t.Errorf("%s: %+v", rule.Path, l)
		}
		for value, class := range map[string]uint8{"PAID": 3, "critical": 2, "*": 1, "": 1, "batch": 1} {
			if got := c.Class([]descriptor.Entry{{Key: "app"}, {Key: "kind", Value: value}, {Key: "path"}}); got != class {
				t.Errorf("%q is in class %d, want %d", value, got, class)
			}
		}
	}
}

func TestBadClasses(t *testing.T) {
	const kind = "{key: kind, condition: true, rate_limit: {unit: hour, requests_per_unit: 200, "
	for _, c := range []struct {
		text string
		want []string
	}{
		{kind + "classes: kind}}", []string{"2:90: `classes` must be a map"}},
		{kind + "classes: {guaranteed_percent: {a: 5}}}}", []string{"2:90: `classes` without `by`: write the key of the entry whose value is the class"}},
		{kind + "classes: {by: kind}}}", []string{"2:90: `classes` without `guaranteed_percent`"}},
		{kind + "classes: {by: '', guaranteed_percent: {a: 5}}}}", []string{"2:95: `by` is empty"}},
		{kind + "classes: {by: kind, guaranteed_percent: {}}}}", []string{"2:121: `guaranteed_percent` is empty"}},
		{kind + "classes: {by: kind, guaranteed_percent: 20}}}", []string{"2:121: `guaranteed_percent` must be a map"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 0}}}}", []string{"2:125: \"a\" in `guaranteed_percent` must be a whole number from 1 to 100, not the number 0"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60, b: 41}}}}", []string{"2:121: `guaranteed_percent` is 101 in all"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 1, b: 1, c: 1, d: 1, e: 1, f: 1}}}}", []string{"2:121: `guaranteed_percent` has 6 classes: 5 are the most"}},
		{kind + "classes: {by: kin, guaranteed_percent: {a: 60}}}}", []string{"2:90: `classes` by \"kin\": no level of this rule has this key; it has `kind`"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}, align: first_hit}}", []string{"2:138: `classes` and `align: first_hit`"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}, count_denied: true}}", []string{"2:145: `classes` and `count_denied: true`"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}, lease: true}}", []string{"2:138: `classes` and `lease: true`"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}, penalty: 10m}}", []string{"2:140: `classes` and `penalty`"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}}, reservations: true}", []string{"2:146: `reservations` and `classes`"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}, regions: {mode: eventual}}}", []string{"2:3: `regions: {mode: eventual}` and `classes`: what a class is owed is known in one region only"}},
		{kind + "classes: {by: kind, guaranteed_percent: {a: 60}}, algorithm: sliding_window}}", []string{"2:90: `classes` cannot be used with `sliding_window`: it is for `fixed_window`"}},
		{"{key: kind, condition: true, rate_limit: {unit: hour, requests_per_unit: 4294967296, classes: {by: kind, guaranteed_percent: {a: 60}}}}", []string{"2:76: `requests_per_unit`: 4294967296 that classes share cannot be counted exactly, 4294967295 is the most"}},
		{"{key: kind, rate_limit: {unit: hour, requests_per_unit: 200, classes: {by: kind, guaranteed_percent: {a: 60}}}}", []string{"2:73: `classes` by \"kind\": each class would have a counter of its own"}},
		{"{key: kind, values: [a, b], share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 200, classes: {by: kind, guaranteed_percent: {a: 60, c: 1}}}}", []string{"2:112: `classes` by \"kind\": the rule does not match the class \"c\"; it matches `a` and `b`"}},
		{"{key: kind, fold_case: true, condition: true, rate_limit: {unit: hour, requests_per_unit: 200, classes: {by: kind, guaranteed_percent: {a: 60, A: 1}}}}", []string{"2:107: `classes` by \"kind\": \"a\" is there twice, in different cases of letters"}},
	} {
		t.Run(c.text, func(t *testing.T) {
			checkMistakes(t, "- "+c.text, c.want)
		})
	}
}
