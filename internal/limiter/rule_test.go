package limiter_test

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// anyRule excludes the deciding rule from a comparison.
var anyRule = cmpopts.IgnoreFields(limiter.Status{}, "Rule")

// A status names the rule that decided, if one did.
func TestStatusTellsItsRule(t *testing.T) {
	f := newFixture(t, limiter.Settings{},
		perMinute("k", "", 9),
		perMinute("named", "", 9, func(r *descriptor.Rule) { r.Name = "standard" }),
		perMinute("gold", "", 9, func(r *descriptor.Rule) { r.Replaces = []string{"standard"} }),
		perMinute("shadow", "", 1, shadow),
		descriptor.NodeSpec{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	)
	limited := request(1, "k=a")
	limited.Descriptors[0].HasLimit = true
	limited.Descriptors[0].Limit = limiter.RequestLimit{Requests: 1, Unit: int32(descriptor.Hour)}
	for _, c := range []struct {
		what string
		req  *limiter.Request
		want []string // the path of each descriptor's rule; "": none
	}{
		{"alone", request(1, "k=a", "nobody=a"), []string{"d.k", ""}},
		{"over the limit", request(10, "k=a"), []string{"d.k"}},
		{"replaced", request(1, "named=a", "gold=a"), []string{"", "d.gold"}},
		{"in shadow mode", request(5, "shadow=a"), []string{"d.shadow"}},
		{"unlimited", request(1, "free=a"), []string{"d.free"}},
		{"limited", limited, []string{""}},
	} {
		for i, s := range f.decide(c.req).Statuses {
			got := ""
			if s.Rule != nil {
				got = s.Rule.Path
			}
			if got != c.want[i] {
				t.Errorf("%s: the rule of descriptor %d is %q, want %q", c.what, i, got, c.want[i])
			}
		}
	}
}
