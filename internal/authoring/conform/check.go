package conform

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Message is the step's request.
func (s *Step) Message() (*ratelimitv3.RateLimitRequest, error) {
	var r ratelimitv3.RateLimitRequest
	if err := protojson.Unmarshal(s.Request, &r); err != nil {
		return nil, fmt.Errorf("read the request %s: %w", s.Request, err)
	}
	return &r, nil
}

// Replay sends the requests of the case, at the times that the clock of the service gives, and compares the answers.
func (c *Case) Replay(ctx context.Context, ask Ask, clock func() time.Time) Result {
	requests, err := c.requests(clock())
	if err != nil {
		return Result{Failure: err.Error()}
	}
	for i, request := range requests {
		from := clock()
		answer, err := ask(ctx, request)
		if difference := c.Steps[i].difference(answer, err, from, clock()); difference != "" {
			return Result{Failure: difference, Step: i + 1, Request: text(request)}
		}
	}
	return Result{}
}

// difference describes how an answer, which was given between from and to, differs from the step's; empty if it does
// not. It changes the answer.
func (s *Step) difference(got *ratelimitv3.RateLimitResponse, err error, from, to time.Time) string {
	switch {
	case s.Error != "" && err == nil:
		return "want an error, got the answer " + text(got)
	case s.Error != "":
		return ""
	case err != nil:
		return "no answer: " + err.Error()
	case s.Differs == "answer":
		return ""
	}
	var want ratelimitv3.RateLimitResponse
	if err := protojson.Unmarshal(s.Response, &want); err != nil {
		return "the suite is wrong: " + err.Error()
	}
	if s.Differs == "headers" {
		got.ResponseHeadersToAdd, want.ResponseHeadersToAdd = nil, nil
	}
	if problem := untimed(got, from, to); problem != "" {
		return problem
	}
	if !proto.Equal(&want, got) {
		return "want " + text(&want) + "\n got " + text(got)
	}
	return ""
}

// text is a message in one line that is the same each time.
func text(m proto.Message) string {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return err.Error()
	}
	var any map[string]any
	if err := json.Unmarshal(raw, &any); err != nil {
		return err.Error()
	}
	sorted, _ := json.Marshal(any) // it comes from JSON
	return string(sorted)
}

// untimed removes everything that depends on the time of day, as the recordings do. First it checks that the ends of
// windows are right for an answer that was given between from and to.
func untimed(r *ratelimitv3.RateLimitResponse, from, to time.Time) (problem string) {
	const rounded = time.Second
	for i, s := range r.GetStatuses() {
		if s.GetDurationUntilReset() == nil {
			continue
		}
		_, micros := descriptor.Window{Unit: descriptor.Unit(s.GetCurrentLimit().GetUnit())}.Bounds(from.UnixMicro())
		end, left := time.UnixMicro(micros), s.GetDurationUntilReset().AsDuration()
		if from.Add(left).After(end.Add(rounded)) || to.Add(left).Before(end.Add(-rounded)) {
			problem = fmt.Sprintf("status %d resets in %s, but its window ends %s after the request was sent", i, left,
				end.Sub(from))
		}
		s.GetDurationUntilReset().Seconds, s.GetDurationUntilReset().Nanos = 0, 0
	}
	for _, h := range r.GetResponseHeadersToAdd() {
		if strings.Contains(strings.ToLower(h.GetKey()), "reset") {
			h.Value = ""
		}
	}
	return problem
}

// requests returns the requests of the case to send now. Two windows of one counter can start at the same moment, such
// as a day and a week on a Thursday. envoyproxy/ratelimit counts both under one key, because its keys contain that
// moment and not the unit. The recordings were made when no two windows did. So in recordings, a request's own limit
// then gets another entry, and with it a separate counter. It needs no rule, so the entry changes nothing else.
func (c *Case) requests(now time.Time) ([]*ratelimitv3.RateLimitRequest, error) {
	all := make([]*ratelimitv3.RateLimitRequest, len(c.Steps))
	for i := range c.Steps {
		var err error
		if all[i], err = c.Steps[i].Message(); err != nil {
			return nil, err
		}
	}
	if c.Level != Recorded {
		return all, nil
	}
	// the unit that envoyproxy/ratelimit counts under each key
	units := make(map[string]ratelimitv3.RateLimitResponse_RateLimit_Unit)
	// rules' limits first: their descriptors stay as they are
	for _, own := range []bool{false, true} {
		for i, request := range all {
			var answer ratelimitv3.RateLimitResponse
			if c.Steps[i].Error != "" {
				continue
			}
			if err := protojson.Unmarshal(c.Steps[i].Response, &answer); err != nil {
				return nil, fmt.Errorf("read the answer %s: %w", c.Steps[i].Response, err)
			}
			for j, status := range answer.GetStatuses() {
				d, unit := request.GetDescriptors()[j], status.GetCurrentLimit().GetUnit()
				if status.GetCurrentLimit() == nil || (d.GetLimit() != nil) != own {
					continue
				}
				counter := sharedKey(d, unit, now)
				if first, found := units[counter]; !found {
					units[counter] = unit
				} else if own && first != unit {
					d.Entries = append(d.Entries, &descriptorv3.RateLimitDescriptor_Entry{Key: "unit", Value: unit.String()})
				}
			}
		}
	}
	return all, nil
}

// sharedKey is the key of envoyproxy/ratelimit, without the domain.
func sharedKey(d *descriptorv3.RateLimitDescriptor, unit ratelimitv3.RateLimitResponse_RateLimit_Unit,
	now time.Time) string {
	var b strings.Builder
	for _, e := range d.GetEntries() {
		fmt.Fprintf(&b, "%s_%s_", e.GetKey(), e.GetValue())
	}
	start, _ := descriptor.Window{Unit: descriptor.Unit(unit)}.Bounds(now.UnixMicro())
	return fmt.Sprint(b.String(), start)
}
