package rulecheck

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

func TestBucketOrder(t *testing.T) {
	const (
		limit = "rate_limit: {unit: day, requests_per_unit: 5}"
		plans = "- {key: plan, descriptors: [{key: user, " + limit + "}]}\n"
	)
	for _, c := range []struct {
		order, rules string
		want         []string
	}{
		{"[plan, user]", plans, nil},
		{"[user]", plans, nil},
		{"[user, plan]", plans, []string{"a.yaml:2:31 bucket-order"}},
		{"[user, plan]", plans + "- {key: user, descriptors: [{key: plan, " + limit + "}]}\n", nil},
		{"[path, plan]", plans + "- {key: path, " + limit + "}\n", nil},
		{"[plan, path, user]", plans, []string{"a.yaml:2:31 bucket-order"}},
		{"[path]", "- {key: pa*, " + limit + "}\n", nil},
	} {
		got := brief(checkText("domain: d\nquota_buckets: {order: "+c.order+"}\ndescriptors:\n"+c.rules), false)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.order, diff)
		}
	}
	both := checkText("domain: d\nquota_buckets: {order: [plan, user]}\n", "domain: d\ndescriptors:\n"+plans)
	if got := brief(both, false); len(got) > 0 {
		t.Errorf("rules in another file of the domain: %q", got)
	}
}

// Where check warns about a key, no bucket whose id has it, or has it with the key before it, matches a rule.
func TestBucketOrderIsSo(t *testing.T) {
	keys := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation(keys).Draw(t, "order")[:rapid.IntRange(1, 4).Draw(t, "named")]
		text := "domain: d\nquota_buckets:\n  order:\n"
		for _, key := range order {
			text += "  - " + key + "\n"
		}
		text += "descriptors:\n" + nodesText(t, keys, "", 3)
		warned := make(map[int]bool)
		for _, f := range checkText(text) {
			if f.Code == codeBucketOrder {
				warned[f.Line-4] = true
			}
		}
		tree, errs := config.Compile([]config.File{{Name: "a.yaml", Data: []byte(text)}}, config.CompileOptions{})
		if len(errs) > 0 {
			t.Fatal(errs, text)
		}
		d := tree.Domain("d")
		matched := make(map[string]bool) // keys, and two keys, of ids that match
		for set := range 1 << len(keys) {
			var id []descriptor.Entry
			for i, key := range keys {
				if set&(1<<i) != 0 {
					id = append(id, descriptor.Entry{Key: key, Value: "v"})
				}
			}
			if d.OrderBucket(id); d.Match(id) == nil {
				continue
			}
			for _, e := range id {
				matched[e.Key] = true
				for _, other := range id {
					matched[e.Key+other.Key] = true
				}
			}
		}
		for i, key := range order {
			lost := !matched[key] || slices.ContainsFunc(order[:i], func(before string) bool { return !matched[before+key] })
			if warned[i] && !lost {
				t.Fatalf("a warning of %s, and buckets with it match:\n%s", key, text)
			}
		}
	})
}

// nodesText draws a list of descriptors without values.
func nodesText(t *rapid.T, keys []string, indent string, levels int) string {
	text := ""
	for _, key := range rapid.SliceOfNDistinct(rapid.SampledFrom(keys), 1, 3, rapid.ID).Draw(t, "keys") {
		text += indent + "- key: " + key + "\n"
		if levels == 1 || rapid.Bool().Draw(t, "limit") {
			text += indent + "  rate_limit: {unit: day, requests_per_unit: 5}\n"
		}
		if levels > 1 && rapid.Bool().Draw(t, "deeper") {
			text += indent + "  descriptors:\n" + nodesText(t, keys, indent+"  ", levels-1)
		}
	}
	return text
}
