package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

// A pasted log goes through the rules in force, and changes no counter of theirs.
func TestConsoleReplaysLogs(t *testing.T) {
	dir := writeRules(t, map[string]string{"api.yaml": "domain: api\ndescriptors:\n  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 5}}\n"})
	tree, err := simulate.LoadRules(dir, false, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{options: new(serveCommand), limiter: limiter.New(limiter.Options{})}
	if _, err := s.replay(t.Context(), &operator.Replay{}); err == nil || !strings.Contains(err.Error(), "no rules") {
		t.Errorf("without rules: %v", err)
	}
	s.limiter.Swap(tree, limiter.Settings{})
	var log strings.Builder
	log.WriteString("when,tenant\n")
	for i := range 8 {
		fmt.Fprintf(&log, "2026-03-01T12:00:%02dZ,acme\n", i)
	}
	for i := range 200 {
		fmt.Fprintf(&log, "2026-03-01T12:01:00Z,caller-%d\n", i)
	}
	const mapping = "format: csv\ntime: when\ndomain: api\ndescriptors: [[{key: tenant, field: tenant}]]\n"
	for _, r := range []operator.Replay{
		{Log: log.String(), Mapping: mapping},
		{Log: log.String(), Format: "csv", Time: "when", Descriptors: []string{"tenant=tenant"}},
	} {
		answer, err := s.replay(t.Context(), &r)
		if err != nil {
			t.Fatal(err)
		}
		report := answer.(*simulate.Report)
		if report.Requests != 208 || report.New.Refused != 3 || len(report.Callers.Rows) != replayRows || report.Callers.Rows[0].Caller != "tenant=acme" || report.Callers.Rows[0].Refused != 3 {
			t.Errorf("%+v", report)
		}
	}
	if d, totals := s.limiter.RuleTotals(); d == nil || totals(0).Hits != 0 {
		t.Error("a replay counts in the metrics of the service")
	}
	for _, c := range []struct {
		r    operator.Replay
		want string
	}{
		{operator.Replay{Log: "x", Format: "csv"}, "choose a format and write a descriptor"},
		{operator.Replay{Log: "x", Format: "csv\ntime: when", Descriptors: []string{"tenant=tenant"}}, `format "csv\ntime: when" is unknown`},
		{operator.Replay{Log: "x", Mapping: "/etc/passwd"}, "the mapping cannot be used"},
		{operator.Replay{Log: "x", Mapping: strings.Repeat("#", replayMappingBytes+1)}, "use at most"},
		{operator.Replay{Log: "x", Format: "csv", Descriptors: make([]string, replayDescriptors+1)}, "use at most"},
		{operator.Replay{Log: "\x1f\x8b", Mapping: mapping}, "read log log"},
		{operator.Replay{Log: "when,tenant\nnever,acme\n", Mapping: mapping}, "no line of the log is a request"},
	} {
		if _, err := s.replay(t.Context(), &c.r); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %s", c.r, err, c.want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.replay(ended, &operator.Replay{Log: log.String(), Mapping: mapping}); !errors.Is(err, context.Canceled) {
		t.Errorf("after its time: %v", err)
	}
}
