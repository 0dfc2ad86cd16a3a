package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/limits"
)

// problem is a body of the type application/problem+json (RFC 9457).
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

// Problem is for Options.Refused. It answers with a problem type of draft-ietf-httpapi-ratelimit-headers: quota-exceeded, or
// temporary-reduced-capacity if the counters could not be read. The status is the same as without Problem. With the headers "ietf" in the
// rules, the body names the policy that was exceeded, as the header RateLimit does.
func Problem(w http.ResponseWriter, _ *http.Request, d limits.Decision) {
	p := problem{Type: problemTypes + "quota-exceeded", Title: "too many requests", Status: http.StatusTooManyRequests}
	switch d.Source {
	case limits.FailClosed:
		p.Type, p.Title, p.Status = problemTypes+"temporary-reduced-capacity", "the rate limit cannot be checked", http.StatusServiceUnavailable
	case limits.OnError:
		p.Type = problemTypes + "temporary-reduced-capacity"
	default:
		p.Violated = violated(d.Headers)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(&p) // of texts; a client that has gone is no error of the handler
}

// violated returns the name of the policy that the header RateLimit describes: "name";r=0;t=30.
func violated(headers []limits.Header) []string {
	for _, h := range headers {
		if !strings.EqualFold(h.Name, "RateLimit") {
			continue
		}
		quoted, err := strconv.QuotedPrefix(h.Value)
		if err != nil {
			return nil
		}
		if name, err := strconv.Unquote(quoted); err == nil {
			return []string{name}
		}
	}
	return nil
}
