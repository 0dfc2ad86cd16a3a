package matrix

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/lease"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events/destination"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// grade is how closely answers must match those of plain counters in memory.
type grade uint8

const (
	same    grade = iota // every answer in full, and everything that operators see
	decides              // every answer in full; operators see the way itself differently
	// whether each request passes, and the remaining hits when it does; remembered denials repeat older numbers
	verdict
	within // never more than the limit
)

// way is a way to count.
type way struct {
	name, column string
	grade        grade
	least        uint64 // percentage of requests that must pass at least; only for the grade within
	// percentage that may pass in addition where rules share a counter: denied hits count, and replicas learn of them late
	late  int
	loose func(*descriptor.Tree) bool // rules for which the grade is within; nil: none

	top, inLimit string // keys that the rules need, in the domain and in each limit
	times        uint64 // limits and requests are this many times as large; 0: 1
	// replaces the fields below, for a way that needs a separate test
	run      func(t *testing.T, f *feature) (why string)
	settings limiter.Settings
	stores   func(t *testing.T, prefix string) stores
}

// uncounted makes every way ignore denied hits. Otherwise, some ways would count them, but not those that the denial
// cache denies.
const uncounted = "admission: all_or_nothing"

// stores are the counters of a way: one store for each replica.
type stores struct {
	replicas []backend.Store
	local    backend.Store
	keys     descriptor.KeyBuilder
	rules    func(regions.Resolver) // receives the rules of the region that counts; nil without a second region
	// whether the way was used, for example: a denial was remembered, a permit was taken in advance. Nil means always
	did func() bool
}

func one(s backend.Store) stores { return stores{replicas: []backend.Store{s}} }

// ways returns the table of the ways that count with a Limiter. Package ratelimit and quota buckets have separate tests
// below.
func ways(t *testing.T) []way {
	server, cluster := redistest.Start(t), redistest.StartCluster(t, redistest.Setup{})
	single := dial(t, redisconn.Options{URL: server.Addr})
	slots := dial(t, redisconn.Options{Type: "CLUSTER", URL: strings.Join(cluster.Addrs(), ",")})
	inRedis := func(client goredis.UniversalClient, lyft, apart bool) func(*testing.T, string) stores {
		return func(t *testing.T, prefix string) stores {
			s := redis.New(redis.Options{Client: client, Timeout: time.Minute, CallerClock: true, LyftKeys: lyft, Sharded: apart})
			t.Cleanup(func() { _ = s.Close() })
			all := one(s)
			if all.keys.Prefix = prefix; lyft {
				all.keys.Format = descriptor.KeysLyft
			}
			return all
		}
	}
	return []way{
		{name: "Redis", column: "Redis", stores: inRedis(single, false, false)},
		{name: "a Redis Cluster", column: "Cluster", grade: decides, stores: inRedis(slots, false, false)},
		{name: "a Redis behind a proxy", column: "Proxy", grade: decides, stores: inRedis(single, false, true)},
		{name: "Redis with REDIS_KEY_FORMAT=lyft", column: "lyft keys", stores: inRedis(single, true, false)},
		{name: "the denial cache", column: "denial cache", grade: verdict, top: uncounted, stores: func(*testing.T, string) stores {
			c := overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})})
			return stores{replicas: []backend.Store{c}, did: func() bool { return c.Hits() > 0 }}
		}},
		{name: "two replicas", column: "two replicas", grade: verdict, top: uncounted, stores: func(*testing.T, string) stores {
			var caches [2]*overlimit.Cache
			told := 0
			shared := memory.New(memory.Options{})
			for i := range caches {
				caches[i] = overlimit.New(overlimit.Options{Store: shared, Refunded: func(key []byte) { told++; caches[1-i].Forget(key) }})
			}
			return stores{replicas: []backend.Store{caches[0], caches[1]}, did: func() bool { return told > 0 && caches[0].Hits() > 0 && caches[1].Hits() > 0 }}
		}},
		{name: "`lease: true`", column: "leases", grade: verdict, least: 85, loose: leasesLoosely, inLimit: ", lease: true", times: 10, stores: func(*testing.T, string) stores {
			l := lease.New(lease.Options{Store: memory.New(memory.Options{})})
			return stores{replicas: []backend.Store{l}, did: func() bool { return l.Len() > 0 }}
		}},
		{name: "`on_error: local`", column: "`local`", grade: decides, settings: limiter.Settings{OnError: descriptor.OnErrorLocal}, stores: func(*testing.T, string) stores {
			s := one(gone{})
			s.local = memory.New(memory.Options{})
			return s
		}},
		{name: "a limit whose home is another region", column: "other region", grade: same, loose: overridable, inLimit: ", regions: {home: eu}", stores: elsewhere(t, false)},
		{name: "permits of another region", column: "other region, leased", grade: within, least: 70, late: 5, inLimit: ", lease: true, regions: {home: eu}", times: 10, stores: elsewhere(t, true)},
		{name: "package ratelimit", column: "library", run: inLibrary},
		{name: "quota buckets", column: "quota buckets", grade: within, run: asQuotaBuckets},
		{name: "memory that is full", column: "full memory", grade: within, stores: func(t *testing.T, _ string) stores {
			s := memory.New(memory.Options{MaxCounters: 1})
			fill(t, s)
			return stores{replicas: []backend.Store{s}, did: func() bool { return s.Len() == 1 }}
		}},
	}
}

// leasesLoosely reports whether leases hold back a part of a limit. They do for a bucket, a log, and a counter that
// several rules use.
func leasesLoosely(tree *descriptor.Tree) bool {
	for _, r := range tree.Rules {
		for i := range r.Limits {
			if l := &r.Limits[i]; r.CountedWith() != "" || !l.WindowEnds() && !l.Interval {
				return true
			}
		}
	}
	return false
}

// overridable reports whether customers may have overrides. A customer whose override blocks is denied without asking
// the home.
func overridable(tree *descriptor.Tree) bool {
	return slices.ContainsFunc(tree.Rules, func(r *descriptor.Rule) bool { return r.Overridable() })
}

// gone is a store that does not answer.
type gone struct{ backend.Store }

func (gone) Start(_ context.Context, _ time.Time, _ *backend.Batch, r *backend.Request, _ func(error)) (bool, error) {
	backend.Fail(r.Outcomes)
	return true, backend.ErrUnavailable
}

func (gone) Peek(context.Context, time.Time, *backend.Request) error { return backend.ErrUnavailable }

func dial(t *testing.T, o redisconn.Options) goredis.UniversalClient {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	c, err := redisconn.Dial(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// fill uses up the capacity of a store for the time of a test.
func fill(t *testing.T, s *memory.Store) {
	t.Helper()
	l := &descriptor.Limit{Requests: 1, Window: descriptor.Window{Unit: descriptor.Year}}
	r := backend.Request{Takes: []backend.Take{{Key: []byte("other"), Limit: l, Rule: &descriptor.Rule{Domain: "other"}, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	if err := backend.Await(t.Context(), s, start, &r); err != nil {
		t.Fatal(err)
	}
}

// system is the service from outside: one or more replicas with a way to count.
type system struct {
	*testing.T
	times    int64
	did      func() bool
	replicas []*limiter.Limiter
	turn     int
	tree     *descriptor.Tree
	index    *usage.Index
	sink     *events.Sink
	out      *bytes.Buffer
	registry *prometheus.Registry
}

// newSystem returns a reason if the rules cannot be counted this way.
func newSystem(t *testing.T, f *feature, w *way, prefix string) (*system, string) {
	t.Helper()
	tree, why := treeOf(f, w)
	if tree == nil {
		return nil, why
	}
	s := &system{T: t, tree: tree, index: usage.New(usage.Options{Store: new(usage.Memory)}), out: new(bytes.Buffer), registry: prometheus.NewRegistry()}
	s.sink = events.New(events.Options{To: destination.Lines(s.out), Values: true})
	all := w.stores(t, prefix)
	s.times, s.did = int64(max(w.times, 1)), all.did
	for i, store := range all.replicas {
		o := limiter.Options{Store: store, Local: all.local, Keys: all.keys, Usage: s.index, Events: s.sink}
		if i == 0 {
			o.Metrics = prom.With(s.registry)
		}
		l := limiter.New(o)
		settings := w.settings
		settings.Headers, settings.Metadata = descriptor.HeadersIETF|descriptor.HeadersRetryAfter, true
		l.Swap(tree, settings)
		if all.rules != nil {
			all.rules(l)
		}
		s.replicas = append(s.replicas, l)
	}
	return s, ""
}

// treeOf returns the rules of a feature, or why check rejects them.
func treeOf(f *feature, w *way) (*descriptor.Tree, string) {
	tree, errs := config.Compile([]config.File{{Name: "rules.yaml", Data: []byte(f.file(w))}}, config.CompileOptions{})
	if len(errs) > 0 {
		return nil, errs[0].Msg
	}
	return tree, ""
}

// answered is the longest real time of a request on a busy machine.
const answered = time.Minute

// decide asks one replica after the other.
func (s *system) decide(now time.Time, req *limiter.Request) (d limiter.Decision, text string) {
	s.Helper()
	s.turn++
	ctx, cancel := context.WithTimeout(s.Context(), answered)
	defer cancel()
	err := s.replicas[s.turn%len(s.replicas)].Decide(ctx, now, req, &d)
	if ctx.Err() != nil {
		s.Errorf("a request has no answer: %+v", req)
	}
	if err != nil {
		return d, "error"
	}
	return d, textOf(&d)
}

// verdictOf returns whether a request passes and, if it does, the remaining hits.
func verdictOf(d *limiter.Decision) string {
	text := d.Code.String()
	for i := range d.Statuses {
		if d.Code == limiter.OK {
			text += fmt.Sprintf(" left=%d", d.Statuses[i].Remaining)
		}
	}
	return text
}

// textOf returns a decision in full, as the client gets it.
func textOf(d *limiter.Decision) string {
	var b strings.Builder
	fmt.Fprint(&b, d.Code)
	for i := range d.Statuses {
		s := &d.Statuses[i]
		fmt.Fprintf(&b, " [%s %s %d left=%d until=%s delay=%s penalised=%t override=%t]", s.Code, s.Limit.Name, s.Limit.Requests, s.Remaining, s.UntilReset(), s.Delay, s.Penalised, s.Overridden)
	}
	for i := range d.Reservations {
		fmt.Fprintf(&b, " {%d reserved=%d}", d.Reservations[i].Result, d.Reservations[i].Reserved)
	}
	for _, h := range slices.Concat(d.Headers, d.Upstream) {
		if h.Key != "x-ratelimit-degraded" {
			fmt.Fprintf(&b, " %s=%s", h.Key, h.Value)
		}
	}
	return b.String()
}

// looks returns everything that operators see: the counters of each customer, in full and in short (left), and the list
// of usage, events and metrics.
func (s *system) looks(now time.Time, f *feature) (counters, left, rest []string) {
	s.Helper()
	s.index.Flush(s.Context(), now)
	for _, caller := range f.callers {
		entries := entriesOf(caller)
		c, err := s.replicas[0].Peek(s.Context(), now, "d", &limiter.Descriptor{Entries: entries})
		if err != nil {
			counters = append(counters, fmt.Sprintf("peek %s: error", caller))
			continue
		}
		for i := range c.List {
			k := &c.List[i]
			left = append(left, fmt.Sprintf("peek %s: %s left=%d", caller, k.Limit.Name, k.Remaining))
			counters = append(counters, fmt.Sprintf("peek %s: %s %d used=%d left=%d kept=%d penalty=%s inactive=%t lifted=%t unenforced=%t", caller, k.Limit.Name, k.Limit.Requests, k.Used, k.Remaining, k.Kept, k.Penalty, k.Inactive, k.Lifted, k.Unenforced))
		}
		found, _, err := s.index.List(s.Context(), now, "d", [][]descriptor.Entry{{entries[len(entries)-1]}}, 0, 100)
		if err != nil {
			s.Fatal(err)
		}
		for _, e := range found {
			rest = append(rest, fmt.Sprintf("usage of %s: %v", caller, e))
		}
	}
	slices.Sort(rest)
	return counters, left, append(rest, append(s.events(), s.metrics()...)...)
}

// events returns the types and counts of the events so far.
func (s *system) events() (all []string) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if err := s.sink.Run(ctx); err != nil {
		s.Fatal(err)
	}
	for _, line := range strings.Split(s.out.String(), "\n") {
		if _, kind, ok := strings.Cut(line, `"type":"`); ok {
			kind, _, _ = strings.Cut(kind, `"`)
			all = append(all, "event "+kind)
		}
	}
	slices.Sort(all)
	return all
}

// metrics returns the metrics of rules and limits.
func (s *system) metrics() (all []string) {
	s.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.Fatal(err)
	}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "ratelimitd_rule") && !strings.HasPrefix(family.GetName(), "ratelimitd_limit") {
			continue
		}
		for _, m := range family.GetMetric() {
			all = append(all, strings.TrimSpace(family.GetName()+" "+m.String()))
		}
	}
	return all
}
