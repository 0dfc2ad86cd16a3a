package limiter_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// With NoDots, the dots in the names of statistics only separate the parts, wherever a part comes from: the domain, a
// rule or a request. Names that differ only in these dots are one statistic, and its numbers are their sum.
func TestStatisticsWithoutDots(t *testing.T) {
	rule := func() *descriptor.Rule {
		return &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 10, Window: descriptor.Window{Unit: descriptor.Day}}}}
	}
	detailed := rule()
	detailed.DetailedMetric = true
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "shop.example.com", Children: []descriptor.NodeSpec{
		{Key: "host", Value: "foo.bar", Rule: rule()},
		{Key: "path", Value: "/helloworld.Greeter/SayHello", Rule: rule()},
		{Key: "ver", ValueToMetric: true, Rule: rule()},
		{Key: "dm", Rule: detailed},
		{Key: "a.b", Rule: rule()},
		{Key: "a_b", Rule: rule()},
		{Key: "wild", Value: "api.example.*", Rule: rule()},
		{Key: "o", Value: "x.y", Children: []descriptor.NodeSpec{{Key: "i", Value: "10.0.0.1", Rule: rule()}}},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for noDots, want := range map[bool][]string{
		false: {
			"nobody.example", "shop.example.com.a.b", "shop.example.com.a_b", "shop.example.com.dm_1.2", "shop.example.com.host_foo.bar", "shop.example.com.o_x.y.i_10_0_0_1",
			"shop.example.com.own.key_v.w", "shop.example.com.path_/helloworld.Greeter/SayHello", "shop.example.com.ver_1.2.3", "shop.example.com.wild_api.example.*",
		},
		true: {
			"nobody_example", "shop_example_com.a_b", "shop_example_com.a_b", "shop_example_com.dm_1_2", "shop_example_com.host_foo_bar", "shop_example_com.o_x_y.i_10_0_0_1",
			"shop_example_com.own_key_v_w", "shop_example_com.path_/helloworld_Greeter/SayHello", "shop_example_com.ver_1_2_3", "shop_example_com.wild_api_example_*",
		},
	} {
		l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), NoDots: noDots})
		l.Swap(tree, limiter.Settings{})
		for _, d := range []limiter.Descriptor{
			{Entries: entries("host=foo.bar")}, {Entries: entries("path=/helloworld.Greeter/SayHello")}, {Entries: entries("ver=1.2.3")},
			{Entries: entries("dm=1.2")}, {Entries: entries("a.b")}, {Entries: entries("a_b")}, {Entries: entries("wild=api.example.org")},
			{Entries: entries("o=x.y", "i=10.0.0.1")},
			{Entries: entries("own.key=v.w"), HasLimit: true, Limit: limiter.RequestLimit{Requests: 5, Unit: int32(descriptor.Day)}},
		} {
			req := &limiter.Request{Domain: "shop.example.com", Descriptors: []limiter.Descriptor{d}}
			if err := l.Decide(t.Context(), noon, req, new(limiter.Decision)); err != nil {
				t.Fatal(err)
			}
		}
		req := &limiter.Request{Domain: "nobody.example", Descriptors: []limiter.Descriptor{{Entries: entries("k=v")}}}
		if err := l.Decide(t.Context(), noon, req, new(limiter.Decision)); err != nil {
			t.Fatal(err)
		}
		var got []string
		l.Statistics(func(path, stat string, n uint64) {
			if name, ok := strings.CutPrefix(path, "ratelimit.service.rate_limit."); ok && n == 1 && (stat == "total_hits" || stat == "domain_not_found") {
				got = append(got, name)
			}
		})
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("without dots: %v\n%s", noDots, diff)
		}
	}
}
