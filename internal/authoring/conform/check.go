package conform

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

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

// Difference returns how an answer, which was given between from and to, differs from the step's; empty: it does not. It changes the
// answer.
func (s *Step) Difference(got *ratelimitv3.RateLimitResponse, err error, from, to time.Time) string {
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

// untimed removes what depends on the time of day, as the recordings do. First it checks that the ends of windows are right for an
// answer that was given between from and to.
func untimed(r *ratelimitv3.RateLimitResponse, from, to time.Time) (problem string) {
	const rounded = time.Second
	for i, s := range r.GetStatuses() {
		if s.GetDurationUntilReset() == nil {
			continue
		}
		_, micros := descriptor.Window{Unit: descriptor.Unit(s.GetCurrentLimit().GetUnit())}.Bounds(from.UnixMicro())
		end, left := time.UnixMicro(micros), s.GetDurationUntilReset().AsDuration()
		if from.Add(left).After(end.Add(rounded)) || to.Add(left).Before(end.Add(-rounded)) {
			problem = fmt.Sprintf("status %d resets in %s, but its window ends %s after the request was sent", i, left, end.Sub(from))
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

// Collides reports whether two windows of the case begin at the same moment now, such as an hour's and a day's in the first hour
// of a day. The keys of envoyproxy/ratelimit have that moment and no unit, so such windows share a counter there. The recordings were
// made when none did.
func (c *Case) Collides(now time.Time) bool {
	units := make(map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool)
	for _, s := range c.Steps {
		var answer ratelimitv3.RateLimitResponse
		if s.Error != "" || protojson.Unmarshal(s.Response, &answer) != nil {
			continue
		}
		for _, status := range answer.GetStatuses() {
			if status.GetCurrentLimit() != nil {
				units[status.GetCurrentLimit().GetUnit()] = true
			}
		}
	}
	return collide(units, now)
}

func collide(units map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool, now time.Time) bool {
	starts := make(map[int64]bool)
	for unit := range units {
		start, _ := descriptor.Window{Unit: descriptor.Unit(unit)}.Bounds(now.UnixMicro())
		if starts[start] {
			return true
		}
		starts[start] = true
	}
	return false
}
