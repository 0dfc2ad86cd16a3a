package httplimit

import (
	"net/http"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/problem"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Problem is for Options.Denied. It answers with application/problem+json (RFC 9457) and a problem type of
// draft-ietf-httpapi-ratelimit-headers: quota-exceeded; abnormal-usage-detected if a penalty is active; or
// temporary-reduced-capacity if the counters could not be read. The status is the same as without Problem. With the
// headers "ietf" in the rules, the body names the policy that was exceeded, as the header RateLimit does.
func Problem(w http.ResponseWriter, _ *http.Request, d limits.Decision) {
	status, t, title, limit := http.StatusTooManyRequests, problem.QuotaExceeded, "too many requests", ""
	switch d.Source {
	case limits.FailClosed:
		status, t, title = http.StatusServiceUnavailable, problem.ReducedCapacity, "the rate limit cannot be checked"
	case limits.OnError:
		t = problem.ReducedCapacity
	default:
		if slices.ContainsFunc(d.Statuses, func(s limits.Status) bool { return !s.Allowed && s.Penalty }) {
			t = problem.AbnormalUsage
		}
		if i := slices.IndexFunc(d.Headers, func(h limits.Header) bool {
			return strings.EqualFold(h.Name,
				"RateLimit")
		}); i >= 0 {
			limit = d.Headers[i].Value
		}
	}
	problem.Write(w, status, t, title, limit)
}
