package config

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// resourceOf is a resource with one rule.
func resourceOf(name, domain string, requests uint32) Resource {
	return Resource{Name: name, Sum: sumOf([]byte(name + domain + string(rune(requests)))), Rules: Fields{
		{Key: "domain", Value: domain},
		{Key: "descriptors", Value: []any{
			Fields{{Key: "key", Value: "k"}, {Key: "rate_limit", Value: Fields{{Key: "unit", Value: "day"}, {Key: "requests_per_unit", Value: requests}}}},
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

func TestResourcesAreTakenOverAsAWhole(t *testing.T) {
	log := new(logged)
	s := NewResources(ResourceOptions{Logger: log.logger()})
	if got := statesOf(s); got != "" {
		t.Errorf("before anything: %s", got)
	}
	bad := resourceOf("z", "z", 1)
	bad.Rules[1].Value.([]any)[0].(Fields)[0].Key = "kye"
	if r, err := s.Apply([]Resource{bad, resourceOf("b", "b", 1)}); err == nil || r.Tree != nil ||
		err.Error() != "z: descriptors[0].kye: unknown key `kye`: did you mean `key`?" {
		t.Errorf("a first bad set: %v %v", r, err)
	}
	if got := statesOf(s); got != "b=rejected z=rejected" {
		t.Errorf("a first bad set: %s", got)
	}

	first, err := s.Apply([]Resource{resourceOf("b", "b", 1), resourceOf("a", "a", 2)})
	must(t, err)
	if !first.Changed || first.InUse != 2 || len(first.Tree.Rules) != 2 || statesOf(s) != "a=loaded b=loaded" {
		t.Errorf("a good set: %+v, %s", first, statesOf(s))
	}
	since := s.Files()[0].Since

	again, err := s.Apply([]Resource{resourceOf("a", "a", 2), resourceOf("b", "b", 1)})
	must(t, err)
	if again.Changed || again.Tree != first.Tree {
		t.Error("the same set is another one")
	}

	if _, err := s.Apply([]Resource{resourceOf("a", "a", 3), bad, {Name: "c", Err: errors.New("cannot be decoded")}}); err == nil ||
		!strings.HasPrefix(err.Error(), "c: cannot be decoded; z: descriptors[0].kye: ") {
		t.Errorf("a bad set: %v", err)
	}
	if got := statesOf(s); got != "a=stale b=stale c=rejected z=rejected" {
		t.Errorf("a bad set: %s", got)
	}
	if f := s.Files()[0]; f.Rules != 1 || !cmp.Equal(f.Domains, []string{"a"}) || f.Since.Before(since) ||
		!cmp.Equal(f.Errors, []string{"a: not taken over, because it came together with bad ones: `c` and `z`"}) {
		t.Errorf("what came together with a bad one: %+v", f)
	}

	// Unlike a folder, a set has no first owner of a domain: it is wrong as a whole.
	if _, err := s.Apply([]Resource{resourceOf("a", "a", 2), resourceOf("b", "a", 1)}); err == nil ||
		!strings.Contains(err.Error(), `b: domain: domain "a" twice, it belongs to a: domain`) {
		t.Errorf("a domain twice: %v", err)
	}

	empty, err := s.Apply(nil)
	must(t, err)
	if !empty.Changed || empty.Tree == nil || len(empty.Tree.Rules) != 0 || statesOf(s) != "" {
		t.Errorf("an empty set: %+v, %s", empty, statesOf(s))
	}
	if text := log.take(); !strings.Contains(text, "rule resource removed") || !strings.Contains(text, "resource=z") {
		t.Errorf("the log:\n%s", text)
	}
}

func TestResourceValues(t *testing.T) {
	limit := func(more ...Field) Resource {
		r := resourceOf("r", "d", 1)
		r.Sum = sum{} // each is another one
		d := r.Rules[1].Value.([]any)[0].(Fields)
		r.Rules[1].Value.([]any)[0] = append(d, more...)
		return r
	}
	s := NewResources(ResourceOptions{Logger: new(logged).logger()})
	result, err := s.Apply([]Resource{limit(Field{Key: "metadata", Value: Fields{
		{Key: "whole", Value: 7.0}, {Key: "large", Value: 1e300}, {Key: "part", Value: -0.5}, {Key: "none", Value: nil},
		{Key: "yes", Value: true}, {Key: "text", Value: "7"}, {Key: "<<", Value: "merge"}, {Key: "list", Value: []any{uint32(1), Fields{}}},
	}})})
	must(t, err)
	want := map[string]any{"whole": 7, "large": 1e300, "part": -0.5, "none": nil, "yes": true, "text": "7", "<<": "merge", "list": []any{1, map[string]any{}}}
	if diff := cmp.Diff(want, result.Tree.Rules[0].Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if got := result.Tree.Rules[0].Position; got != (descriptor.Position{File: "r: descriptors[0]"}) {
		t.Errorf("position %+v", got)
	}
	for want, item := range map[string]Field{
		"r: descriptors[0].metadata.n: `metadata` may hold":                                        {Key: "metadata", Value: Fields{{Key: "n", Value: math.NaN()}}},
		"r: descriptors[0].metadata.i: `metadata` may hold":                                        {Key: "metadata", Value: Fields{{Key: "i", Value: math.Inf(-1)}}},
		"r: descriptors[0].metadata.t: `metadata` may hold":                                        {Key: "metadata", Value: Fields{{Key: "t", Value: time.Second}}},
		"r: descriptors[0].key: key `key` twice in one map: the first is at r: descriptors[0].key": {Key: "key", Value: "k"},
		"r: elsewhere.kye: unknown key `kye`: did you mean `key`?":                                 {Key: "descriptors", Value: []any{Fields{{Key: "kye", Path: "elsewhere.kye"}}}},
		"r: elsewhere: `shadow_mode` must be true or false, this is a list":                        {Key: "shadow_mode", Value: []any{}, Path: "elsewhere"},
	} {
		if _, err := s.Apply([]Resource{limit(item)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", item, err, want)
		}
	}
}

// A set with very many mistakes is refused with a text of bounded size.
func TestRefusalsAreShort(t *testing.T) {
	r := resourceOf("r", "d", 1)
	list := make([]any, 3000)
	for i := range list {
		list[i] = Fields{{Key: strings.Repeat("x", 5000), Value: ""}}
	}
	r.Rules[1].Value = list
	_, err := NewResources(ResourceOptions{Logger: new(logged).logger()}).Apply([]Resource{r})
	if err == nil || len(err.Error()) > 2*refusalBytes || !strings.HasSuffix(err.Error(), "more errors") {
		t.Errorf("%d bytes: %.200s", len(err.Error()), err)
	}
}
