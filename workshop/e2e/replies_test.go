package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Everything that a client gets: a status, Envoy's headers and ours, a body. Also the record in the access log.
func TestReplies(t *testing.T) {
	accessLog := filepath.Join(t.TempDir(), "access")
	f := startFleet(t, `
domain: e2e
headers: []
descriptors:
  - {key: draft03, value: by-envoy, rate_limit: {name: per day, unit: day, requests_per_unit: 1}}
  - {key: draft03, value: week, rate_limit: {unit: week, requests_per_unit: 100}}
  - {key: status, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: body, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: long, rate_limit: {unit: day, unit_multiplier: 2, requests_per_unit: 1}}
  - key: area
    value: billing
    descriptors:
      - {key: user, rate_limit: {name: invoices, unit: day, requests_per_unit: 1}}
  - {key: area, value: tried, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
---
domain: answers
headers: [ratelimit, x-ratelimit, ietf, retry-after]
descriptors:
  - key: user
    rate_limits:
      - {name: hourly, unit: hour, requests_per_unit: 100}
      - {name: daily, unit: day, requests_per_unit: 2}
---
domain: waits
headers: [retry-after]
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket}}
---
domain: own
headers:
  - {name: X-Shop-Call-Limit, value: "{used}/{capacity}"}
  - {name: X-RateLimit-Limit, value: "{limit};w={window}"}
  - {name: X-RateLimit-Reset, value: "{reset_unix}"}
  - {name: X-Denied-By, value: "limit {name}", when: denied}
  - {name: Retry-After, value: "{retry_after}"}
descriptors:
  - {key: user, rate_limit: {name: calls, unit: day, requests_per_unit: 2, align: first_hit}}
`, "RATELIMITD_DECISION_METADATA=true", "RESPONSE_DYNAMIC_METADATA=true")
	e := startEnvoy(t, bootstrap{
		Clusters: f.clusters(),
		Listeners: []listener{{
			Name: "envoy",
			Filter: `
enable_x_ratelimit_headers: DRAFT_VERSION_03
enable_retry_after_header: true
response_headers_to_add: [{header: {key: x-denied-by, value: the limiter}}]
`,
			Routes: `
- match: {prefix: /draft03}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: draft03, descriptor_value: week}}]
    - actions: [{generic_key: {descriptor_key: draft03, descriptor_value: by-envoy}}]
- match: {prefix: /long}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: long, descriptor_value: v}}]
`,
		}, {
			Name:   "ours",
			Filter: "enable_retry_after_header: true",
			Routes: route("answers", "user") + route("waits", "user") + route("own", "user"),
		}, {
			Name: "plain",
			Filter: `
rate_limited_status: {code: ServiceUnavailable}
disable_x_envoy_ratelimited_header: true
`,
			Routes: `
- match: {prefix: /status}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: status, descriptor_value: v}}]
`,
		}, {
			Name: "body",
			Connections: `
local_reply_config:
  mappers:
  - filter: {response_flag_filter: {flags: [RL]}}
    body_format_override:
      content_type: application/problem+json
      json_format:
        title: Too Many Requests
        rule: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision:rule)%"
`,
			Routes: `
- match: {prefix: /body}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: body, descriptor_value: v}}]
`,
		}, {
			Name: "logged",
			Connections: `
access_log:
- name: envoy.access_loggers.file
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
    path: ` + accessLog + `
    log_format:
      json_format:
        code: "%RESPONSE_CODE%"
        flags: "%RESPONSE_FLAGS%"
        details: "%RESPONSE_CODE_DETAILS%"
        decision: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:decision)%"
        domain: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:domain)%"
`,
			Filter: "enable_x_ratelimit_headers: DRAFT_VERSION_03",
			Routes: `
- match: {prefix: /billing}
  route:
    cluster: upstream
    rate_limits:
    - actions:
      - generic_key: {descriptor_key: area, descriptor_value: billing}
      - request_headers: {header_name: x-user, descriptor_key: user}
- match: {prefix: /tried}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: area, descriptor_value: tried}}]
`,
		}, {
			Name:   "unenforced",
			Filter: "filter_enforced: {default_value: {numerator: 0}}",
			Routes: `
- match: {prefix: /unenforced}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: body, descriptor_value: v}}]
`,
		}},
	})

	t.Run("headers that Envoy makes", func(t *testing.T) {
		ok, denied := e.get(t, "envoy", "/draft03"), e.get(t, "envoy", "/draft03")
		if ok.code != 200 || denied.code != 429 {
			t.Fatalf("got %d and %d", ok.code, denied.code)
		}
		for _, r := range []response{ok, denied} {
			// The limit with the lowest remaining number comes first, then all limits in the order of the descriptors.
			has(t, r, "x-ratelimit-limit", `1, 100;w=604800, 1;w=86400;name="per day"`)
			has(t, r, "x-ratelimit-remaining", "0")
			hasSeconds(t, r, "x-ratelimit-reset", 1, 86400)
		}
		has(t, ok, "retry-after")
		has(t, ok, "x-envoy-ratelimited")
		hasSeconds(t, denied, "retry-after", 1, 86400)
		has(t, denied, "x-envoy-ratelimited", "true")
		has(t, denied, "x-denied-by", "the limiter")
	})
	t.Run("a window of several units", func(t *testing.T) {
		ok, denied := e.get(t, "envoy", "/long"), e.get(t, "envoy", "/long")
		if ok.code != 200 || denied.code != 429 {
			t.Errorf("got %d and %d", ok.code, denied.code)
		}
		has(t, denied, "x-ratelimit-limit", "1, 1;w=172800")
		has(t, denied, "x-ratelimit-remaining", "0")
		hasSeconds(t, denied, "x-ratelimit-reset", 1, 2*86400)
		hasSeconds(t, denied, "retry-after", 1, 2*86400)
	})
	t.Run("headers that ratelimitd makes", func(t *testing.T) {
		user := []string{"x-user", "u"}
		ok := e.get(t, "ours", "/answers", user...)
		has(t, ok, "ratelimit-limit", "2")
		has(t, ok, "ratelimit-remaining", "1")
		hasSeconds(t, ok, "ratelimit-reset", 1, 86400)
		has(t, ok, "x-ratelimit-limit", `2, 100;w=3600;name="hourly", 2;w=86400;name="daily"`)
		has(t, ok, "x-ratelimit-remaining", "1")
		hasSeconds(t, ok, "x-ratelimit-reset", 1, 86400)
		has(t, ok, "ratelimit-policy", `"hourly";q=100;w=3600, "daily";q=2;w=86400`)
		if !strings.HasPrefix(ok.header.Get("ratelimit"), `"daily";r=1;t=`) {
			t.Errorf("ratelimit: %q", ok.header.Get("ratelimit"))
		}
		has(t, ok, "retry-after")
		e.get(t, "ours", "/answers", user...)
		denied := e.get(t, "ours", "/answers", user...)
		if denied.code != 429 {
			t.Errorf("got %d", denied.code)
		}
		has(t, denied, "ratelimit-remaining", "0")
		hasSeconds(t, denied, "retry-after", 1, 86400)
		has(t, denied, "content-type") // an answer without a body has no content-type
	})
	t.Run("headers that a rule file defines", func(t *testing.T) {
		user := []string{"x-user", "u"}
		before := time.Now()
		ok := e.get(t, "ours", "/own", user...)
		after := time.Now()
		has(t, ok, "x-shop-call-limit", "1/2")
		has(t, ok, "x-ratelimit-limit", "2;w=86400")
		const day = 24 * 60 * 60
		hasSeconds(t, ok, "x-ratelimit-reset", int(before.Unix())+day-1, int(after.Unix())+day+1)
		has(t, ok, "x-denied-by")
		has(t, ok, "retry-after")
		e.get(t, "ours", "/own", user...)
		denied := e.get(t, "ours", "/own", user...)
		if ok.code != 200 || denied.code != 429 {
			t.Errorf("got %d and %d", ok.code, denied.code)
		}
		has(t, denied, "x-shop-call-limit", "2/2")
		has(t, denied, "x-denied-by", "limit calls")
		hasSeconds(t, denied, "retry-after", 1, day)
	})
	t.Run("Retry-After is ours where both would say it", func(t *testing.T) {
		user := []string{"x-user", "u"}
		if got := e.codes(t, 6, "ours", "/waits", user...); !slices.Equal(got, []int{200, 200, 200, 200, 200, 200}) {
			t.Errorf("got %v", got)
		}
		denied := e.get(t, "ours", "/waits", user...)
		if denied.code != 429 {
			t.Errorf("got %d", denied.code)
		}
		// time until the next request passes. Envoy only reports the time until the bucket is full, 60 s
		hasSeconds(t, denied, "retry-after", 1, 10)
	})
	t.Run("another status", func(t *testing.T) {
		if got := e.codes(t, 2, "plain", "/status"); !slices.Equal(got, []int{200, 503}) {
			t.Errorf("got %v", got)
		}
		has(t, e.get(t, "plain", "/status"), "x-envoy-ratelimited")
	})
	t.Run("a body that names the rule", func(t *testing.T) {
		r := e.get(t, "body", "/body")
		has(t, r, "content-type", "application/problem+json")
		var said map[string]string
		if err := json.Unmarshal([]byte(r.body), &said); err != nil {
			t.Fatalf("%v: %s", err, r.body)
		}
		if r.code != 429 || said["title"] != "Too Many Requests" || said["rule"] != "e2e.body" {
			t.Errorf("got %d %v", r.code, said)
		}
	})
	t.Run("counted and not enforced by Envoy", func(t *testing.T) {
		if got := e.codes(t, 2, "unenforced", "/unenforced"); !slices.Equal(got, []int{200, 200}) {
			t.Errorf("got %v", got)
		}
		if got, want := e.verdicts(t, "unenforced"), (verdicts{OverLimit: 2}); got != want {
			t.Errorf("Envoy counted %+v, want %+v", got, want)
		}
	})
	t.Run("a shadow rule denies nobody", func(t *testing.T) {
		const over = `ratelimitd_rule_shadow_mode_hits_total{domain="e2e",rule="area_tried"}`
		for range 3 {
			r := e.get(t, "logged", "/tried")
			if r.code != 200 {
				t.Errorf("got %d", r.code)
			}
		}
		sum := 0.0
		for _, s := range f.services {
			sum += s.metrics(t)[over]
		}
		if sum != 2 {
			t.Errorf("%s is %v on both services together, want 2", over, sum)
		}
	})
	t.Run("which rule denied, in the access log", func(t *testing.T) {
		e.codes(t, 2, "logged", "/billing", "x-user", "u")
		var denied map[string]any
		await(t, "the line of the denied request", func(context.Context) error {
			file, err := os.Open(accessLog)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }()
			for lines := bufio.NewScanner(file); lines.Scan(); {
				var line map[string]any
				if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
					return err
				}
				if line["code"] == 429. {
					denied = line
					return nil
				}
			}
			return errors.New("there is none")
		})
		decision, _ := denied["decision"].(map[string]any)
		retry, _ := decision["retry_after_ms"].(float64)
		if retry <= 0 || retry > 86400_000 {
			t.Errorf("retry_after_ms: %v", retry)
		}
		delete(decision, "retry_after_ms")
		want := map[string]any{
			"rule": "e2e.area_billing.user", "name": "invoices", "descriptor": 0., "code": "OVER_LIMIT",
			"requests_per_unit": 1., "window_seconds": 86400., "remaining": 0.,
		}
		if fmt.Sprint(decision) != fmt.Sprint(want) {
			t.Errorf("decision: %v, want %v", decision, want)
		}
		if denied["flags"] != "RL" || denied["details"] != "request_rate_limited" || denied["domain"] != "e2e" {
			t.Errorf("got %v", denied)
		}
	})
	f.agree(t, []*envoy{e}, "envoy", "ours", "plain", "body", "logged", "unenforced")
}

// route is a route /DOMAIN to the upstream. Its descriptors have the value of a header x-KEY.
func route(domain, key string) string {
	return `
- match: {prefix: /` + domain + `}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      domain: ` + domain + `
  route:
    cluster: upstream
    rate_limits:
    - actions: [{request_headers: {header_name: x-` + key + `, descriptor_key: ` + key + `}}]
`
}

// has compares all values of a header. Without values the header must be absent.
func has(t *testing.T, r response, name string, want ...string) {
	t.Helper()
	if got := r.header.Values(name); !slices.Equal(got, want) {
		t.Errorf("%d with %s: %q, want %q", r.code, name, got, want)
	}
}

// hasSeconds expects a header with one number within these bounds.
func hasSeconds(t *testing.T, r response, name string, least, most int) {
	t.Helper()
	got := r.header.Values(name)
	if len(got) != 1 {
		t.Errorf("%d with %s: %q, want one number", r.code, name, got)
		return
	}
	if n, err := strconv.Atoi(got[0]); err != nil || n < least || n > most {
		t.Errorf("%d with %s: %q, want a number from %d to %d", r.code, name, got[0], least, most)
	}
}
