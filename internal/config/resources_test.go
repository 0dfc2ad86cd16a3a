package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// resourceOf is a resource with one rule.
func resourceOf(name, domain string, requests uint32) Resource {
	return Resource{Name: name, Sum: sumOf([]byte(name + domain + string(rune(requests)))), Rules: yamlform.Pairs{
		{Key: "domain", Value: domain},
		{Key: "descriptors", Value: []any{
			yamlform.Pairs{{Key: "key", Value: "k"}, {Key: "rate_limit", Value: yamlform.Pairs{{Key: "unit", Value: "day"}, {Key: "requests_per_unit", Value: requests}}}},
		}},
	}}
}

func statesOf(s *Resources) string {
	var all []string
	for _, f := range s.Files() {
		all = append(all, f.Name+"="+string(f.State))
	}
	return strings.Join(all, " ")
}

// Only the bad resource is rejected: it keeps its last good version, and the others take effect.
func TestABadResourceIsRejectedAlone(t *testing.T) {
	log := new(logged)
	registry := prometheus.NewPedanticRegistry()
	s := NewResources(ResourceOptions{Logger: log.logger(), Metrics: prom.With(registry)})
	if got := statesOf(s); got != "" {
		t.Errorf("before anything: %s", got)
	}
	bad := func(name, domain string) Resource {
		r := resourceOf(name, domain, 1)
		r.Sum = sumOf([]byte(name + domain + "bad"))
		r.Rules[1].Value.([]any)[0].(yamlform.Pairs)[0].Key = "kye"
		return r
	}
	unreadable := Resource{Name: "resource 1", Unnamed: true, Err: errors.New("cannot be decoded")}
	for _, step := range []struct {
		what   string
		set    []Resource
		err    string
		states string
		rules  string // active requests by domain
		same   bool   // the tree is unchanged
	}{
		{"nothing that can be used", []Resource{bad("z", "z"), unreadable}, "resource 1: cannot be decoded; z: descriptors[0].kye: unknown key `kye`: did you mean `key`?", "resource 1=rejected z=rejected", "none", false},
		{"the first with something good", []Resource{bad("z", "z"), resourceOf("b", "b", 1)}, "z: descriptors[0].kye: ", "b=loaded z=rejected", "b=1", false},
		{"all is good", []Resource{resourceOf("b", "b", 1), resourceOf("a", "a", 2)}, "", "a=loaded b=loaded", "a=2 b=1", false},
		{"the same in another order", []Resource{resourceOf("a", "a", 2), resourceOf("b", "b", 1)}, "", "a=loaded b=loaded", "a=2 b=1", true},
		{"one is bad, one is new, one is changed", []Resource{bad("a", "a"), resourceOf("b", "b", 4), resourceOf("c", "c", 5)}, "a: descriptors[0].kye: ", "a=stale b=loaded c=loaded", "a=2 b=4 c=5", false},
		{"still bad", []Resource{bad("a", "a"), resourceOf("b", "b", 4), resourceOf("c", "c", 5)}, "a: descriptors[0].kye: ", "a=stale b=loaded c=loaded", "a=2 b=4 c=5", true},
		{"one is bad, one is missing", []Resource{bad("a", "a"), resourceOf("b", "b", 4)}, "a: descriptors[0].kye: ", "a=stale b=loaded", "a=2 b=4", false},
		{"one cannot be named: nothing is removed", []Resource{unreadable, resourceOf("b", "b", 6)}, "a: missing from a set in which resource 1 cannot be read", "a=stale b=loaded resource 1=rejected", "a=2 b=6", false},
		{"others, and all of them bad: nothing is removed", []Resource{bad("z", "z")}, "a: missing from a set in which nothing else can be used", "a=stale b=stale z=rejected", "a=2 b=6", true},
		{"a domain twice belongs to the first", []Resource{resourceOf("a", "a", 2), resourceOf("b", "a", 1)}, `b: domain: duplicate domain "a": it is already defined at a: domain`, "a=loaded b=stale", "a=2 b=6", true},
		{"a new resource takes the domain of a bad one", []Resource{bad("a", "a"), resourceOf("n", "a", 9)}, "a: descriptors[0].kye: ", "a=rejected n=loaded", "a=9", false},
		{"an empty set", nil, "", "", "", false},
		{"again", nil, "", "", "", true},
	} {
		before := s.last.Tree
		r, err := s.Apply(step.set)
		if step.err == "" && err != nil || step.err != "" && (err == nil || !strings.HasPrefix(err.Error(), step.err)) {
			t.Errorf("%s: %v, want %s", step.what, err, step.err)
		}
		if got := statesOf(s); got != step.states {
			t.Errorf("%s: %s, want %s", step.what, got, step.states)
		}
		got := "none"
		if r.Tree != nil {
			var all []string
			for _, rule := range r.Tree.Rules {
				all = append(all, fmt.Sprintf("%s=%d", rule.Domain, rule.Limits[0].Requests))
			}
			slices.Sort(all)
			got = strings.Join(all, " ")
		}
		if got != step.rules || (r.Tree == before && before != nil) != step.same || r.Changed == step.same && r.Tree != nil {
			t.Errorf("%s: %q in force, want %q; changed %t, the same tree %t", step.what, got, step.rules, r.Changed, r.Tree == before)
		}
	}
	said := log.take()
	for _, want := range []string{
		`level=ERROR msg="rule resource rejected, none of it is active" resource=z`, `level=ERROR msg="rule resource rejected, its last good version stays active" resource=a`,
		`level=WARN msg="a reload drops many rules" domains="[c: 1 of 1]"`,
		`level=WARN msg="no rules are active: the server has removed all of them`,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the log does not say %s:\n%s", want, said)
		}
	}
	goneIs(t, registry, "0", "1") // an empty set takes effect, and the metric shows it
	if _, err := s.Apply([]Resource{resourceOf("a", "a", 2)}); err != nil {
		t.Error(err)
	}
	goneIs(t, registry, "0", "0")
}

func TestResourceValues(t *testing.T) {
	limit := func(more ...yamlform.Pair) Resource {
		r := resourceOf("r", "d", 1)
		r.Sum = sum{} // makes each resource count as new
		d := r.Rules[1].Value.([]any)[0].(yamlform.Pairs)
		r.Rules[1].Value.([]any)[0] = append(d, more...)
		return r
	}
	s := NewResources(ResourceOptions{Logger: new(logged).logger()})
	result, err := s.Apply([]Resource{limit(yamlform.Pair{Key: "metadata", Value: yamlform.Pairs{
		{Key: "whole", Value: 7.0}, {Key: "large", Value: 1e300}, {Key: "part", Value: -0.5}, {Key: "none", Value: nil},
		{Key: "yes", Value: true}, {Key: "text", Value: "7"}, {Key: "<<", Value: "merge"}, {Key: "list", Value: []any{uint32(1), yamlform.Pairs{}}},
	}})})
	must(t, err)
	want := map[string]any{"whole": 7, "large": 1e300, "part": -0.5, "none": nil, "yes": true, "text": "7", "<<": "merge", "list": []any{1, map[string]any{}}}
	if diff := cmp.Diff(want, result.Tree.Rules[0].Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if got := result.Tree.Rules[0].Position; got != (descriptor.Position{File: "r: descriptors[0]"}) {
		t.Errorf("position %+v", got)
	}
	for want, item := range map[string]yamlform.Pair{
		"r: descriptors[0].metadata.n: `metadata` may hold":                                        {Key: "metadata", Value: yamlform.Pairs{{Key: "n", Value: math.NaN()}}},
		"r: descriptors[0].metadata.i: `metadata` may hold":                                        {Key: "metadata", Value: yamlform.Pairs{{Key: "i", Value: math.Inf(-1)}}},
		"r: descriptors[0].metadata.t: `metadata` may hold":                                        {Key: "metadata", Value: yamlform.Pairs{{Key: "t", Value: time.Second}}},
		"r: descriptors[0].key: key `key` twice in one map: the first is at r: descriptors[0].key": {Key: "key", Value: "k"},
		"r: elsewhere.kye: unknown key `kye`: did you mean `key`?":                                 {Key: "descriptors", Value: []any{yamlform.Pairs{{Key: "kye", Path: "elsewhere.kye"}}}},
		"r: elsewhere: `shadow_mode` must be true or false, not a list":                            {Key: "shadow_mode", Value: []any{}, Path: "elsewhere"},
	} {
		if _, err := s.Apply([]Resource{limit(item)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", item, err, want)
		}
	}
}

// A set with very many mistakes is rejected with a message of bounded size.
func TestRejectionsAreShort(t *testing.T) {
	r := resourceOf("r", "d", 1)
	list := make([]any, 3000)
	for i := range list {
		list[i] = yamlform.Pairs{{Key: strings.Repeat("x", 5000), Value: ""}}
	}
	r.Rules[1].Value = list
	_, err := NewResources(ResourceOptions{Logger: new(logged).logger()}).Apply([]Resource{r})
	if err == nil || len(err.Error()) > 2*rejectionBytes || !strings.HasSuffix(err.Error(), "more errors") {
		t.Errorf("%d bytes: %.200s", len(err.Error()), err)
	}
}

// The cost of a set grows with its size, not with its square, even if all resources have one name and one domain.
// Allocations are the cost here: their number does not depend on how busy the machine is.
func TestManyResourcesOfOneNameAndDomain(t *testing.T) {
	const many = 2000
	cost := func(of func(i int) Resource) float64 {
		set := make([]Resource, many)
		for i := range set {
			set[i] = of(i)
			set[i].Rules[1].Value.([]any)[0].(yamlform.Pairs)[0].Value = fmt.Sprint("k", i)
		}
		return testing.AllocsPerRun(1, func() {
			result, err := NewResources(ResourceOptions{MergeDomains: true, Logger: new(logged).logger()}).Apply(set)
			if err != nil || len(result.Tree.Rules) != many || result.InUse != many {
				t.Fatalf("%d rules of %d resources: %v", len(result.Tree.Rules), result.InUse, err)
			}
		})
	}
	manyDomains := cost(func(i int) Resource { return resourceOf(fmt.Sprint("r", i), fmt.Sprint("d", i), 1) })
	oneDomain := cost(func(int) Resource { return resourceOf("r", "d", 1) })
	if oneDomain > 2*manyDomains { // about as many; hundreds of times as many if it grows with the square
		t.Errorf("%d resources allocate %v times, and %v times with one name and domain", many, manyDomains, oneDomain)
	}
	t.Logf("%v and %v allocations", manyDomains, oneDomain)
}

// A domain of many resources has one error for each setting that differs.
func TestOneErrorForEachOtherSetting(t *testing.T) {
	set := make([]Resource, 100)
	for i := range set {
		set[i] = resourceOf(fmt.Sprintf("r%03d", i), "d", 1)
		set[i].Rules[1].Value.([]any)[0].(yamlform.Pairs)[0].Value = fmt.Sprint("k", i)
		admission := "all_or_nothing"
		if i == len(set)-1 {
			admission = "independent"
		}
		set[i].Rules = append(set[i].Rules, yamlform.Pair{Key: "admission", Value: admission})
	}
	_, err := NewResources(ResourceOptions{MergeDomains: true, Logger: new(logged).logger()}).Apply(set)
	if err == nil || strings.Count(err.Error(), "another `admission`") != 1 || strings.Contains(err.Error(), "more errors") {
		t.Errorf("%v", err)
	}
}
