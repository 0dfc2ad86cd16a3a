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
			r := start(t, Options{Usage: index, Counters: l, Access: Access{Tokens: owners{annsToken: "ann read"}}, Bounds: Bounds{MaxEntries: 2, MaxTextBytes: 10}})
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
