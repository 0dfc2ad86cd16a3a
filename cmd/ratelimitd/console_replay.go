package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

// Bounds of a log that the console replays.
const (
	replayBadLines = 1000
	replayCallers  = 10_000
	replayCounters = 200_000
	replayRows     = 50 // rules and callers in the report

	replayMappingBytes = 64 << 10
	replayDescriptors  = 64
)

var replayFormats = []string{"envoy", "nginx", "apache", "json", "csv", "text"} // as of --format

// replay replays a pasted log through the rules and overrides in force. It counts in a memory of its own.
func (s *service) replay(ctx context.Context, r *operator.Replay) (any, error) {
	tree := s.limiter.Tree()
	if tree == nil {
		return nil, errors.New("no rules are in force")
	}
	mapping, err := mappingOf(tree, r)
	if err != nil {
		return nil, err
	}
	report, err := simulate.Run(ctx, simulate.Options{
		Rules:    simulate.Rules{Folder: "in force", Tree: tree, Overrides: s.limiter.Overrides()},
		Settings: s.options.Answers.settings(),
		Mapping:  mapping,
		// A text from JSON is UTF-8, so it never begins as gzip does: no few bytes become many.
		Logs:        []simulate.Log{{Name: "log", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(r.Log)), nil }}},
		Window:      5 * time.Second,
		MaxBadLines: replayBadLines, MaxCallers: replayCallers, MaxCounters: replayCounters,
	})
	if err != nil {
		return nil, err
	}
	report.Unreached = nil
	report.ByRule = report.ByRule[:min(len(report.ByRule), replayRows)]
	report.Callers.Rows = report.Callers.Rows[:min(len(report.Callers.Rows), replayRows)]
	for i := range report.ByRule {
		if report.ByRule[i].New != nil {
			report.ByRule[i].New.OverTime = nil
		}
	}
	return report, nil
}

// mappingOf reads what the lines of a pasted log mean.
func mappingOf(tree *descriptor.Tree, r *operator.Replay) (*accesslog.Mapping, error) {
	size := len(r.Mapping) + len(r.Format) + len(r.Domain) + len(r.Pattern) + len(r.Time)
	for _, d := range r.Descriptors {
		size += len(d)
	}
	if size > replayMappingBytes || len(r.Descriptors) > replayDescriptors {
		return nil, fmt.Errorf("what the lines of the log mean takes %d bytes and has %d descriptors: use at most %d and %d", size, len(r.Descriptors), replayMappingBytes, replayDescriptors)
	}
	if r.Mapping != "" {
		m, errs := accesslog.ParseMapping("mapping", []byte(r.Mapping))
		return m, unusable("the mapping", errs)
	}
	if r.Format == "" || len(r.Descriptors) == 0 {
		return nil, errors.New("what the lines of the log mean is not known: choose a format and write a descriptor, such as remote_address=ip")
	}
	if !slices.Contains(replayFormats, r.Format) {
		return nil, fmt.Errorf("format %q is unknown: use one of %s", r.Format, strings.Join(replayFormats, ", "))
	}
	flags := mappingOptions{Format: r.Format, Descriptors: r.Descriptors, Domain: r.Domain, Pattern: r.Pattern, Time: r.Time}
	return flags.mapping(tree) // without a file
}
