package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// refuse refuses all that has an entry by the second limit of a rule, for as long as the entry's value says.
func refuse(req *limiter.Request) *limiter.Decision {
	d := &limiter.Decision{}
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
				s.Rule, s.FromRequest = nil, true
			}
		}
		d.Statuses = append(d.Statuses, s)
	}
	return d
}

func asking(value string) *limiter.Request {
	return &limiter.Request{Domain: "edge", Descriptors: []limiter.Descriptor{{}, {Entries: []descriptor.Entry{{Key: "wait", Value: value}}}}}
}

func TestRefusalsAreLogged(t *testing.T) {
	var log bytes.Buffer
	refused := LogRefusals(2, descriptor.KeyBuilder{Prefix: "p:"}, slog.New(slog.NewTextHandler(&log, nil)))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	lines := func(req *limiter.Request) []string {
		t.Helper()
		log.Reset()
		refused(now, req, refuse(req))
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
	has(asking("37s"), `msg="request denied"`, "domain=edge", `entries="wait=37s"`, "requests_per_unit=5", "wait=37s", "rule=edge.wait", `key="p:edge|wait=37s|f60"`)
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

// Without a tracer, tracing costs nothing.
func TestDeciderIsNotWrappedWithoutTracer(t *testing.T) {
	d := &held{}
	if got := observed(&Options{Decider: d}); got != Decider(d) {
		t.Errorf("got %T", got)
	}
}
