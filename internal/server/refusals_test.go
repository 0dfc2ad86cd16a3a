package server

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// refuse refuses all that has an entry by the second limit of a rule, for as long as the entry's value says.
func refuse(_ context.Context, _ time.Time, req *limiter.Request, d *limiter.Decision) error {
	rule := &descriptor.Rule{Path: "edge.wait", Limits: []descriptor.Limit{
		{Requests: 9, Window: descriptor.Window{Unit: descriptor.Hour}},
		{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}},
	}}
	d.Code = limiter.OK
	for _, asked := range req.Descriptors {
		s := limiter.Status{Code: limiter.OK}
		if len(asked.Entries) > 0 {
			wait, err := time.ParseDuration(asked.Entries[0].Value)
			if err != nil {
				wait = -1
			}
			d.Code = limiter.OverLimit
			s = limiter.Status{Code: limiter.OverLimit, Rule: rule, LimitIndex: 1, Limited: true, RetryAfter: wait,
				Limit: limiter.CurrentLimit{Requests: 5, Unit: descriptor.Minute}, Overridden: len(asked.Entries) > 1}
			if asked.HasLimit && !s.Overridden {
				s.Rule = nil
			}
		}
		d.Statuses = append(d.Statuses, s)
	}
	return nil
}

func asking(value string) *limiter.Request {
	return &limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{}, {Entries: []descriptor.Entry{{Key: "wait", Value: value}}}}}
}

func TestRefusalsAreLogged(t *testing.T) {
	var log bytes.Buffer
	d := observed(&Options{
		Decider: decider(refuse), Observers: Observers{RefusalLogs: 2, Keys: descriptor.KeyBuilder{Prefix: "p:"}},
		Shared: &endpoint.Shared{Log: slog.New(slog.NewTextHandler(&log, nil))},
	})
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lines := func(req *limiter.Request) []string {
		t.Helper()
		log.Reset()
		if err := d.Decide(t.Context(), now, req, new(limiter.Decision)); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(log.String()), "\n")
	}
	has := func(req *limiter.Request, texts ...string) {
		t.Helper()
		got := lines(req)
		if len(got) != 1 {
			t.Errorf("%d lines: %q", len(got), got)
		}
		for _, text := range texts {
			if !strings.Contains(got[0], text) {
				t.Errorf("%q is not in %s", text, got[0])
			}
		}
	}
	nothing := func(req *limiter.Request) {
		t.Helper()
		if got := lines(req); len(got) != 1 || got[0] != "" {
			t.Errorf("logged %q", got)
		}
	}
	nothing(&limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{}}})
	has(asking("37s"), "msg=refused", "domain=edge", `entries="wait=37s"`, "requests_per_unit=5", "wait=37s", "rule=edge.wait", `key="p:edge|wait=37s|f60"`)
	has(asking("never"), "wait=forever")
	nothing(asking("3s")) // the third within a second
	nothing(asking("4s"))

	now = now.Add(time.Second)
	limited := asking("5s")
	limited.Descriptors[1].HasLimit = true
	has(limited, `rule="limit of the request"`, "not_logged=2")
	overridden := asking("6s") // an override comes before the request's limit
	overridden.Descriptors[1].HasLimit = true
	overridden.Descriptors[1].Entries = append(overridden.Descriptors[1].Entries, descriptor.Entry{Key: "k", Value: "v"})
	has(overridden, "rule=edge.wait", "override=true")
	now = now.Add(time.Second)
	long := asking(strings.Repeat("é", 1000))
	has(long, "…")
	if got := len(log.String()); got > 1000 {
		t.Errorf("a line of %d bytes", got)
	}
}

func TestRefusalsAreLoggedOfBothTransports(t *testing.T) {
	r := start(t, Options{Decider: decider(byDomain), Observers: Observers{RefusalLogs: 10}})
	over := smallRequest()
	over.Domain = "over"
	if _, err := r.rateLimit().ShouldRateLimit(within(t), over); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := request(t, "POST", r.HTTPAddr, "/json", strings.NewReader(`{"domain":"over","descriptors":[{}]}`)); code != 429 {
		t.Fatal(code)
	}
	if n := strings.Count(r.log.String(), "msg=refused"); n != 2 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
}

// Observers that are off cost nothing.
func TestDeciderIsNotWrappedWithoutObservers(t *testing.T) {
	d := &held{}
	if got := observed(&Options{Decider: d}); got != Decider(d) {
		t.Errorf("got %T", got)
	}
}

// startedLater is a Starter whose answers come when answer is called.
type startedLater struct {
	decider

	answer func()
}

func (s *startedLater) Start(ctx context.Context, now time.Time, _ *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	if req.Domain == "at once" {
		return true, s.Decide(ctx, now, req, d)
	}
	err = s.Decide(ctx, now, req, d)
	s.answer = func() { done(err) }
	return false, nil
}

// A decision on the lean transport may be made at once or later. Both are logged, once.
func TestRefusalsAreLoggedWhenTheyAreMade(t *testing.T) {
	var log bytes.Buffer
	refuser := &startedLater{decider: refuse}
	d := observed(&Options{
		Decider: refuser, Observers: Observers{RefusalLogs: 10},
		Shared: &endpoint.Shared{Log: slog.New(slog.NewTextHandler(&log, nil))},
	}).(Starter)
	req, ended := asking("37s"), 0
	for _, domain := range []string{"at once", "later", "at once", "later"} {
		req.Domain = domain
		decided, err := d.Start(t.Context(), time.Unix(1000, 0), nil, req, new(limiter.Decision), func(err error) {
			if ended++; err != nil {
				t.Error(err)
			}
		})
		if decided != (domain == "at once") || err != nil {
			t.Errorf("%s: decided %v, %v", domain, decided, err)
		}
		if decided {
			continue
		}
		if strings.Contains(log.String(), domain) && ended == 0 {
			t.Errorf("logged before it was made:\n%s", &log)
		}
		refuser.answer()
	}
	if n := strings.Count(log.String(), `entries="wait=37s"`); n != 4 || ended != 2 {
		t.Errorf("%d lines, %d answers came later:\n%s", n, ended, &log)
	}
}

// passing is a Starter that allocates nothing.
type passing struct {
	Decider

	later bool
}

func (p *passing) Start(_ context.Context, _ time.Time, _ *limiter.Batch, _ *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	if d.Code = limiter.OK; p.later {
		done(nil)
	}
	return !p.later, nil
}

func TestLogOfRefusalsAllocatesNothingForWhatPasses(t *testing.T) {
	for name, later := range map[string]bool{"at once": false, "later": true} {
		d := observed(&Options{Decider: &passing{later: later}, Observers: Observers{RefusalLogs: 10}, Shared: &endpoint.Shared{Log: slog.Default()}}).(Starter)
		req, decision, done := asking("0s"), new(limiter.Decision), func(error) {}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := d.Start(t.Context(), time.Unix(1000, 0), nil, req, decision, done); err != nil {
				t.Fatal(err)
			}
		}); n > 0 && !raceDetector {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
