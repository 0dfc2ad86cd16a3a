package operator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// The list finds an entry under its grouped value: the letter case of a customer does not matter.
func TestUsageOfGroupedValues(t *testing.T) {
	limits := []descriptor.Limit{{Requests: 9, Window: descriptor.Window{Unit: descriptor.Year}}}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "u", FoldCase: true, Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{Usage: true}, Limits: limits}},
		{Key: "path", Children: []descriptor.NodeSpec{{Key: "u", Rule: &descriptor.Rule{RuleSettings: descriptor.RuleSettings{Usage: true}, Limits: slices.Clone(limits)}}}},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory)})
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index})
	l.Swap(tree, limiter.Settings{})
	for _, entries := range [][]descriptor.Entry{{{Key: "u", Value: "Ann"}}, {{Key: "path", Value: "/"}, {Key: "u", Value: "ann"}}, {{Key: "path", Value: "/"}, {Key: "u", Value: "ANN"}}} {
		if err := l.Decide(t.Context(), time.Now(), &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: entries}}}, &limiter.Decision{}); err != nil {
			t.Fatal(err)
		}
	}
	index.Flush(t.Context(), time.Now())
	r := start(t, Options{Usage: index, Counters: l, Rules: Rules{Tree: l.Tree}, Access: Access{Tokens: owners{annsToken: "ann read"}}, Bounds: Bounds{MaxEntries: 2, MaxTextBytes: 10}})
	client, ctx := adminv1.NewUsageServiceClient(r.admin), with(within(t), "Bearer "+annsToken)
	for where, want := range map[string][]string{
		"u=ann":        {"path=/ u=ann", "u=ann"},
		"u=ANN":        {"path=/ u=ANN", "u=ann"},
		"path=/ u=ANN": {"path=/ u=ANN"},
		"u=bob":        nil,
	} {
		var got []string
		for token, pages := "", 0; token != "" || pages == 0; pages++ {
			page, err := client.List(ctx, &adminv1.UsageServiceListRequest{Domain: "d", Where: kv(strings.Fields(where)...), PageToken: token})
			if err != nil || pages > 10 {
				t.Fatal(err, pages)
			}
			for _, u := range page.GetUsages() {
				var texts []string
				for _, e := range u.GetEntries() {
					texts = append(texts, e.GetKey()+"="+e.GetValue())
				}
				got = append(got, strings.Join(texts, " "))
			}
			token = page.GetNextPageToken()
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("where %s: %q, want %q", where, got, want)
		}
	}
	for _, token := range []string{"7", "x.1", "1.x", "-1.0"} {
		if _, err := client.List(ctx, &adminv1.UsageServiceListRequest{Domain: "d", Where: kv("u=ann"), PageToken: token}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("token %q: %v", token, err)
		}
	}
}
