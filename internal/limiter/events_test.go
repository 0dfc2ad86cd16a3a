package limiter_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events/destination"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// noonSharp is the start of the minute and hour of noon.
var noonSharp = noon.Truncate(time.Hour)

// watched is a limiter that writes its events.
type watched struct {
	*fixture
	sink *events.Sink
	out  bytes.Buffer

	periods []string // periods of the events that sent returned last, relative to noonSharp
}

func newWatched(t *testing.T, store backend.Store, s limiter.Settings, nodes ...descriptor.NodeSpec) *watched {
	t.Helper()
	w := &watched{}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: nodes}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.sink = events.New(events.Options{To: destination.Lines(&w.out), Values: true})
	l := limiter.New(limiter.Options{Store: store, Local: memory.New(memory.Options{}), Events: w.sink})
	l.Swap(tree, s)
	w.fixture = &fixture{Limiter: l, t: t, now: noon}
	return w
}

// sent returns the events since the last call, in short: type, rule, entries, and used of capacity.
func (w *watched) sent() (all []string) {
	w.t.Helper()
	w.out.Reset()
	w.periods = nil
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	if err := w.sink.Run(ctx); err != nil {
		w.t.Fatal(err)
	}
	for lines := bufio.NewScanner(&w.out); lines.Scan(); {
		var e struct {
			Type string `json:"type"`
			Data struct {
				Rule     string                        `json:"rule"`
				Name     string                        `json:"name"`
				Entries  []struct{ Key, Value string } `json:"entries"`
				Capacity uint64                        `json:"capacity"`
				Used     int64                         `json:"used"`
				Blocked  bool                          `json:"blocked"`
				Degraded string                        `json:"degraded"`
				Start    time.Time                     `json:"period_start"`
				End      time.Time                     `json:"period_end"`
			} `json:"data"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			w.t.Fatalf("%s: %v", lines.Bytes(), err)
		}
		kind := strings.TrimSuffix(strings.TrimPrefix(e.Type, "io.github.ratelimitd."), ".v1")
		text := strings.TrimSpace(fmt.Sprintf("%s %s %s", kind, e.Data.Rule, e.Data.Name))
		for _, entry := range e.Data.Entries {
			text += fmt.Sprintf(" %s=%s", entry.Key, entry.Value)
		}
		text += fmt.Sprintf(" %d/%d", e.Data.Used, e.Data.Capacity)
		if e.Data.Blocked {
			text += " blocked"
		}
		all = append(all, strings.TrimSpace(text+" "+e.Data.Degraded))
		w.periods = append(w.periods, fmt.Sprintf("%s %s-%s", kind, e.Data.Start.Sub(noonSharp), e.Data.End.Sub(noonSharp)))
	}
	return all
}

func (w *watched) wantEvents(what string, want ...string) {
	w.t.Helper()
	if got := strings.Join(w.sent(), "; "); got != strings.Join(want, "; ") {
		w.t.Errorf("%s: events %s, want %s", what, got, strings.Join(want, "; "))
	}
}

func TestEventOfADenial(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("k", "", 2), perMinute("l", "", 9, func(r *descriptor.Rule) { r.Name = "large" }))
	for range 2 {
		w.decide(request(1, "k=a", "l=a"))
	}
	w.wantEvents("requests that pass")
	for range 3 {
		w.decide(request(1, "k=a", "l=a"))
	}
	w.wantEvents("the same counter three times", "denial d.k k=a 3/2")
	w.decide(request(1, "k=b", "l=a"))
	w.decide(request(5, "k=b", "l=a"))
	w.wantEvents("two limits that deny", "denial d.k k=b 6/2", "denial d.l large l=a 11/9")
	w.now = w.now.Add(time.Minute)
	w.decide(request(3, "k=a"))
	w.wantEvents("the next window", "denial d.k k=a 3/2")
}

// A soft limit and a limit with warn_at have events of separate types. A limit in shadow has none.
func TestEventsOfWarnings(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{},
		listNode("k", []descriptor.Limit{fixedLimit("hard", 5, hourly, warnAt(60)), fixedLimit("day", 3, soft, warnAt(60)), fixedLimit("new", 1, inShadow)}))
	w.ask(0, "k=a")
	w.ask(1, "k=a")
	w.wantEvents("a third")
	w.ask(1, "k=a")
	w.wantEvents("two thirds", "warning d.k day k=a 2/3")
	w.ask(1, "k=a")
	w.wantEvents("three fifths", "warning d.k hard k=a 3/5")
	w.ask(1, "k=a")
	w.ask(1, "k=a")
	w.wantEvents("above the soft limit", "exceeded d.k day k=a 4/3")
	w.ask(0, "k=a")
	w.ask(-1, "k=a")
	w.wantEvents("a peek and a refund")
	w.ask(9, "k=a")
	w.wantEvents("a denial", "denial d.k hard k=a 13/5")
}

// A penalty sends an event when it starts, in addition to the denial's. A denial in a later window has a separate
// event, in that window.
func TestEventOfAPenalty(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("k", "", 2, penalty(10*time.Minute)))
	w.ask(0, "k=a")
	w.ask(2, "k=a")
	w.wantEvents("no penalty yet")
	w.ask(1, "k=a")
	w.ask(1, "k=a")
	w.wantEvents("its begin", "denial d.k k=a 3/2", "penalty d.k k=a 3/2")
	for _, after := range []time.Duration{time.Minute, 70 * time.Second, 2 * time.Minute} {
		w.now = noon.Add(after)
		w.ask(1, "k=a")
	}
	w.wantEvents("denials in two later windows", "denial d.k k=a 0/2", "denial d.k k=a 0/2")
	if _, err := w.Reset(t.Context(), w.now, "d", &limiter.Descriptor{Entries: entries("k=a")}); err != nil {
		t.Fatal(err)
	}
	w.ask(3, "k=a")
	w.wantEvents("a penalty after a reset", "penalty d.k k=a 3/2")

	shadow := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("k", "", 2, penalty(10*time.Minute), func(r *descriptor.Rule) { r.Shadow = true }))
	shadow.ask(3, "k=a")
	shadow.wantEvents("a penalty in shadow")
	all := newWatched(t, memory.New(memory.Options{}), limiter.Settings{Shadow: true}, perMinute("k", "", 2, penalty(10*time.Minute)))
	all.ask(3, "k=a")
	all.wantEvents("a penalty in global shadow mode")
}

// A denial during a penalty has the period of the limit's own window, and an event in each window.
func TestPeriodsDuringAPenalty(t *testing.T) {
	store := memory.New(memory.Options{})
	w := newWatched(t, store, limiter.Settings{}, perMinute("k", "", 2, penalty(10*time.Minute)))
	var periods []string
	for _, after := range []time.Duration{10 * time.Second, 30 * time.Second, 70 * time.Second, 9*time.Minute + 50*time.Second} {
		w.now = noonSharp.Add(after)
		w.ask(3, "k=a")
		w.sent()
		periods = append(periods, w.periods...)
	}
	want := "denial 0s-1m0s, penalty 10s-10m10s, denial 1m0s-2m0s, denial 9m0s-10m0s"
	if got := strings.Join(periods, ", "); got != want {
		t.Errorf("periods %s, want %s", got, want)
	}
}

// Without a denied request there is no event.
func TestNoEventWithoutADenial(t *testing.T) {
	shadow := func(r *descriptor.Rule) { r.Shadow = true }
	quota := func(r *descriptor.Rule) { r.Quota = true }
	nodes := []descriptor.NodeSpec{perMinute("k", "", 1), perMinute("shadow", "", 1, shadow), perMinute("quota", "", 1, quota), perMinute("other", "", 9, quota)}
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, nodes...)
	for range 3 {
		w.decide(request(1, "shadow=a"))
		w.decide(request(1, "quota=a", "other=a"))
		w.decide(request(1, "none=a"))
		look := request(9, "k=a")
		look.Purpose = limiter.Look
		w.decide(look)
		charge := request(9, "k=c")
		charge.Purpose = limiter.Settled
		w.decide(charge)
	}
	w.wantEvents("shadow, quota, no rule, looks, charges")
	w.decide(request(2, "k=b"))
	w.ask(0, "k=b")
	w.ask(-1, "k=b")
	w.wantEvents("a denial, a peek and a refund", "denial d.k k=b 2/1")

	all := newWatched(t, memory.New(memory.Options{}), limiter.Settings{Shadow: true}, nodes...)
	all.decide(request(2, "k=b"))
	all.wantEvents("global shadow mode")
}

// Entries are as the counter has them.
func TestEntriesOfAnEvent(t *testing.T) {
	node := perMinute("path", "/v1/*", 1)
	node.ShareThreshold = true
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, node)
	w.decide(request(2, "path=/v1/a"))
	w.decide(request(2, "path=/v1/b"))
	w.wantEvents("a shared counter", "denial d.path_/v1/* path=/v1/* 2/1")

	own := request(2, "k=a")
	own.Descriptors[0].HasLimit, own.Descriptors[0].Limit = true, limiter.RequestLimit{Requests: 1, Unit: int32(descriptor.Minute)}
	w.decide(own)
	w.wantEvents("a limit of the request", "denial request_limit k=a 2/1")
}

// The event of a blocked customer mentions the override, and has the counter of the block.
func TestEventOfABlockedCaller(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("k", "", 9, overridable))
	w.overrides = &override.Set{}
	w.override("d.k", "", override.Numbers{Kind: override.Blocked}, "k=a")
	w.ask(1, "k=a")
	w.ask(1, "k=a")
	w.ask(1, "k=b")
	w.wantEvents("a blocked caller, and another one", "denial d.k k=a 0/0 blocked")
}

// A reservation that is denied has an event. Later steps of one that was granted have none, though the limit is full by
// then.
func TestEventOfAReservation(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("k", "", 10, reservable))
	w.reserve(1, limiter.OK, amount(10, "k=a"))
	w.wantEvents("a reservation that is granted")
	w.reserve(2, limiter.OverLimit, amount(1, "k=a"))
	w.wantEvents("a reservation that is denied", "denial d.k k=a 10/10")
	w.now = w.now.Add(time.Second)
	if _, err := w.step(1, limiter.Reservation{Op: backend.OpCommit, Final: true}, amount(20, "k=a")); err != nil {
		t.Error(err)
	}
	w.wantEvents("a commit of more than was reserved")
}

// Descriptors that share a counter have one event.
func TestEventOfASharedCounter(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{Admission: descriptor.AllOrNothing}, perMinute("k", "", 2))
	w.decide(request(2, "k=a", "k=a"))
	w.wantEvents("two descriptors of two hits each", "denial d.k k=a 0/2")
}

// Plans that share a counter each send an event: the event of one plan does not describe the limit of the next.
func TestEventAfterAChangeOfPlan(t *testing.T) {
	var plans []descriptor.NodeSpec
	for i, value := range []string{"free", "pro"} {
		plans = append(plans, descriptor.NodeSpec{Key: "plan", Value: value, Condition: true, Children: []descriptor.NodeSpec{perMinute("k", "", uint64(2+2*i))}})
	}
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, plans...)
	for _, plan := range []string{"plan=free", "plan=pro"} {
		for range 6 {
			w.ask(1, plan, "k=a")
		}
	}
	w.wantEvents("both plans", "denial d.plan_free.k plan=free k=a 3/2", "denial d.plan_pro.k plan=pro k=a 7/4")
}

// A denial that the denial cache answers has an event like any other.
func TestEventOfACachedDenial(t *testing.T) {
	store := overlimit.New(overlimit.Options{Store: memory.New(memory.Options{}), Bytes: 1 << 20})
	w := newWatched(t, store, limiter.Settings{}, perMinute("k", "", 2))
	w.decide(request(3, "k=a"))
	w.wantEvents("the first", "denial d.k k=a 3/2")
	for range 3 {
		w.decide(request(1, "k=a"))
	}
	w.wantEvents("cached, of the same window")
}

// Local counters belong to this replica, and the event shows it. A denial without a counter has no event.
func TestEventsWithoutTheStore(t *testing.T) {
	for how, want := range map[descriptor.OnError][]string{
		descriptor.OnErrorLocal: {"denial d.k k=a 2/1 local"}, descriptor.OnErrorDeny: nil,
	} {
		w := newWatched(t, &flaky{memory.New(memory.Options{}), all}, limiter.Settings{OnError: how}, perMinute("k", "", 1))
		if d := w.decide(request(2, "k=a")); d.Code != limiter.OverLimit {
			t.Errorf("%s", d.Code)
		}
		w.wantEvents(descriptor.OnErrorNames[how], want...)
	}
}

func TestEventsAllocateNothing(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{}, perMinute("k", "", 1), perMinute("l", "", 1<<40))
	w.decide(request(2, "k=a"))
	for name, req := range map[string]*limiter.Request{"allowed": request(1, "l=a"), "denied again": request(1, "k=a")} {
		d := &limiter.Decision{}
		if n := testing.AllocsPerRun(100, func() {
			if err := w.Decide(t.Context(), noon, req, d); err != nil {
				t.Fatal(err)
			}
		}); n > 0 && !racetest.On {
			t.Errorf("%v allocations for a decision that is %s, want none", n, name)
		}
	}
}

// BenchmarkEvents measures the cost of events, next to the same decision without them: a decision that passes, and one
// that is denied and whose event was sent before.
func BenchmarkEvents(b *testing.B) {
	for _, with := range []bool{false, true} {
		opts := limiter.Options{Store: memory.New(memory.Options{})}
		if with {
			opts.Events = events.New(events.Options{To: destination.Lines(new(bytes.Buffer))})
		}
		l := limiter.New(opts)
		tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 1<<40), perMinute("l", "", 1)}}}, descriptor.Options{})
		if err != nil {
			b.Fatal(err)
		}
		l.Swap(tree, limiter.Settings{})
		for _, pair := range []string{"k=a", "l=a"} {
			b.Run(fmt.Sprintf("events=%t/%s", with, pair[:1]), func(b *testing.B) {
				req, d := request(2, pair), &limiter.Decision{}
				b.ReportAllocs()
				for b.Loop() {
					if err := l.Decide(b.Context(), noon, req, d); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// An event has no room for many entries, however short they are.
func TestEventOfManyEntries(t *testing.T) {
	w := newWatched(t, memory.New(memory.Options{}), limiter.Settings{})
	for n, want := range map[int]int{100: 100, 200: 0} {
		r := request(2, "k=a")
		r.Descriptors[0].Entries = slices.Repeat(r.Descriptors[0].Entries, n)
		r.Descriptors[0].HasLimit, r.Descriptors[0].Limit = true, limiter.RequestLimit{Requests: 1, Unit: int32(descriptor.Minute)}
		w.decide(r)
		got := strings.Join(w.sent(), "; ")
		if !strings.HasPrefix(got, "denial request_limit") || strings.Count(got, "k=a") != want {
			t.Errorf("%d entries: %s, want one event with %d entries", n, got, want)
		}
	}
}
