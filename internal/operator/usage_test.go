package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/usage"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// noSketches are sketches that cannot be read.
type noSketches struct{ usage.MemorySketches }

func (*noSketches) Read(context.Context, int64, int, []uint32) ([][]uint32, error) {
	return nil, errors.New("out of order")
}

func TestHistory(t *testing.T) {
	perYear := func(name string, n uint64, a descriptor.Algorithm) descriptor.Limit {
		return descriptor.Limit{Name: name, Requests: n, Burst: n, Algorithm: a, Window: descriptor.Window{Unit: descriptor.Year}}
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "k", Rule: &descriptor.Rule{Usage: true, Limits: []descriptor.Limit{perYear("few", 2, descriptor.FixedWindow), perYear("many", 100, descriptor.TokenBucket)}}},
		{Key: "quiet", Rule: &descriptor.Rule{Limits: []descriptor.Limit{perYear("", 2, descriptor.FixedWindow)}}},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, sketches := range map[string]usage.Sketches{"answers": new(usage.MemorySketches), "fails": new(noSketches)} {
		t.Run(name, func(t *testing.T) {
			index := usage.New(usage.Options{Store: new(usage.Memory), Sketches: sketches})
			l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), Usage: index})
			l.Swap(tree, limiter.Settings{})
			for _, hits := range []uint64{2, 3, 0} { // the last one is a peek
				req := &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{Entries: []descriptor.Entry{{Key: "k", Value: "v"}}, HasHits: true, Hits: hits}}}
				if err := l.Decide(t.Context(), time.Now(), req, &limiter.Decision{}); err != nil {
					t.Fatal(err)
				}
			}
			r := start(t, Options{Usage: index, Counters: l, Rules: Rules{Tree: l.Tree}, Access: Access{Tokens: owners{annsToken: "ann read"}}, Bounds: Bounds{MaxEntries: 2, MaxTextBytes: 10}})
			client, ctx := adminv1.NewUsageServiceClient(r.admin), with(within(t), "Bearer "+annsToken)
			ask := func(entries ...string) (*adminv1.UsageServiceHistoryResponse, error) {
				return client.History(ctx, &adminv1.UsageServiceHistoryRequest{Domain: "d", Entries: kv(entries...)})
			}
			got, err := ask("k=v")
			if name == "fails" {
				if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "out of order") {
					t.Errorf("%v, %v", got, err)
				}
				return
			}
			if err != nil || len(got.GetCounters()) != 2 || got.GetRule().GetPath() != "d.k" || got.GetReason() != "" {
				t.Fatalf("%v, %v", got, err)
			}
			var sums []uint64
			for _, c := range got.GetCounters() {
				if len(c.GetMinutes()) != 60 || c.GetWords() == "" || len(c.GetLimit().GetCounterKey()) == 0 {
					t.Errorf("%v", c)
				}
				allowed, refused := uint64(0), uint64(0)
				for _, m := range c.GetMinutes() {
					allowed, refused = allowed+m.GetAllowed(), refused+m.GetRefused()
				}
				sums = append(sums, allowed, refused)
			}
			if want := []uint64{2, 3, 5, 0}; !slices.Equal(sums, want) {
				t.Errorf("%d allowed and refused by counter, want %d", sums, want)
			}
			for entries, want := range map[string]string{"quiet=v": "it needs usage: true", "none=v": "entry 1"} {
				if got, err := ask(entries); err != nil || !strings.Contains(got.GetReason(), want) || len(got.GetCounters()) != 0 {
					t.Errorf("%s: %v, %v", entries, got, err)
				}
			}
			for _, entries := range [][]string{nil, {"k=v", "k=v", "k=v"}, {"k=0123456789a"}} {
				if got, err := ask(entries...); status.Code(err) != codes.InvalidArgument {
					t.Errorf("%q: %v, %v", entries, got, err)
				}
			}
			if _, err := client.History(ctx, &adminv1.UsageServiceHistoryRequest{Entries: kv("k=v")}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("no domain: %v", err)
			}
		})
	}
}

// The list finds what an entry counts as: it does not matter in which case a caller is written.
func TestUsageOfGroupedValues(t *testing.T) {
	limits := []descriptor.Limit{{Requests: 9, Window: descriptor.Window{Unit: descriptor.Year}}}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{
		{Key: "u", FoldCase: true, Rule: &descriptor.Rule{Usage: true, Limits: limits}},
		{Key: "path", Children: []descriptor.NodeSpec{{Key: "u", Rule: &descriptor.Rule{Usage: true, Limits: slices.Clone(limits)}}}},
	}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	index := usage.New(usage.Options{Store: new(usage.Memory), Sketches: new(usage.MemorySketches)})
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
