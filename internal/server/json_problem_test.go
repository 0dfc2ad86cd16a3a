package server

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// A client that accepts problem details gets the reason of a denial. Other clients get a RateLimitResponse.
func TestJSONProblems(t *testing.T) {
	r := start(t, Options{Decider: decider(func(_ context.Context, _ time.Time, req *limiter.Request, d *limiter.Decision) error {
		s := limiter.Status{Code: limiter.OverLimit, Penalised: req.Domain == "penalty"}
		switch req.Domain {
		case "fails":
			s.Degraded = descriptor.OnErrorDeny
		case "passes":
			s.Code = limiter.OK
		}
		*d = limiter.Decision{Code: s.Code, Statuses: []limiter.Status{s}, Headers: []limiter.Header{{Key: "RateLimit", Value: `"daily";r=0;t=30`}}}
		return nil
	})})
	const types, rest = `{"type":"https://iana.org/assignments/http-problem-types#`, `","title":"too many requests","status":429,"violated-policies":["daily"]}`
	for _, c := range []struct {
		accept, domain string
		code           int
		want           string
	}{
		{"text/html;q=0.1, application/problem+json", "over", 429, types + "quota-exceeded" + rest},
		{"application/problem+json", "penalty", 429, types + "abnormal-usage-detected" + rest},
		{"application/problem+json", "fails", 429, types + "temporary-reduced-capacity" + rest},
		{"application/problem+json", "passes", 200, `"overallCode":"OK"`},
		{"application/json", "over", 429, `"overallCode":"OVER_LIMIT"`},
		{"", "over", 429, `"overallCode":"OVER_LIMIT"`},
	} {
		req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+r.HTTPAddr.String()+"/json", strings.NewReader(`{"domain":"`+c.domain+`","descriptors":[{}]}`))
		if err != nil {
			t.Fatal(err)
		}
		if c.accept != "" {
			req.Header.Set("Accept", c.accept)
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		wantType := "application/json"
		if strings.HasPrefix(c.want, types) {
			wantType = "application/problem+json"
		}
		if err != nil || answer.StatusCode != c.code || !strings.Contains(string(body), c.want) || answer.Header.Get("Content-Type") != wantType {
			t.Errorf("%+v: %d %v %s, %v", c, answer.StatusCode, answer.Header, body, err)
		}
	}
}
