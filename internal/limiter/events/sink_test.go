package events

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

var (
	noon   = time.Date(2026, 3, 10, 12, 0, 10, 0, time.UTC)
	minute = descriptor.Limit{Name: "per minute", Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}
)

func newSink(opts Options) *Sink {
	if opts.To == nil {
		opts.To = &receiver{}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return New(opts)
}

// offer uses the sink as a decision does. It reports whether an event was due.
func offer(s *Sink, now time.Time, key string) bool {
	due, ok := s.Due(now, Denial, []byte(key), &minute, now.Truncate(time.Minute).Add(time.Minute).Sub(now))
	if ok {
		s.Send(due, &Event{Time: now, Domain: "d", Rule: "d.k", Entries: []descriptor.Entry{{Key: "k", Value: key}}, Limit: minute})
	}
	return ok
}

func TestOneEventForACounterAndPeriod(t *testing.T) {
	s := newSink(Options{})
	for _, step := range []struct {
		after time.Duration
		key   string
		want  bool
	}{
		{0, "a", true},
		{time.Second, "a", false},
		{2 * time.Second, "b", true},
		{49 * time.Second, "a", false},
		{50 * time.Second, "a", true}, // the next window
		{51 * time.Second, "a", false},
		{52 * time.Second, "b", true},
	} {
		if got := offer(s, noon.Add(step.after), step.key); got != step.want {
			t.Errorf("after %s, counter %s: an event %t, want %t", step.after, step.key, got, step.want)
		}
	}
}

// If a window is over by the clock of this replica but not by the store's, it still has only one event.
func TestOneEventWhileTheClockIsAhead(t *testing.T) {
	s := newSink(Options{})
	late := noon.Truncate(time.Minute).Add(time.Second)
	for i, want := range []bool{true, false, false} {
		if _, got := s.Due(late.Add(time.Duration(i)*time.Millisecond), Denial, []byte("a"), &minute, 2*time.Second); got != want {
			t.Errorf("denial %d has an event: %t, want %t", i, got, want)
		}
	}
}

// A counter that is dropped for lack of space may have another event in its period, but always with the same id.
func TestMemoryOfCountersIsBounded(t *testing.T) {
	s := newSink(Options{PerSecond: 1 << 40, Queue: 1 << 20})
	const counters = shardCount * maxRecent * 9 / 8
	for i := range counters {
		offer(s, noon, fmt.Sprint(i))
	}
	remembered := 0
	for i := range s.recent.shards {
		remembered += len(s.recent.shards[i].until)
	}
	if remembered > shardCount*maxRecent {
		t.Errorf("%d counters are remembered, want at most %d", remembered, shardCount*maxRecent)
	}
	for i := range counters {
		offer(s, noon, fmt.Sprint(i))
	}
	ids, key := make(map[string]string), make(map[string]string)
	for e := s.queue.pop(); e != nil; e = s.queue.pop() {
		value := e.Entries[0].Value
		if id := e.due.id(); ids[value] != "" && ids[value] != id || key[id] != "" && key[id] != value {
			t.Fatalf("the event of counter %s has the id %s, before %s; this id was of %q", value, id, ids[value], key[id])
		} else {
			ids[value], key[id] = id, value
		}
	}
	if len(ids) != counters {
		t.Errorf("events of %d counters, want %d", len(ids), counters)
	}
}

// Counters whose period is over make room before others.
func TestCountersThatAreOverAreForgotten(t *testing.T) {
	var sh shard
	for i := range uint64(maxRecent) {
		sh.add(i, 100, 50)
	}
	for i := range uint64(maxRecent) {
		sh.add(maxRecent+i, 200, 150)
	}
	for i := range uint64(maxRecent) {
		if sh.until[maxRecent+i] == 0 {
			t.Fatalf("counter %d is forgotten, though others were over", maxRecent+i)
		}
	}
	if len(sh.until) != maxRecent {
		t.Errorf("%d counters", len(sh.until))
	}
}

// Dropped events are not recorded: the next denial of this counter tries again.
func TestBoundsOfEvents(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := newSink(Options{PerSecond: 2, Queue: 3, Metrics: prom.With(registry)})
	offers := func(now time.Time, keys ...string) (sent string) {
		for _, key := range keys {
			if offer(s, now, key) {
				sent += key
			}
		}
		return sent
	}
	if got := offers(noon, "a", "b", "c", "d"); got != "ab" {
		t.Errorf("in one second events of %q, want of a and b", got)
	}
	if got := offers(noon.Add(time.Second), "a", "c", "d"); got != "c" {
		t.Errorf("with one free place events of %q, want of c", got)
	}
	s.queue.pop()
	if got := offers(noon.Add(time.Second), "c", "d"); got != "d" {
		t.Errorf("with one free place again events of %q, want of d", got)
	}
	want := `
# HELP ratelimitd_events_waiting Events waiting to be sent.
# TYPE ratelimitd_events_waiting gauge
ratelimitd_events_waiting 3
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "ratelimitd_events_waiting"); err != nil {
		t.Error(err)
	}
	if rate, queue := s.dropped[overRate].Load(), s.dropped[noRoom].Load(); rate != 2 || queue != 1 {
		t.Errorf("%d and %d events dropped because of rate and queue, want 2 and 1", rate, queue)
	}
}

// A penalty has a period that starts now, so another penalty has another id.
func TestPeriodOfAPenalty(t *testing.T) {
	s := newSink(Options{})
	one, ok := s.Due(noon, Penalty, []byte("a"), &minute, 10*time.Minute)
	if !ok || instant(one.start) != "2026-03-10T12:00:10Z" || instant(one.end) != "2026-03-10T12:10:10Z" {
		t.Errorf("%t, from %s to %s", ok, instant(one.start), instant(one.end))
	}
	two, ok := s.Due(noon.Add(time.Minute), Penalty, []byte("a"), &minute, 10*time.Minute)
	if !ok || one.id() == two.id() {
		t.Errorf("%t: two penalties have the ids %s and %s", ok, one.id(), two.id())
	}
}

func TestDueAllocatesNothing(t *testing.T) {
	s := newSink(Options{})
	key := []byte("d|k=a|f60")
	s.Due(noon, Denial, key, &minute, 50*time.Second)
	if n := testing.AllocsPerRun(1000, func() { s.Due(noon, Denial, key, &minute, 50*time.Second) }); n != 0 {
		t.Errorf("%v allocations for a denial whose event was sent before", n)
	}
}

func TestFormOfAnEvent(t *testing.T) {
	const want = `{"specversion":"1.0","id":"ID","source":"/ratelimitd","type":"io.github.ratelimitd.denial.v1","subject":"api.user","time":"2026-03-10T12:00:10Z",` +
		`"datacontenttype":"application/json","data":{"domain":"api","rule":"api.user","name":"per minute","entries":[{"key":"user","value":"ann"},{"key":"path","value":""}],` +
		`"counter":"COUNTER","period_start":"2026-03-10T12:00:00Z","period_end":"2026-03-10T12:01:00Z","algorithm":"fixed_window","requests_per_unit":5,"window_seconds":60,` +
		`"capacity":5,"hits":1,"used":6,"retry_after_ms":49001}}`
	event := func() *Event {
		return &Event{
			Time: noon, Domain: "api", Rule: "api.user", Entries: []descriptor.Entry{{Key: "user", Value: "ann"}, {Key: "path"}}, Limit: minute,
			Capacity: 5, Hits: 1, Used: 6, RetryAfter: 49*time.Second + time.Microsecond,
		}
	}
	form := func(s *Sink, e *Event) string {
		due, ok := s.Due(noon, Denial, []byte("key"), &minute, 50*time.Second)
		if !ok {
			t.Fatal("no event is due")
		}
		s.Send(due, e)
		sent := s.queue.pop()
		text := strings.ReplaceAll(string(s.encode(sent)), sent.due.id(), "ID")
		return strings.ReplaceAll(text, "2c70e12b7a0646f92279f427c7b38e73", "COUNTER") // SHA-256 of "key"
	}
	if got := form(newSink(Options{Values: true}), event()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	without := strings.ReplaceAll(strings.ReplaceAll(want, `,"value":"ann"`, ""), `,"value":""`, "")
	if got := form(newSink(Options{}), event()); got != without {
		t.Errorf("without values: got  %s\nwant %s", got, without)
	}
	long := event()
	long.Entries[0].Value = strings.Repeat("x", MaxEntryBytes)
	if got := form(newSink(Options{Values: true}), long); !strings.Contains(got, `"entries":[]`) {
		t.Errorf("an event with %d bytes of entries is %s", size(event()), got)
	}
	odd := event()
	odd.Domain, odd.RetryAfter, odd.Override, odd.Blocked, odd.Degraded = "\xff\n", -1, true, true, "local"
	got := form(newSink(Options{}), odd)
	for _, part := range []string{`"domain":"\ufffd\n"`, `"override":true,"blocked":true,"degraded":"local"`} {
		if !strings.Contains(got, part) || strings.Contains(got, "retry_after_ms") {
			t.Errorf("%s has not %s", got, part)
		}
	}
}

// Receivers rely on the id of an event: it must not change between versions.
func TestIDsStayAsTheyAre(t *testing.T) {
	s := newSink(Options{})
	due, _ := s.Due(noon, Denial, []byte("key"), &minute, 50*time.Second)
	if got := due.id(); got != "274d3f84a5e2f010df68985244bee75c" {
		t.Errorf("%s", got)
	}
}

// An event shows the actual length of a calendar window, e.g. 28 or 29 days for February.
func TestLengthOfACalendarWindowInEvents(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		start, end string
		window     descriptor.Window
		want       string
	}{
		{"2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month, Location: time.UTC}, "2678400"},
		{"2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z", descriptor.Window{Unit: descriptor.Month, Location: time.UTC}, "2419200"},
		{"2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z", descriptor.Window{Unit: descriptor.Year, Location: time.UTC}, "31622400"},
		{"2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", descriptor.Window{Unit: descriptor.Day, Location: berlin}, "90000"},
		{"2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", descriptor.Window{Unit: descriptor.Day, Location: berlin}, "82800"},
	} {
		limit := descriptor.Limit{Requests: 5, Window: c.window}
		start, _ := time.Parse(time.RFC3339, c.start)
		end, _ := time.Parse(time.RFC3339, c.end)
		for _, kind := range []Kind{Denial, Penalty} {
			for _, now := range []time.Time{start, end.Add(-time.Second)} {
				s := newSink(Options{})
				due, ok := s.Due(now, kind, []byte("key"), &limit, end.Sub(now))
				if !ok {
					t.Fatal("no event is due")
				}
				s.Send(due, &Event{Time: now, Domain: "d", Rule: "d.k", Limit: limit})
				got := string(s.encode(s.queue.pop()))
				if !strings.Contains(got, `"window_seconds":`+c.want+`,`) {
					t.Errorf("%s, %+v: want a window of %s seconds in %s", now, c.window, c.want, got)
				}
				if kind == Denial && !strings.Contains(got, `"period_start":"`+c.start+`","period_end":"`+c.end+`"`) {
					t.Errorf("%s, %+v: want the period from %s to %s in %s", now, c.window, c.start, c.end, got)
				}
			}
		}
	}
}
