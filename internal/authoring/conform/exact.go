package conform

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	callers  = 16  // at the same time
	perDay   = 400 // the limit that callers share
	perWin   = 50  // the limit of each second
	edgesFor = 3300 * time.Millisecond
)

// The cases of the level exact. Their requests are not written down: they are counted.
var exactCases = []Case{
	{Name: "together", Level: Exact, Why: "Clients at the same time get exactly the limit together.", Rules: exactRules("together", "day", perDay)},
	{Name: "window-edges", Level: Exact, Why: "No window of a second lets more pass than its limit.", Rules: exactRules("window-edges", "second", perWin)},
	{Name: "restart", Level: Exact, Why: "A restart forgets nothing that was counted.", Rules: exactRules("restart", "day", perDay)},
}

func exactRules(name, unit string, requests int) string {
	return fmt.Sprintf("domain: conform-%s\ndescriptors:\n  - key: user\n    rate_limit: {unit: %s, requests_per_unit: %d}\n", name, unit, requests)
}

func request(domain, key, value string) *ratelimitv3.RateLimitRequest {
	return &ratelimitv3.RateLimitRequest{Domain: domain, Descriptors: []*descriptorv3.RateLimitDescriptor{
		{Entries: []*descriptorv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

func (o *Options) count(ctx context.Context, c *Case, run string) Result {
	switch c.Name {
	case "together":
		passed, err := o.send(ctx, c, 2*perDay, 0)
		return differs(err, passed == perDay, "%d of %d requests passed, the limit is %d", passed, 2*perDay, perDay)
	case "window-edges":
		began := time.Now()
		passed, err := o.send(ctx, c, 0, edgesFor)
		windows := int64(time.Since(began)/time.Second) + 2 // that these seconds can touch
		return differs(err, passed <= windows*perWin && passed > perWin, "%d requests passed in at most %d windows of %d", passed, windows, perWin)
	default:
		if o.Restart == "" {
			return Result{Skipped: "no command to restart the service was given"}
		}
		before, err := o.send(ctx, c, perDay/2, 0)
		if err == nil {
			err = shell(ctx, o.Restart)
		}
		if err == nil {
			err = o.await(ctx, run)
		}
		after := int64(0)
		if err == nil {
			after, err = o.send(ctx, c, perDay, 0)
		}
		return differs(err, before+after == perDay, "%d requests passed before a restart and %d after it, the limit is %d", before, after, perDay)
	}
}

func differs(err error, good bool, format string, args ...any) Result {
	switch {
	case err != nil:
		return Result{Failure: "no answer: " + err.Error()}
	case good:
		return Result{}
	}
	return Result{Failure: fmt.Sprintf(format, args...)}
}

// send sends requests from all callers, a number of them or for a time, and returns how many passed.
func (o *Options) send(ctx context.Context, c *Case, n int64, long time.Duration) (passed int64, err error) {
	var sent, ok atomic.Int64
	var failed atomic.Pointer[error]
	r := request(c.domain(), "user", "one")
	until := time.Now().Add(long)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for failed.Load() == nil && ctx.Err() == nil {
				if long > 0 && !time.Now().Before(until) || long == 0 && sent.Add(1) > n {
					return
				}
				answer, err := o.Ask(ctx, r)
				if err != nil {
					failed.Store(&err)
				} else if answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
					ok.Add(1)
				}
			}
		})
	}
	all.Wait()
	if e := failed.Load(); e != nil {
		return ok.Load(), *e
	}
	return ok.Load(), ctx.Err()
}
