package redissource_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// process is a source with its own goroutine and log, as in one replica of the service.
type process struct {
	*redissource.Source
	registry *prometheus.Registry
	client   goredis.UniversalClient
	stop     func()

	mu   sync.Mutex
	set  *override.Set
	news chan struct{} // closed at the next set
	log  servicetest.Log
}

func (p *process) apply(s *override.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = s
	close(p.news)
	p.news = make(chan struct{})
}

func (p *process) current() (*override.Set, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.set, p.news
}

// source makes a source that does not run yet.
func source(t *testing.T, o redisconn.Options, copyFile string) *process {
	t.Helper()
	p := &process{registry: prometheus.NewRegistry(), client: redisconntest.Connect(t, o), news: make(chan struct{})}
	p.Source = redissource.New(redissource.Options{
		Client: p.client, Prefix: "p:", Copy: copyFile, Metrics: prom.With(p.registry), Log: slog.New(slog.NewTextHandler(&p.log, nil)),
	})
	return p
}

// run runs it until the test ends or stop is called. It returns after the first attempt to read from Redis.
func (p *process) run(t *testing.T) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx, p.apply); err != nil {
			t.Error(err)
		}
	}()
	p.stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(p.stop)
	<-p.Tried()
	return p
}

func start(t *testing.T, r *redistest.Server, copyFile string) *process {
	t.Helper()
	return source(t, redisconn.Options{URL: r.Addr}, copyFile).run(t)
}

// until waits until the process has a set that is as wanted, and returns it.
func (p *process) until(t *testing.T, what string, ok func(*override.Set) bool) *override.Set {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		set, news := p.current()
		if set != nil && ok(set) {
			return set
		}
		select {
		case <-news:
		case <-late:
			t.Fatalf("not in time: %s; the process has %d overrides\n%s", what, set.Len(), p.log.String())
		}
	}
}

func (p *process) metric(t *testing.T, name string) float64 {
	t.Helper()
	families, err := p.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

func of(domain, value string) override.Identity {
	return override.Identity{Domain: domain, Rule: domain + ".k", Entries: []descriptor.Entry{{Key: "k", Value: value}}}
}

func set(identity override.Identity, requests uint64) override.Edit {
	return override.Edit{Override: override.Override{Identity: identity, Numbers: override.Numbers{Kind: override.Replace, Requests: requests}, Reason: "why"}}
}

func remove(identity override.Identity) override.Edit {
	return override.Edit{Override: override.Override{Identity: identity, Reason: "gone"}, Remove: true}
}

func (p *process) write(t *testing.T, edits ...override.Edit) []override.Override {
	t.Helper()
	written, err := p.Source.Write(t.Context(), "ann", edits)
	if err != nil {
		t.Fatal(err)
	}
	return written
}

// requests returns the numbers that a set has for each value of k in domain d.
func requests(s *override.Set) map[string]uint64 {
	all := make(map[string]uint64)
	for i, n := range s.Each() {
		all[i.Domain+" "+i.Entries[0].Value] = n.Requests
	}
	return all
}

func has(want map[string]uint64) func(*override.Set) bool {
	return func(s *override.Set) bool { return maps.Equal(requests(s), want) }
}

// A write by one replica is in the other's set within a second, and the records, the history and the metrics show it.
func TestWritesReachEveryProcess(t *testing.T) {
	r := redistest.Start(t)
	a, b := start(t, r, ""), start(t, r, "")
	b.until(t, "nothing", has(map[string]uint64{}))

	longest := time.Duration(0)
	step := func(what string, want map[string]uint64, edits ...override.Edit) []override.Override {
		t.Helper()
		written := a.write(t, edits...)
		began := time.Now()
		b.until(t, what, has(want))
		longest = max(longest, time.Since(began))
		return written
	}
	first := step("the first", map[string]uint64{"d a": 5, "e b": 7}, set(of("d", "a"), 5), set(of("e", "b"), 7))
	if first[0].Version != 1 || first[1].Version != 2 || first[0].Author != "ann" || first[0].Changed.IsZero() {
		t.Errorf("written: %+v", first)
	}
	step("another number", map[string]uint64{"d a": 50, "e b": 7}, set(of("d", "a"), 50))
	step("the last of a domain is removed", map[string]uint64{"d a": 50}, remove(of("e", "b")))
	if n, err := a.client.Exists(t.Context(), "p:{overrides}:domain:e", "p:{overrides}:order:e").Result(); err != nil || n != 0 {
		t.Errorf("%d keys of a domain without overrides, %v", n, err)
	}
	step("it comes again", map[string]uint64{"d a": 50, "e b": 8}, set(of("e", "b"), 8))
	if gone := a.write(t, remove(of("e", "never"))); gone[0].Version != 0 {
		t.Errorf("nothing was removed, as version %d", gone[0].Version)
	}
	t.Logf("the longest took %v", longest)

	page, next, err := b.List(t.Context(), override.Query{})
	if err != nil || next != "" || len(page) != 2 {
		t.Fatalf("%+v %q %v", page, next, err)
	}
	if got := page[0]; !reflect.DeepEqual(got.Identity, of("d", "a")) || got.Requests != 50 || got.Reason != "why" || got.Author != "ann" || got.Version != 3 || time.Since(got.Changed) > time.Hour {
		t.Errorf("listed: %+v", got)
	}
	history, err := b.History(t.Context(), override.Query{})
	if err != nil || len(history) != 5 {
		t.Fatalf("%+v %v", history, err)
	}
	if e := history[1]; e.Version != 4 || e.After != nil || e.Before == nil || e.Before.Requests != 7 || e.Author != "ann" || e.Reason != "gone" || time.Since(e.At) > time.Hour {
		t.Errorf("a removal: %+v", e)
	}
	if e := history[2]; e.Before.Requests != 5 || e.After.Requests != 50 {
		t.Errorf("a change: %+v", e)
	}
	for name, want := range map[string]float64{
		"ratelimitd_overrides": 2, "ratelimitd_overrides_version": 5, "ratelimitd_overrides_source_up": 1, "ratelimitd_overrides_version_regressions_total": 0,
	} {
		if got := b.metric(t, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if problems, err := testutil.GatherAndLint(b.registry); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// A write is atomic: all of its edits or none.
func TestConflicts(t *testing.T) {
	r := redistest.Start(t)
	p := start(t, r, "")
	expect := func(e override.Edit, version int64) override.Edit {
		e.Expect = &version
		return e
	}
	p.write(t, expect(set(of("d", "a"), 1), 0))
	for name, c := range map[string]struct {
		edit     override.Edit
		expected int64
		found    int64
	}{
		"there is one":        {expect(set(of("d", "a"), 9), 0), 0, 1},
		"a later version":     {expect(remove(of("d", "a")), 7), 7, 1},
		"there is none":       {expect(set(of("d", "b"), 9), 1), 1, 0},
		"none in this domain": {expect(remove(of("e", "b")), 1), 1, 0},
	} {
		_, err := p.Source.Write(t.Context(), "", []override.Edit{set(of("d", "other"), 3), c.edit})
		conflict, ok := errors.AsType[*override.ConflictError](err)
		if !ok || conflict.Found != c.found || conflict.Expected != c.expected || !reflect.DeepEqual(conflict.Identity, c.edit.Identity) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.write(t, expect(set(of("d", "a"), 2), 1))
	p.until(t, "only what did not conflict", has(map[string]uint64{"d a": 2}))

	for want, edits := range map[string][]override.Edit{
		"edits[1]: edits[0] is for the same":     {set(of("d", "a"), 1), set(of("d", "a"), 2)},
		"edits[0]: rule: it is missing":          {{Override: override.Override{Identity: override.Identity{Domain: "d"}}, Remove: true}},
		"edits[0]: entries[0]: it is not UTF-8":  {set(of("d", "\xff"), 1)},
		"more than 1000 overrides at once":       make([]override.Edit, override.MaxEdits+1),
		"edits[0]: domain, rule, limit, entries": {set(override.Identity{Domain: "d", Rule: "r", Entries: slices.Repeat([]descriptor.Entry{{Key: "k", Value: strings.Repeat("\x01", 4096)}}, 32)}, 1)},
	} {
		if _, err := p.Source.Write(t.Context(), "", edits); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	r.Pause(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.Source.Write(ctx, "", []override.Edit{set(of("d", "a"), 1)}); !redisconn.IsTimeout(err) {
		t.Error(err)
	}
	r.Continue(t)
}

// hostile are texts that must be read back unchanged.
var hostile = []string{
	"<script>alert(1)</script>", "\x1b[31mred\x1b[0m", "a|b=c\\|d", "\x00\x01\x7f", "\u0085\u2028\ufeff\ufffe", "x\u202egnp.exe", "- {a: b}\n# c\n", "ключ 鍵 🔑",
	strings.Repeat("n", override.MaxName), "", " ", "\"'`", "&lt;", "null", "true",
	`","version":"9","changed_at":"x"}`,
}

// Names are read back unchanged: from another replica, from pages, from the copy.
func TestHostileNames(t *testing.T) {
	r := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "copy.yaml")
	a, b := start(t, r, ""), start(t, r, file)
	want := map[string]override.Numbers{}
	key := func(i *override.Identity) string { return i.Domain + "\n" + i.String() }
	for n, text := range hostile {
		i := override.Identity{Domain: text, Rule: text, Limit: text, Entries: []descriptor.Entry{{Key: text, Value: text}, {Key: text, Value: "2"}}}
		if text == "" {
			i.Domain, i.Rule = "d", "d"
		}
		e := override.Edit{Override: override.Override{Identity: i, Numbers: []override.Numbers{
			{Kind: override.Replace, Requests: math.MaxUint32, Burst: 9}, {Kind: override.Scale, Requests: 1, NotBefore: 5}, {Kind: override.Unlimited, ExpiresAt: 1 << 33}, {Kind: override.Blocked}, {Kind: override.Replace},
		}[n%5], Reason: text[:min(len(text), override.MaxText)]}}
		want[key(&i)] = e.Numbers
		a.write(t, e)
		page, _, err := a.List(t.Context(), override.Query{Domain: i.Domain, Rule: i.Rule, Where: map[string]string{text: "2"}})
		if err != nil || len(page) != 1 || !reflect.DeepEqual(page[0].Identity, i) || page[0].Numbers != e.Numbers || page[0].Reason != e.Reason {
			t.Fatalf("%q: %+v %v", text, page, err)
		}
		e.Expect = &page[0].Version
		a.write(t, e)
	}
	same := func(s *override.Set) bool {
		got := map[string]override.Numbers{}
		for i, n := range s.Each() {
			got[key(&i)] = n
		}
		return maps.Equal(got, want)
	}
	b.until(t, "the same names", same)
	b.stop()
	r.Kill(t)
	start(t, r, file).until(t, "the same names from the copy", same)

	// The copy is a file of overrides, too.
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	records, errs := override.ReadFile(file, data)
	if len(errs) > 0 || len(records) != len(want) {
		t.Errorf("%d overrides, %v", len(records), errs)
	}
	for _, o := range records {
		if n := o.Numbers; n != want[key(&o.Identity)] {
			t.Errorf("%q: %+v", o.Identity.String(), n)
		}
	}
}

// Content that others have put into the keys by hand has no effect and is logged, and the rest continues.
func TestHostileRecords(t *testing.T) {
	const good = `{"domain":"d","rule":"d.k","entries":[{"key":"k","value":"v"}],"blocked":true,"version":"1","changed_at":"2026-03-01T12:00:00.000Z"}`
	bad := []string{
		"", "null", "[]", "{", `"text"`, "{}", strings.Repeat("[", 100_000), strings.Replace(good, "blocked", "open", 1), strings.Replace(good, `,"blocked":true`, "", 1),
		strings.Replace(good, `"blocked":true`, `"factor":0`, 1), strings.Replace(good, `"v"`, "5", 1), strings.Replace(good, `{"key":"k","value":"v"}`, "", 1),
		strings.Replace(good, `"blocked":true`, `"blocked":true,"expires_at":1e300`, 1), strings.Replace(good, "d.k", strings.Repeat("r", 1<<20), 1),
		strings.Replace(good, "{", `{"x":"`+strings.Repeat("x", 1<<20)+`",`, 1),
	}
	r := redistest.Start(t)
	admin := r.Client(t)
	p := start(t, r, "")
	p.write(t, set(of("d", "a"), 1))
	for n, text := range bad {
		if err := admin.HSet(t.Context(), "p:{overrides}:domain:d", fmt.Sprint("bad", n), text).Err(); err != nil {
			t.Fatal(err)
		}
		if err := admin.ZAdd(t.Context(), "p:{overrides}:order:d", goredis.Z{Member: fmt.Sprint("bad", n)}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	other := start(t, r, "")
	other.until(t, "the good one", has(map[string]uint64{"d a": 1}))
	if log := other.log.String(); !strings.Contains(log, fmt.Sprintf("records of overrides in Redis cannot be read; they have no effect\" records=%d", len(bad))) {
		t.Error(log)
	}
	if page, next, err := p.List(t.Context(), override.Query{}); err != nil || len(page) != 1 || next != "" {
		t.Errorf("%d overrides, %q, %v", len(page), next, err)
	}

	last, err := admin.HGet(t.Context(), "p:{overrides}:version", "id").Result()
	if err != nil {
		t.Fatal(err)
	}
	for n, text := range bad { // each follows the one before, as a change does
		entry := &goredis.XAddArgs{Stream: "p:{overrides}:changes", ID: fmt.Sprintf("%d-0", n+2), Values: []string{"id", last, "prev", last, "at", "x", "before", text, "after", text}}
		if err := admin.XAdd(t.Context(), entry).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := admin.HSet(t.Context(), "p:{overrides}:version", "n", len(bad)+1).Err(); err != nil {
		t.Fatal(err)
	}
	if events, err := p.History(t.Context(), override.Query{}); err != nil || len(events) != 1 {
		t.Errorf("%+v %v", events, err)
	}
	p.write(t, set(of("d", "b"), 2))
	for _, each := range []*process{p, other} {
		each.until(t, "the next change", has(map[string]uint64{"d a": 1, "d b": 2}))
		if n := strings.Count(each.log.String(), "a change of overrides in Redis cannot be read; it has no effect"); n != len(bad) {
			t.Errorf("%d lines for %d changes\n%s", n, len(bad), &each.log)
		}
	}

	for field, text := range map[string]string{"n": "many", "count": "x"} {
		if err := admin.HSet(t.Context(), "p:{overrides}:version", field, text).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Source.Write(t.Context(), "", []override.Edit{set(of("d", "c"), 3)}); err == nil {
			t.Errorf("a write with %s=%s", field, text)
		}
	}
	redistest.Eventually(t, "the source is down", func(context.Context) error {
		if other.metric(t, "ratelimitd_overrides_source_up") != 0 {
			return errors.New("it is up")
		}
		return nil
	})
	if s, _ := other.current(); s.Len() != 2 {
		t.Errorf("%d overrides are in force", s.Len())
	}
}

// Only one replica removes the overrides that ended a day ago. Those that were prolonged since then stay.
func TestSweep(t *testing.T) {
	r := redistest.Start(t)
	a, b := start(t, r, ""), start(t, r, "")
	now := time.Now()
	ends := func(value string, at time.Time) override.Edit {
		e := set(of("d", value), 1)
		e.ExpiresAt = at.Unix()
		return e
	}
	old := now.Add(-25 * time.Hour)
	a.write(t, ends("old", old), ends("prolonged", old), ends("fresh", now.Add(-23*time.Hour)), set(of("d", "endless"), 1))
	stale := b.until(t, "four", func(s *override.Set) bool { return s.Len() == 4 })
	a.write(t, ends("prolonged", now.Add(time.Hour)))
	sweep := func(p *process, want int) {
		t.Helper()
		s := override.Sweeper{Source: p.Source, InForce: func() *override.Set { return stale }, Log: slog.New(slog.NewTextHandler(&p.log, nil))}
		if n, err := s.Sweep(t.Context(), now); err != nil || n != want {
			t.Errorf("%d were removed, %v, want %d", n, err, want)
		}
	}
	sweep(b, 1)
	sweep(a, 0) // it is the turn of the other one
	if len(a.log.With("change of an override")) != 0 || len(b.log.With("entries=\"k=old\"")) != 1 {
		t.Errorf("%s%s", &a.log, &b.log)
	}
	want := has(map[string]uint64{"d prolonged": 1, "d fresh": 1, "d endless": 1})
	a.until(t, "the others", want)
	if ttl, err := r.Client(t).PTTL(t.Context(), "p:{overrides}:turn").Result(); err != nil || ttl <= 0 || ttl > time.Minute {
		t.Errorf("%v %v", ttl, err)
	}
	if err := r.Client(t).Del(t.Context(), "p:{overrides}:turn").Err(); err != nil {
		t.Fatal(err)
	}
	sweep(a, 0)
	history, err := a.History(t.Context(), override.Query{Limit: 1})
	if err != nil || len(history) != 1 || history[0].After != nil || history[0].Author != "ratelimitd" || history[0].Before.ExpiresAt != old.Unix() {
		t.Errorf("%+v %v", history, err)
	}
	for i, which := range [][]override.Identity{{of("d", "fresh"), of("e", "none"), of("d", "old")}, nil} {
		if got, err := a.Get(t.Context(), which); err != nil || len(got) != len(which) || i == 0 && (got[0] == nil || got[0].Version != 3 || got[1] != nil || got[2] != nil) {
			t.Errorf("%+v %v", got, err)
		}
	}
}

// A replica whose place in the stream is gone reads everything again.
func TestTrimmedStream(t *testing.T) {
	r := redistest.Start(t)
	a := start(t, r, "")
	a.write(t, set(of("d", "a"), 1), set(of("d", "b"), 2))
	a.until(t, "two", func(s *override.Set) bool { return s.Len() == 2 })
	admin := r.Client(t)
	var calls []override.Edit
	for n := range 900 {
		calls = append(calls, set(of("d", fmt.Sprint(n)), 3))
	}
	// The replica does not see these changes: Redis rejects its reads.
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "-xread").Err(); err != nil {
		t.Fatal(err)
	}
	redistest.Eventually(t, "the source is down", func(context.Context) error {
		if a.metric(t, "ratelimitd_overrides_source_up") != 0 {
			return errors.New("it is up")
		}
		return nil
	})
	a.write(t, remove(of("d", "a")))
	a.write(t, calls...)
	if err := admin.XTrimMaxLen(t.Context(), "p:{overrides}:changes", 10).Err(); err != nil {
		t.Fatal(err)
	}
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "default", "+xread").Err(); err != nil {
		t.Fatal(err)
	}
	s := a.until(t, "all", func(s *override.Set) bool { return s.Version == 903 })
	if got := requests(s); s.Len() != 901 || got["d b"] != 2 || got["d a"] != 0 {
		t.Errorf("%d overrides: a %d, b %d", s.Len(), got["d a"], got["d b"])
	}
	// the last line comes after the overrides are active
	redistest.Eventually(t, "the log to say what happened", func(context.Context) error {
		if log := a.log.String(); !strings.Contains(log, "cannot be read: the previous overrides stay") || !strings.Contains(log, "read again, because the stream") || !strings.Contains(log, "can be read again") {
			return errors.New(log)
		}
		return nil
	})
	if n := a.metric(t, "ratelimitd_overrides_version_regressions_total"); n != 0 {
		t.Errorf("%v regressions", n)
	}
}

// The stream keeps the last 10,000 changes or a little more, and pages of List and History show each record once.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN with -short: it writes 12,000 overrides")
	}
	r := redistest.Start(t)
	p := start(t, r, "")
	const n = 12_000
	for from := 0; from < n; from += override.MaxEdits {
		var edits []override.Edit
		for k := from; k < from+override.MaxEdits; k++ {
			i := of("d", fmt.Sprintf("%05d", k))
			i.Rule = []string{"d.a", "d.ab", "d.b"}[k%3]
			if k%2 == 0 {
				i.Domain = "e"
			}
			edits = append(edits, set(i, uint64(k)))
		}
		p.write(t, edits...)
	}
	length, err := r.Client(t).XLen(t.Context(), "p:{overrides}:changes").Result()
	if err != nil || length < 10_000 || length > 10_200 {
		t.Errorf("%d changes in the stream, %v", length, err)
	}
	for _, c := range []struct {
		q    override.Query
		want int
	}{
		{override.Query{Limit: 1000}, n}, {override.Query{Domain: "d", Limit: 777}, n / 2}, {override.Query{Rule: "d.a", Limit: 1000}, n / 3},
		{override.Query{Domain: "e", Rule: "d.ab"}, n / 6}, {override.Query{Where: map[string]string{"k": "00007"}}, 1},
		{override.Query{Domain: "none"}, 0}, {override.Query{Where: map[string]string{"k": "07"}}, 0},
		{override.Query{Domain: "d", Rule: "d.b", Where: map[string]string{"k": "11999"}, Limit: 1}, 1},
	} {
		seen, pages := map[uint64]bool{}, 0
		for q := c.q; ; pages++ {
			page, next, err := p.List(t.Context(), q)
			if err != nil || len(page) > max(q.Limit, 100) {
				t.Fatalf("%d records, %v", len(page), err)
			}
			for _, o := range page {
				if seen[o.Requests] || c.q.Rule != "" && o.Rule != c.q.Rule || c.q.Domain != "" && o.Domain != c.q.Domain {
					t.Fatalf("%+v: %+v", c.q, o)
				}
				seen[o.Requests] = true
			}
			if q.After = next; next == "" {
				break
			}
		}
		if len(seen) != c.want {
			t.Errorf("%+v: %d overrides, want %d", c.q, len(seen), c.want)
		}
	}
	versions := 0
	for q := (override.Query{Limit: 1000}); ; {
		events, err := p.History(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			if versions++; e.Version != n-int64(versions)+1 {
				t.Fatalf("version %d at place %d", e.Version, versions)
			}
		}
		q.After = fmt.Sprint(events[len(events)-1].Version)
	}
	if versions != int(length) {
		t.Errorf("%d events of %d", versions, length)
	}
	for _, after := range []string{"x", "!", "_____w", "AAAA"} {
		_, _, err := p.List(t.Context(), override.Query{After: after})
		_, err2 := p.History(t.Context(), override.Query{After: after})
		if err2 == nil || err == nil && after != "AAAA" {
			t.Errorf("%q: %v, %v", after, err, err2)
		}
	}
}

// A start without Redis uses the copy, and logs that. Redis' overrides become active when it answers.
func TestStartWithoutRedis(t *testing.T) {
	r := redistest.Start(t, "--appendonly", "yes")
	file := filepath.Join(t.TempDir(), "copy.yaml")
	a := start(t, r, file)
	a.write(t, set(of("d", "a"), 1), set(of("d", "b"), 2))
	a.until(t, "two", func(s *override.Set) bool { return s.Len() == 2 })
	a.stop()
	r.Kill(t)

	without := start(t, r, "")
	redistest.Eventually(t, "a line in the log", func(context.Context) error {
		if !strings.Contains(without.log.String(), "there is no copy of them: requests are decided without overrides") {
			return errors.New(without.log.String())
		}
		return nil
	})
	if s, _ := without.current(); s != nil {
		t.Errorf("%d overrides without a source", s.Len())
	}
	with := start(t, r, file)
	with.until(t, "the copy", has(map[string]uint64{"d a": 1, "d b": 2}))
	redistest.Eventually(t, "a line in the log", func(context.Context) error {
		if log := with.log.String(); !strings.Contains(log, "from the last good copy") || !strings.Contains(log, "the previous overrides stay active") {
			return errors.New(log)
		}
		return nil
	})
	if up, version := with.metric(t, "ratelimitd_overrides_source_up"), with.metric(t, "ratelimitd_overrides_version"); up != 0 || version != 2 {
		t.Errorf("up %v, version %v", up, version)
	}

	r.Restart(t)
	other := start(t, r, "")
	other.write(t, remove(of("d", "b")))
	for _, p := range []*process{with, without, other} {
		p.until(t, "what Redis has", has(map[string]uint64{"d a": 1}))
	}
	if n := with.metric(t, "ratelimitd_overrides_version_regressions_total"); n != 0 {
		t.Errorf("%v regressions:\n%s", n, with.log.String())
	}
}

// A copy that was cut, changed or written by something else is not used, and that is logged.
func TestBadCopy(t *testing.T) {
	r := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "copy.yaml")
	a := start(t, r, file)
	a.write(t, set(of("d", "a"), 1), set(of("d", "b"), 2))
	a.until(t, "two", func(s *override.Set) bool { return s.Len() == 2 })
	a.stop()
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	r.Kill(t)
	for name, bad := range map[string][]byte{
		"cut": good[:len(good)-40], "a line is missing": good[:bytes.LastIndex(good[:len(good)-1], []byte("\n"))+1],
		"empty": nil, "another file": []byte("overrides: []\n"), "an empty file of another program": []byte("# none\n"), "no JSON": bytes.Replace(good, []byte(`"d"`), []byte(`"d`), 1),
		"a count below zero": bytes.Replace(good, []byte(`"overrides":2`), []byte(`"overrides":-1`), 1), "an immense count": bytes.Replace(good, []byte(`"overrides":2`), []byte(`"overrides":1000001`), 1),
		"numbers that no override has": bytes.Replace(good, []byte(`"requests_per_unit":"1"`), []byte(`"blocked":true,"burst":1`), 1), "more than it says": append(bytes.Clone(good), bytes.Replace(good, []byte(`"value":"a"`), []byte(`"value":"c"`), 1)...),
		"a long line": append(bytes.Clone(good), bytes.Repeat([]byte("#"), 2<<20)...),
	} {
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		p := start(t, r, file)
		if s, _ := p.current(); s != nil || !strings.Contains(p.log.String(), "the copy of the overrides cannot be used") {
			t.Errorf("%s: %d overrides\n%s", name, s.Len(), p.log.String())
		}
		p.stop()
	}
}

// If Redis has lost changes, this is detected even after later writes. Its state is used, nothing is written to it, and
// a file keeps the lost overrides.
func TestRegression(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, r *redistest.Server, other *process){
		"everything": func(t *testing.T, r *redistest.Server, _ *process) {
			if err := r.Client(t).FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		},
		"everything, and as many changes since": func(t *testing.T, r *redistest.Server, other *process) {
			var edits []override.Edit
			for n := range 7 {
				edits = append(edits, set(of("new", fmt.Sprint(n)), 1))
			}
			r.Pause(t) // so that no replica sees the empty Redis
			r.Continue(t)
			if err := r.Client(t).FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			other.write(t, edits...)
		},
		"a restart without a disk": func(t *testing.T, r *redistest.Server, _ *process) { r.Restart(t) },
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.Start(t)
			file := filepath.Join(t.TempDir(), "copy.yaml")
			other := source(t, redisconn.Options{URL: r.Addr}, "")
			p := start(t, r, file)
			p.write(t, set(of("d", "a"), 1), set(of("d", "b"), 2), set(of("d", "c"), 3))
			p.write(t, remove(of("d", "c")))
			p.until(t, "two", has(map[string]uint64{"d a": 1, "d b": 2}))
			lose(t, r, other)
			s := p.until(t, "what Redis has now", func(s *override.Set) bool { return requests(s)["d a"] == 0 })
			if strings.Contains(name, "as many") != (s.Len() == 7) {
				t.Errorf("%d overrides", s.Len())
			}
			if n := p.metric(t, "ratelimitd_overrides_version_regressions_total"); n != 1 {
				t.Errorf("%v regressions", n)
			}
			p.stop()
			if log := p.log.String(); !strings.Contains(log, "Redis has lost changes of overrides") || !strings.Contains(log, "ratelimitd override import "+file+".version-4") {
				t.Error(log)
			}
			kept, err := os.ReadFile(file + ".version-4")
			if err != nil || strings.Count(string(kept), "\n{") != 2 {
				t.Errorf("%s %v", kept, err)
			}
			if n, err := r.Client(t).HLen(t.Context(), "p:{overrides}:domain:d").Result(); err != nil || n != 0 {
				t.Errorf("%d overrides came back to Redis, %v", n, err)
			}
		})
	}
}

// Redis starts again from an older file, while the process runs and while it does not, even if more was written since.
func TestOlderData(t *testing.T) {
	r := redistest.Start(t)
	admin := r.Client(t)
	file := filepath.Join(t.TempDir(), "copy.yaml")
	p := start(t, r, file)
	p.write(t, set(of("d", "a"), 1), set(of("d", "b"), 2))
	if err := admin.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	other := source(t, redisconn.Options{URL: r.Addr}, "")
	for round, running := range []bool{true, false} {
		removal := p.write(t, remove(of("d", "b")), set(of("d", "a"), 10))
		p.until(t, "the change", has(map[string]uint64{"d a": 10}))
		if !running {
			p.stop()
		}
		r.Restart(t) // the restart loads the saved file
		for n := range 3 {
			other.write(t, set(of("d", "c"), uint64(n)))
		}
		if !running {
			p = start(t, r, file)
		}
		s := p.until(t, "the older data", has(map[string]uint64{"d a": 1, "d b": 2, "d c": 2}))
		if s.Version != 5 {
			t.Errorf("version %d after %d", s.Version, removal[1].Version)
		}
		if n := p.metric(t, "ratelimitd_overrides_version_regressions_total"); n != 1 {
			t.Errorf("round %d: %v regressions\n%s", round, n, p.log.String())
		}
		p.stop()
		r.Restart(t)
		_ = os.Remove(file)
		p = start(t, r, file)
		p.until(t, "the older data", has(map[string]uint64{"d a": 1, "d b": 2}))
	}
}

// With appendfsync always, kill -9 of Redis loses nothing that was acknowledged.
func TestKilledRedisKeepsWhatWasAcknowledged(t *testing.T) {
	r := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	p := start(t, r, "")
	var mu sync.Mutex
	want := map[string]uint64{}
	var wg sync.WaitGroup
	many := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			for n := uint64(1); ; n++ {
				i := of("d", fmt.Sprint(w, "-", n%50))
				if _, err := p.Source.Write(context.Background(), "", []override.Edit{set(i, n)}); err != nil {
					mu.Lock()
					delete(want, "d "+i.Entries[0].Value) // it may have been written
					mu.Unlock()
					return
				}
				mu.Lock()
				if want["d "+i.Entries[0].Value] = n; len(want) == 150 {
					close(many)
				}
				mu.Unlock()
			}
		})
	}
	<-many
	r.Kill(t)
	wg.Wait()
	r.Restart(t)
	again := start(t, r, "")
	for _, one := range []*process{p, again} {
		one.until(t, "all that was acknowledged", func(s *override.Set) bool {
			got := requests(s)
			for k, n := range want {
				if got[k] != n {
					return false
				}
			}
			return true
		})
	}
	if n := p.metric(t, "ratelimitd_overrides_version_regressions_total"); n != 0 {
		t.Errorf("%v regressions\n%s", n, p.log.String())
	}
}

// kill -9 of a process that writes loses nothing that it acknowledged.
func TestKilledWriter(t *testing.T) {
	if addr := os.Getenv("WRITE_TO_REDIS"); addr != "" { // this is the process
		w := source(t, redisconn.Options{URL: addr}, "")
		for n := 0; ; n++ {
			w.write(t, set(of("d", fmt.Sprint(n)), uint64(n)))
			fmt.Println("written", n)
		}
	}
	r := redistest.Start(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWriter$")
	cmd.Env = append(os.Environ(), "WRITE_TO_REDIS="+r.Addr)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acknowledged := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "written %d", &acknowledged); err == nil && acknowledged == 200 {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	if acknowledged < 200 {
		t.Fatalf("%d overrides were written", acknowledged)
	}
	got := requests(start(t, r, "").until(t, "the first ones", func(s *override.Set) bool { return s.Len() > 200 }))
	for n := range acknowledged + 1 {
		if v, ok := got[fmt.Sprint("d ", n)]; !ok || v != uint64(n) {
			t.Errorf("override %d of %d is lost", n, acknowledged)
		}
	}
}

func TestCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, redistest.Setup{})
	where := redisconn.Options{Type: "CLUSTER", URL: strings.Join(cluster.Addrs(), ","), DialTimeout: 10 * time.Second}
	a, b := source(t, where, "").run(t), source(t, where, "").run(t)
	b.until(t, "nothing", has(map[string]uint64{}))
	a.write(t, set(of("d", "a"), 1), set(of("e", "b"), 2))
	b.until(t, "two domains", has(map[string]uint64{"d a": 1, "e b": 2}))
	if page, next, err := b.List(t.Context(), override.Query{Limit: 1}); err != nil || next == "" || len(page) != 1 {
		t.Errorf("%v %q %v", page, next, err)
	}
	if events, err := b.History(t.Context(), override.Query{}); err != nil || len(events) != 2 {
		t.Errorf("%v %v", events, err)
	}
}

// These rights are enough, and none can be left out. docs/reference/redis-keys.md has them.
func TestRights(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "reference", "redis-keys.md"))
	if err != nil {
		t.Fatal(err)
	}
	const rights = "+evalsha +eval +hget +hmget +hset +hsetnx +hdel +hscan +exists +sadd +srem +sscan +zadd +zrem +zrangebylex +xadd +xread +xrange +xrevrange +set"
	if text := strings.Join(strings.Fields(string(page)), " "); !strings.Contains(text, "`"+rights+"`") || !strings.Contains(text, "`~<CACHE_KEY_PREFIX>{overrides}:*`") {
		t.Error("docs/reference/redis-keys.md does not have them")
	}
	everything := func(t *testing.T, rights string) error {
		r := redistest.Start(t, append([]string{"--user", "fleet", "on", ">p4ss", "~p:{overrides}:*", "-@all"}, strings.Fields(rights)...)...)
		where := redisconn.Options{URL: r.Addr, Auth: "fleet:p4ss"}
		file := filepath.Join(t.TempDir(), "copy.yaml")
		w := source(t, where, "")
		for _, edit := range []override.Edit{set(of("d", "a"), 1), set(of("d", "b"), 1), remove(of("d", "b")), set(of("e", "c"), 1), remove(of("e", "c"))} {
			if _, err := w.Source.Write(t.Context(), "", []override.Edit{edit}); err != nil {
				return err
			}
		}
		for _, copied := range []bool{false, true} {
			p := source(t, where, file).run(t)
			if copied {
				if _, err := w.Source.Write(t.Context(), "", []override.Edit{set(of("d", "b"), 1)}); err != nil {
					return err
				}
			}
			_, news := p.current()
			select {
			case <-news:
			case <-time.After(100 * time.Millisecond):
			}
			p.stop()
			if log := p.log.String(); strings.Contains(log, "NOPERM") {
				return errors.New(log)
			}
			w.write(t, set(of("d", "d"), 1))
		}
		if _, _, err := w.List(t.Context(), override.Query{}); err != nil {
			return err
		}
		if _, err := w.Turn(t.Context(), time.Minute); err != nil {
			return err
		}
		_, err := w.History(t.Context(), override.Query{})
		return err
	}
	if err := everything(t, rights); err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(rights)
	for i, one := range all {
		if err := everything(t, strings.Join(slices.Delete(slices.Clone(all), i, i+1), " ")); err == nil {
			t.Errorf("%s is not needed", one)
		}
	}
}

// A thousand overrides of the largest size do not fit into one answer. They are still read, listed and shown in the
// history, in smaller pages.
func TestLargestOverrides(t *testing.T) {
	r := redistest.Start(t)
	p := start(t, r, "")
	const n = 400 // overrides of 53 KB; a record and its field have twice as much
	want := make(map[string]uint64)
	for k := range n {
		i := of("d", fmt.Sprintf("%04d%s", k, strings.Repeat("x", override.MaxName-4)))
		for e := range 6 {
			i.Entries = append(i.Entries, descriptor.Entry{Key: fmt.Sprintf("%02d%s", e, strings.Repeat("y", override.MaxName-2)), Value: strings.Repeat("z", override.MaxName)})
		}
		p.write(t, set(i, uint64(k+1)))
		want["d "+i.Entries[0].Value] = uint64(k + 1)
	}
	p.until(t, "all overrides, change by change", has(want))
	start(t, r, "").until(t, "all overrides at the start", has(want))

	seen := 0
	for q := (override.Query{Limit: 1000}); ; {
		page, next, err := p.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		seen += len(page)
		if q.After = next; next == "" {
			break
		}
	}
	if seen != n {
		t.Errorf("%d overrides are listed, want %d", seen, n)
	}
	events, err := p.History(t.Context(), override.Query{Limit: 1000})
	if err != nil || len(events) != n {
		t.Errorf("%d events, %v", len(events), err)
	}
}
