package descriptor_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Keys of a rule are known regardless of the values; a misspelt key, one too many and one too few are not.
func TestHasKeys(t *testing.T) {
	rule := func() *descriptor.Rule {
		return &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 1, Window: descriptor.Window{Unit: descriptor.Hour}}}}
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "plan", Value: "free", Rule: rule(), Children: []descriptor.NodeSpec{{Key: "customer", Rule: rule()}}},
		{Key: "path", Children: []descriptor.NodeSpec{{Key: "method", Value: "GET", Rule: rule()}}},
		{Key: "exempt", Value: "yes"}, // without a limit: known, and passes
		{Key: "x-*", Rule: rule()},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	entries := func(keys ...string) (all []descriptor.Entry) {
		for _, k := range keys {
			all = append(all, descriptor.Entry{Key: k, Value: "yes"})
		}
		return all
	}
	for _, c := range []struct {
		keys []string
		want bool
	}{
		{[]string{"plan"}, true},
		{[]string{"plan", "customer"}, true},
		{[]string{"path", "method"}, true},
		{[]string{"exempt"}, true},
		{[]string{"x-anything"}, true},
		{[]string{"plna"}, false},
		{[]string{"path"}, false},
		{[]string{"plan", "customer", "path"}, false},
		{[]string{"planc", "ustomer"}, false},
		{nil, false},
	} {
		if got := tree.Domain("d").HasKeys(entries(c.keys...)); got != c.want {
			t.Errorf("%v: %v, want %v", c.keys, got, c.want)
		}
	}
	if tree.Domain("unknown").HasKeys(entries("plan")) {
		t.Error("a domain without rules has keys")
	}
}
