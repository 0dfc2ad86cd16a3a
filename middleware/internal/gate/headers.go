package gate

import (
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
)

// delayHeader is for clients that wait on their own. Here the middleware waits, and a client must not wait a second
// time.
const delayHeader = "X-RateLimit-Delay-Ms"

// Headers returns the headers for the client. These are the headers of the decision. If the decision has none and made
// is set, they are RateLimit-Limit and so on, made from the status that decided. A denial always has Retry-After,
// unless no wait helps or the time is not known.
func Headers(d *limits.Decision, made bool) []limits.Header {
	all := make([]limits.Header, 0, len(d.Headers)+4)
	retryAfter := false
	for _, h := range d.Headers {
		if strings.EqualFold(h.Name, delayHeader) {
			continue
		}
		retryAfter = retryAfter || strings.EqualFold(h.Name, "Retry-After")
		all = append(all, h)
	}
	if s := tightest(d); len(all) == 0 && made && s != nil {
		all = append(all,
			limits.Header{Name: "RateLimit-Limit", Value: strconv.FormatUint(s.Limit, 10)},
			// a bucket may hold more
			limits.Header{Name: "RateLimit-Remaining", Value: strconv.FormatUint(min(s.Remaining, s.Limit), 10)},
			limits.Header{Name: "RateLimit-Reset", Value: seconds(s.ResetAfter)})
	}
	if !d.Allowed && !retryAfter && d.RetryAfter > 0 && d.RetryAfter != limits.Never {
		all = append(all, limits.Header{Name: "Retry-After", Value: seconds(d.RetryAfter)})
	}
	return all
}

// tightest returns the status that headers describe: the last one that denied, else the one with the fewest remaining
// hits. It returns nil if no limit applies.
func tightest(d *limits.Decision) *limits.Status {
	var best *limits.Status
	for i := range d.Statuses {
		s := &d.Statuses[i]
		switch {
		case s.Limit == 0:
		case !s.Allowed:
			best = s
		case best == nil || best.Allowed && s.Remaining < best.Remaining:
			best = s
		}
	}
	return best
}

// seconds returns whole seconds, rounded up.
func seconds(d time.Duration) string {
	n := int64(max(d, 0) / time.Second)
	if d > 0 && d%time.Second > 0 {
		n++
	}
	return strconv.FormatInt(n, 10)
}
