package limiter_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// A request may bring a limit with a multiple of a unit. The window identifies the counter, not its notation.
func TestRequestLimitOfSeveralUnits(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100))
	ask := func(requests, multiplier uint32, unit descriptor.Unit) limiter.Status {
		return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{
			Entries: entries("k=a"), HasLimit: true,
			Limit: limiter.RequestLimit{Requests: requests, Unit: int32(unit), Multiplier: multiplier},
		}}}).Statuses[0]
	}
	first := ask(3, 30, descriptor.Second) // ten seconds into the minute
	f.want(first, limiter.OK, 2)
	if first.Reset != 20*time.Second || first.Limit.Unit != descriptor.Second || first.Limit.Multiplier != 30 || first.Limit.Requests != 3 {
		t.Errorf("got %+v", first)
	}
	f.want(ask(3, 30, descriptor.Second), limiter.OK, 1)
	f.want(ask(3, 0, descriptor.Minute), limiter.OK, 2) // another window
	f.want(ask(3, 60, descriptor.Second), limiter.OK, 1)
	f.want(ask(3, 1, descriptor.Minute), limiter.OK, 0)
	f.now = f.now.Add(30 * time.Second)
	f.want(ask(3, 30, descriptor.Second), limiter.OK, 2)
	f.want(ask(3, 90, descriptor.Year), limiter.OK, 2)

	for unit, multiplier := range map[descriptor.Unit]uint32{descriptor.Year: 91, descriptor.Week: math.MaxUint32, descriptor.Second: math.MaxUint32} {
		err := f.Decide(context.Background(), noon, &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{{}, {
			HasLimit: true, Limit: limiter.RequestLimit{Requests: 1, Unit: int32(unit), Multiplier: multiplier},
		}}}, &limiter.Decision{})
		if !errors.As(err, new(*limiter.InvalidError)) || !strings.Contains(err.Error(), "descriptors[1].limit.unit_multiplier") {
			t.Errorf("%d %ss: %v", multiplier, unit, err)
		}
	}
}
