package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn/redisconntest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// named is a replica of this test.
func named(host string) Replica {
	return Replica{Host: host, Version: "1.2.3", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Rules: Rules{Checksum: 7, Count: 3, Files: 1}}
}

// member is a Fleet that announces itself only when the test calls it, unless it runs.
type member struct {
	*Fleet
	client goredis.UniversalClient
	log    *servicetest.Log
}

func join(t *testing.T, where redisconn.Options, self Replica) *member {
	t.Helper()
	m := &member{client: redisconntest.Connect(t, where), log: new(servicetest.Log)}
	store := redis.New(redis.Options{Client: m.client})
	m.Fleet = New(Options{
		Beat: func(ctx context.Context, name string, lives time.Duration, leaves bool) (int, error) {
			return store.Heartbeat(ctx, names, name, lives, leaves)
		},
		Client: m.client, Names: names, Prefix: "p:", Self: func() Replica { return self }, Log: slog.New(slog.NewTextHandler(m.log, nil)),
	})
	return m
}

const names = "p:names"

func (m *member) says(t *testing.T) {
	t.Helper()
	if err := m.beat(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// reads returns the hosts in the list with their states.
func (m *member) reads(t *testing.T) []string {
	t.Helper()
	m.says(t)
	if err := m.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return hosts(m.view(time.Now()))
}

func hosts(v View) (all []string) {
	for _, p := range v.Replicas {
		all = append(all, p.Host+" "+p.State.String())
	}
	slices.Sort(all)
	return all
}

// dies removes a replica from the list, as happens when its last heartbeat is old.
func (m *member) dies(t *testing.T) {
	t.Helper()
	if _, err := m.o.Beat(t.Context(), m.id, m.o.Lives, true); err != nil {
		t.Fatal(err)
	}
}

// Replicas see each other, also one that has stopped and one that was killed, and forget both after a while.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) redisconn.Options{
		"single": func(t *testing.T) redisconn.Options { return redisconn.Options{URL: redistest.Start(t).Addr} },
		"cluster": func(t *testing.T) redisconn.Options {
			return redisconn.Options{Type: "CLUSTER", URL: strings.Join(redistest.StartCluster(t, redistest.Setup{}).Addrs(), ",")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			where := start(t)
			full := named("b")
			full.Overrides = Overrides{Source: OverridesInRedis, Version: 12, Count: 5, Error: "the source <b> does not answer"}
			full.Redis = []Redis{{Name: "redis", Open: []string{"10.0.0.1:6379"}, Connections: 9}}
			full.Caches = []Cache{{"leases", 4}}
			a, b, c := join(t, where, named("a")), join(t, where, full), join(t, where, named("c"))
			b.says(t)
			c.says(t)
			if got := a.reads(t); !slices.Equal(got, []string{"a live", "b live", "c live"}) {
				t.Fatalf("%q", got)
			}
			v := a.view(time.Now())
			if v.Self != a.ID() || !v.Shared || v.Err != nil || v.ReadAt.IsZero() || v.Unreadable+v.More != 0 {
				t.Errorf("%+v", v)
			}
			i := slices.IndexFunc(v.Replicas, func(p Replica) bool { return p.ID == b.ID() })
			got := v.Replicas[i]
			if age := time.Since(got.Seen); age < 0 || age > time.Minute {
				t.Errorf("seen %s ago", age)
			}
			if fmt.Sprint(got.Overrides, got.Redis, got.Caches, got.Rules, got.Started) != fmt.Sprint(full.Overrides, full.Redis, full.Caches, full.Rules, full.Started) {
				t.Errorf("b says\n%+v, want\n%+v", got, full)
			}

			b.leave(t.Context())
			c.dies(t)
			if got := a.reads(t); !slices.Equal(got, []string{"a live", "b stopped", "c gone"}) {
				t.Errorf("later: %q", got)
			}
			c.says(t) // it was only away
			if got := a.reads(t); !slices.Equal(got, []string{"a live", "b stopped", "c live"}) {
				t.Errorf("when it is back: %q", got)
			}
			c.dies(t)
			for _, m := range []*member{a, b, c} {
				if ttl := a.client.PTTL(t.Context(), m.saidKey(m.id)).Val(); ttl <= kept-time.Minute || ttl > kept {
					t.Errorf("%s expires in %s", m.saidKey(m.id), ttl)
				}
			}
			for i := range a.others {
				a.others[i].Seen = time.Now().Add(-kept)
			}
			if got := a.reads(t); !slices.Equal(got, []string{"a live"}) {
				t.Errorf("after %s: %q", kept, got)
			}
		})
	}
}

// A replica that runs announces itself with one call each time, and records when it stops. A list is read once for many
// who ask.
func TestRun(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	where := redisconn.Options{URL: r.Addr}
	a, b := join(t, where, named("a")), join(t, where, named("b"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	redistest.Eventually(t, "b is listed", func(context.Context) error {
		if got := a.reads(t); !slices.Equal(got, []string{"a live", "b live"}) {
			return fmt.Errorf("%q", got)
		}
		return nil
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	before := r.Calls(t, "getrange")
	for range 50 {
		if got := hosts(a.List(t.Context())); len(got) != 2 {
			t.Fatalf("%q", got)
		}
	}
	if n := r.Calls(t, "getrange") - before; n > 10 {
		t.Errorf("%d calls for 50 lists", n)
	}
	if got := a.reads(t); !slices.Equal(got, []string{"a live", "b stopped"}) {
		t.Errorf("%q", got)
	}
}

// While Redis is unreachable, the list shows the last state that was read, with the time and the reason. When Redis is
// back, so is the list.
func TestRedisIsAway(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	where := redisconn.Options{URL: r.Addr}
	a, b := join(t, where, named("a")), join(t, where, named("b"))
	b.says(t)
	a.reads(t)
	known := a.view(time.Now()).ReadAt
	r.Kill(t)
	err := a.beat(t.Context())
	if a.report(t.Context(), err); err == nil || a.log.String() != "" {
		t.Errorf("%v, %s", err, a.log)
	}
	v := a.List(t.Context())
	if got := hosts(v); v.Err == nil || !v.ReadAt.Equal(known) || !slices.Equal(got, []string{"a live", "b live"}) {
		t.Errorf("%+v", v)
	}
	r.Restart(t) // it is empty
	redistest.Eventually(t, "the list is read again", func(context.Context) error {
		v := a.List(t.Context())
		if got := hosts(v); v.Err != nil || !v.ReadAt.After(known) || !slices.Equal(got, []string{"a live"}) {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
}

// Entries that other programs write to the keys do no harm: they are bounded, counted, and removed like the rest.
func TestHostileEntries(t *testing.T) {
	t.Parallel()
	where := redisconn.Options{URL: redistest.Start(t).Addr}
	a := join(t, where, named("a"))
	a.says(t)
	now := time.Now().UnixMilli()
	id := func(n int) string { return fmt.Sprintf("%016x", n) }
	good := string(named("<b>evil</b>\x1b[31m").encode())
	list := a.client.Get(t.Context(), names).Val()
	for name, text := range map[string]string{
		id(2): "{", id(3): "[]", id(4): "null", id(5): strings.Repeat("[", maxRecord), id(6): good + strings.Repeat(" ", maxRecord),
		id(7): strings.Replace(good, `"count":3`, `"count":-3`, 1), id(8): strings.Replace(good, `"2026-`, `"0000-`, 1), id(9): strings.Replace(good, `"2026-`, `"20260-`, 1),
		id(10): strings.Replace(good, `"passed":0`, `"passed":1e300`, 1), id(11): strings.Replace(good, `"passed":0`, `"passed":-1`, 1),
		id(12): strings.Replace(good, `"1.2.3"`, `"`+strings.Repeat("x", 300)+`"`, 1), id(13): strings.Replace(good, `"rules"`, `"caches":[`+strings.Repeat(`{},`, 9)+`{}],"rules"`, 1),
		id(14): strings.Replace(good, `"rules"`, `"redis":[{"name":"r","open":["","","","",""]}],"rules"`, 1), id(15): strings.Replace(good, `"rules"`, `"overrides":{"source":"evil"},"rules"`, 1),
		"name": good, strings.Repeat("n", 1<<10): good, "<img src=x onerror=alert(1)>": good, id(18): good,
	} {
		list += fmt.Sprintf("%s %d\n", name, now)
		if err := a.client.Set(t.Context(), a.saidKey(name), text, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	list += fmt.Sprintf("%s %d\n%s %d\n%s 99999999999999999999\n", id(17), now, id(19), now, id(20)) // 17 has no record
	a.client.RPush(t.Context(), a.saidKey(id(19)), "x")
	a.client.Set(t.Context(), names, list, 0)
	if err := a.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := a.view(time.Now())
	if got := hosts(v); len(got) != 2 || got[0] != "<b>evil</b>?[31m live" {
		t.Errorf("%q", got)
	}
	if v.Unreadable != 15 || v.More != 1 {
		t.Errorf("%d entries are not understood, want 15; %d say nothing, want 1", v.Unreadable, v.More)
	}

	// Too many, and a key of another type.
	var many strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&many, "%s %d\n", id(1000+i), now)
	}
	a.client.Set(t.Context(), names, many.String(), 0)
	if err := a.read(t.Context()); err != nil || a.view(time.Now()).More > maxNames/30 {
		t.Errorf("%v, %d more", err, a.view(time.Now()).More)
	}
	a.client.Del(t.Context(), names)
	a.client.RPush(t.Context(), names, "x")
	if err := a.read(t.Context()); err == nil {
		t.Error("no error")
	}
	a.says(t) // it replaces a foreign value
	if got := hosts(a.List(t.Context())); !slices.Contains(got, "a live") {
		t.Errorf("%q", got)
	}
}

// A replica's record stays within its bounds, however long its host name is and however many nodes do not answer.
func TestRecordIsBounded(t *testing.T) {
	p := named(strings.Repeat("\"\\\x00\xff", 1000))
	p.Version, p.Overrides = strings.Repeat("\"", 1000), Overrides{Source: OverridesInRedis, Version: 1 << 62, Earlier: 1 << 62, Count: 1e6, Error: strings.Repeat("é\"", 1000)}
	p.PerSecond = Rates{1.0 / 3, 1e11 / 3, 1.0 / 7, 1.0 / 9}
	for range 20 {
		p.Redis = append(p.Redis, Redis{Name: strings.Repeat("r", 50), Open: slices.Repeat([]string{strings.Repeat("\"", 300)}, 20), Connections: 1e11})
		p.Caches = append(p.Caches, Cache{strings.Repeat("c", 50), 1e11})
	}
	text := p.encode()
	t.Logf("%d bytes at most; a usual one has %d", len(text), len(named("ratelimitd-7c9f8d6b5-x2x4q").encode()))
	got, err := decode("0123456789abcdef", string(text))
	if err != nil {
		t.Fatalf("%v: %d bytes", err, len(text))
	}
	if again := got.encode(); string(again) != string(text) {
		t.Errorf("%s\n%s", text, again)
	}
	if len(p.Redis[0].Open[0]) != 300 {
		t.Error("encode changed what it was given")
	}
}

// FuzzDecode decodes records that any program may have written.
func FuzzDecode(f *testing.F) {
	f.Add("0123456789abcdef", string(named("a").encode()))
	f.Fuzz(func(t *testing.T, id, text string) {
		p, err := decode(id, text)
		if err != nil {
			return
		}
		if _, err := decode(id, string(p.encode())); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	})
}

// A rate is measured between two announcements, and versions are kept for two announcements.
func TestMeasure(t *testing.T) {
	self := named("a")
	f := New(Options{Self: func() Replica { return self }})
	now := time.Now()
	f.measure(now)
	if got := f.says(now).PerSecond; got != (Rates{}) {
		t.Errorf("%+v before there are two numbers", got)
	}
	self.Decisions = Decisions{Passed: 100, Denied: 10, Failed: 5, OnError: 1}
	self.Overrides = Overrides{Source: OverridesInRedis, Version: 3}
	f.measure(now.Add(5 * time.Second))
	if got := f.says(now).PerSecond; got != (Rates{20, 2, 1, .2}) {
		t.Errorf("%+v", got)
	}
	f.measure(now.Add(10 * time.Second))
	self.Overrides.Version = 9
	if got := f.says(now); got.PerSecond != (Rates{}) || got.Overrides.Earlier != 0 {
		t.Errorf("%+v", got)
	}
	f.measure(now.Add(15 * time.Second))
	if got := f.says(now).Overrides.Earlier; got != 3 {
		t.Errorf("version %d two announcements before, want 3", got)
	}
	self.Overrides.Version = 1 // Redis has lost changes
	if got := f.says(now).Overrides.Earlier; got != 1 {
		t.Errorf("version %d, want 1", got)
	}
	if v := f.List(t.Context()); v.Shared || len(v.Replicas) != 1 || v.Replicas[0].ID != f.ID() || v.Err != nil {
		t.Errorf("%+v", v)
	}
}

// Replicas are compared with most of the live ones.
func TestCompare(t *testing.T) {
	now := time.Now()
	with := func(host string, change func(*Replica)) Replica {
		p := named(host)
		p.Seen = now
		p.Overrides = Overrides{Source: OverridesInRedis, Version: 5, Earlier: 5}
		change(&p)
		return p
	}
	same := func(*Replica) {}
	rules := func(sum uint64) func(*Replica) { return func(p *Replica) { p.Rules.Checksum = sum } }
	version := func(version, earlier int64, seen time.Duration) func(*Replica) {
		return func(p *Replica) { p.Overrides.Version, p.Overrides.Earlier, p.Seen = version, earlier, now.Add(-seen) }
	}
	file := func(version int64) func(*Replica) {
		return func(p *Replica) { p.Overrides = Overrides{Source: OverridesInFile, Version: version} }
	}
	for name, c := range map[string]struct {
		all              []Replica
		rules, overrides string // hosts that differ
	}{
		"equal":                         {[]Replica{with("a", same), with("b", same)}, "", ""},
		"one of three":                  {[]Replica{with("a", same), with("b", rules(8)), with("c", same)}, "b", ""},
		"one of two":                    {[]Replica{with("a", same), with("b", rules(8))}, "ab", ""},
		"three kinds":                   {[]Replica{with("a", same), with("b", rules(8)), with("c", rules(9)), with("d", same)}, "bc", ""},
		"gone ones do not count":        {[]Replica{with("a", same), with("b", func(p *Replica) { p.Rules.Checksum, p.State = 8, Gone })}, "", ""},
		"no overrides":                  {[]Replica{with("a", same), with("b", func(p *Replica) { p.Overrides = Overrides{} }), with("c", same)}, "", "b"},
		"a change on its way":           {[]Replica{with("a", version(6, 5, 0)), with("b", version(5, 5, 4*time.Second))}, "", ""},
		"many changes":                  {[]Replica{with("a", version(900, 500, 0)), with("b", version(510, 100, 4*time.Second))}, "", ""},
		"an old version":                {[]Replica{with("a", version(6, 6, 0)), with("b", version(5, 5, 4*time.Second))}, "", "b"},
		"an old version, many changes":  {[]Replica{with("a", version(900, 500, 0)), with("b", version(5, 5, 4*time.Second))}, "", "b"},
		"it may have got it since then": {[]Replica{with("a", version(6, 6, 0)), with("b", version(5, 5, 12*time.Second))}, "", ""},
		"files":                         {[]Replica{with("a", file(1)), with("b", file(2)), with("c", file(2))}, "", "a"},
	} {
		compare(c.all, 5*time.Second)
		gotRules, gotOverrides := "", ""
		for _, p := range c.all {
			if p.RulesDiffer {
				gotRules += p.Host
			}
			if p.OverridesDiffer {
				gotOverrides += p.Host
			}
		}
		if gotRules != c.rules || gotOverrides != c.overrides {
			t.Errorf("%s: rules of %q and overrides of %q differ, want %q and %q", name, gotRules, gotOverrides, c.rules, c.overrides)
		}
	}

	all := []Replica{with("e", func(p *Replica) { p.State = Stopped }), with("d", same), with("c", same), with("b", func(p *Replica) { p.State = Gone }), with("f", func(p *Replica) { p.Redis = []Redis{{Open: []string{"n"}}} })}
	sort(all)
	var order string
	for _, p := range all {
		order += p.Host
	}
	if order != "bfcde" {
		t.Errorf("the order is %s", order)
	}
}

// These rights are enough, and none can be left out. docs/reference/redis-keys.md has them. Without them a replica is
// not listed, and logs this once.
func TestRights(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "reference", "redis-keys.md"))
	if err != nil {
		t.Fatal(err)
	}
	const rights = "+set +getrange"
	if text := strings.Join(strings.Fields(string(page)), " "); !strings.Contains(text, "`"+rights+"`") || !strings.Contains(text, "`~<CACHE_KEY_PREFIX>{fleet}:*`") {
		t.Error("docs/reference/redis-keys.md does not have them")
	}
	r := redistest.Start(t)
	admin := r.Client(t)
	everything := func(rights []string) (*member, error) {
		args := []any{"ACL", "SETUSER", "fleet", "reset", "on", ">p4ss", "~p:{fleet}:*", "~" + names}
		for _, one := range rights {
			args = append(args, one)
		}
		if err := errors.Join(admin.FlushAll(t.Context()).Err(), admin.Do(t.Context(), args...).Err()); err != nil {
			t.Fatal(err)
		}
		a := join(t, redisconn.Options{URL: r.Addr, Auth: "fleet:p4ss"}, named("a"))
		b := join(t, redisconn.Options{URL: r.Addr}, named("b"))
		b.says(t)
		return a, errors.Join(a.say(t.Context()), a.read(t.Context()))
	}
	all := strings.Fields(rights)
	if _, err := everything(all); err != nil {
		t.Fatal(err)
	}
	for i, one := range all {
		a, err := everything(slices.Delete(slices.Clone(all), i, i+1))
		if err == nil {
			t.Errorf("%s is not needed", one)
			continue
		}
		a.report(t.Context(), err)
		a.report(t.Context(), err)
		if log := a.log.String(); strings.Count(log, "other replicas do not count or list this one") != 1 || !strings.Contains(log, "docs/reference/redis-keys.md") {
			t.Errorf("without %s: %v, %s", one, err, log)
		}
	}
}
