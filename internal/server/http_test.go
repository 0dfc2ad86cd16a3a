package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// byDomain answers what the domain asks for.
func byDomain(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
	switch req.Domain {
	case "":
		return fmt.Errorf("%w: rate limit domain must not be empty", limiter.ErrInvalid)
	case "over":
		*d = *smallDecision()
		d.Code, d.Statuses[0].Code = limiter.OverLimit, limiter.OverLimit
		d.Headers = []limiter.Header{{Key: "RateLimit-Limit", Value: "10"}, {Key: "Retry-After", Value: "42"}}
		return nil
	case "down":
		return errors.New("backend unavailable")
	case "late":
		return context.DeadlineExceeded
	case "bomb":
		panic("kaboom")
	}
	return passAll(ctx, now, req, d)
}

func TestJSON(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := start(t, Options{Decider: decider(byDomain), MaxRecvMsgSize: 10_000, Metrics: registry})
	const one = `"descriptors":[{"entries":[{"key":"k","value":"v"}]}]`
	for _, tt := range []struct {
		name, method, body string
		code               int
		answer             string // part of it
	}{
		{"passes", "POST", `{"domain":"d",` + one + `}`, 200, `{"overallCode":"OK","statuses":[{"code":"OK"}]}`},
		{"any method", "GET", `{"domain":"d",` + one + `}`, 200, `"OK"`},
		{"any method", "PUT", `{"domain":"d",` + one + `}`, 200, `"OK"`},
		{"camelCase", "POST", `{"domain":"d","hitsAddend":3,` + one + `}`, 200, `"OK"`},
		{"snake_case", "POST", `{"domain":"d","hits_addend":3,"descriptors":[{"hits_addend":"5","is_negative_hits":true}]}`, 200, `"OK"`},
		{"over the limit", "POST", `{"domain":"over",` + one + `}`, 429, `"overallCode":"OVER_LIMIT"`},
		{"unknown field", "POST", `{"domain":"d","dscriptors":[]}`, 400, `dscriptors`},
		{"not JSON", "POST", `domain: d`, 400, ""},
		{"nothing", "POST", ``, 400, ""},
		{"not UTF-8", "POST", "{\"domain\":\"\xff\"}", 400, ""},
		{"no domain", "POST", `{` + one + `}`, 400, "rate limit domain must not be empty"},
		{"too many descriptors", "POST", `{"domain":"d","descriptors":[{}` + strings.Repeat(",{}", 256) + `]}`, 400, "descriptors: more than 256"},
		{"too large", "POST", `{"domain":"` + strings.Repeat("d", 10_000) + `"}`, 413, "too large"},
		{"backend down", "POST", `{"domain":"down",` + one + `}`, 503, "backend unavailable"},
		{"backend late", "POST", `{"domain":"late",` + one + `}`, 503, ""},
		{"panic", "POST", `{"domain":"bomb",` + one + `}`, 500, "internal error"},
	} {
		t.Run(tt.name+" "+tt.method, func(t *testing.T) {
			code, header, body := request(t, tt.method, r.HTTPAddr, "/json", strings.NewReader(tt.body))
			if code != tt.code || !strings.Contains(body, tt.answer) {
				t.Errorf("got %d %s, want %d with %s", code, body, tt.code, tt.answer)
			}
			want := "text/plain; charset=utf-8"
			if code == 200 || code == 429 {
				want = "application/json"
			}
			if got := header.Get("Content-Type"); got != want {
				t.Errorf("Content-Type %q, want %q", got, want)
			}
		})
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_requests_total{code=OK transport=json}`:               6,
		`ratelimitd_requests_total{code=InvalidArgument transport=json}`:  7,
		`ratelimitd_requests_total{code=Unavailable transport=json}`:      1,
		`ratelimitd_requests_total{code=DeadlineExceeded transport=json}`: 1,
		`ratelimitd_requests_total{code=Internal transport=json}`:         1,
		`ratelimitd_request_duration_seconds{transport=json}`:             16,
		`ratelimitd_panics_total`:                                         1,
	})
}

func TestJSONAnswerIsTheResponseAndItsHeadersAreReal(t *testing.T) {
	r := start(t, Options{Decider: decider(byDomain)})
	_, header, body := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(`{"domain":"over","descriptors":[{}]}`))
	var got ratelimitv3.RateLimitResponse
	if err := protojson.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	var want limiter.Decision
	if err := byDomain(t.Context(), time.Now(), &limiter.Request{Domain: "over"}, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(responseMessage(t, &want), &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if header.Get("RateLimit-Limit") != "10" || header.Get("Retry-After") != "42" {
		t.Errorf("headers %v", header)
	}
}

func TestJSONFailureAsTheReferenceSays(t *testing.T) {
	r := start(t, Options{Decider: decider(byDomain), JSONBadRequestOnFailure: true})
	if code, _, body := request(t, http.MethodPost, r.HTTPAddr, "/json", strings.NewReader(`{"domain":"down","descriptors":[{}]}`)); code != 400 {
		t.Errorf("got %d %s", code, body)
	}
}

func TestMetricsAreServed(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := start(t, Options{Metrics: registry, MetricsHandler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Fatal(err)
	}
	code, body := get(t, r.HTTPAddr, "/metrics")
	if want := `ratelimitd_requests_total{code="OK",transport="grpc"} 1`; code != 200 || !strings.Contains(body, want) {
		t.Errorf("got %d without %s:\n%s", code, want, body)
	}
}

// Codes that cannot happen have no series; those that can are there before they do.
func TestSeriesOfCodes(t *testing.T) {
	registry := prometheus.NewRegistry()
	guard := grpc.ChainUnaryInterceptor(func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.PermissionDenied, "not you")
	})
	r := start(t, Options{Metrics: registry, MetricsHandler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), ServerOptions: []grpc.ServerOption{guard}})
	series := func() int {
		t.Helper()
		_, body := get(t, r.HTTPAddr, "/metrics")
		return strings.Count(body, "\nratelimitd_requests_total{")
	}
	if n := series(); n != 14 {
		t.Errorf("%d series", n)
	}
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err == nil {
		t.Fatal("an interceptor's refusal was ignored")
	}
	checkMetrics(t, registry, map[string]float64{
		`ratelimitd_requests_total{code=PermissionDenied transport=grpc}`: 1,
		`ratelimitd_requests_total{code=Unavailable transport=json}`:      0,
	})
	if n := series(); n != 15 {
		t.Errorf("%d series after another code", n)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	r := start(t, Options{})
	for _, path := range []string{"/", "/metrics", "/rlconfig", "/debug/pprof/"} {
		if code, _ := get(t, r.HTTPAddr, path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
	if code, _ := get(t, r.DebugAddr, "/json"); code != http.StatusNotFound {
		t.Errorf("/json on the debug listener: %d", code)
	}
}

func TestDebug(t *testing.T) {
	rule := func(name string, unit descriptor.Unit, n uint32) *descriptor.Rule {
		return &descriptor.Rule{Name: name, Limits: []descriptor.Limit{{Requests: n, Window: descriptor.Window{Unit: unit}}}}
	}
	shadow := rule("s", descriptor.Week, 7)
	shadow.Shadow, shadow.Quota = true, true
	bucket := rule("b", descriptor.Second, 1)
	bucket.Limits[0].Window.Multiplier, bucket.Limits[0].Algorithm, bucket.Limits[0].Burst = 30, descriptor.TokenBucket, 1
	leaky := rule("l", descriptor.Second, 1)
	leaky.OnError = descriptor.OnErrorDeny
	leaky.Limits[0] = descriptor.Limit{Requests: 2, Window: descriptor.Window{Unit: descriptor.Second}, Algorithm: descriptor.LeakyBucket, NoDelay: 5, Lease: true}
	several := rule("", descriptor.Second, 1)
	several.Limits[0].Name, several.Limits[0].CountDenied, several.Limits[0].FirstHit = "short", descriptor.DeniedDrop, true
	several.Limits = append(several.Limits,
		descriptor.Limit{Name: "long", Requests: 9, Window: descriptor.Window{Unit: descriptor.Month, Location: time.UTC}},
		descriptor.Limit{Name: "smooth", Requests: 9, Window: descriptor.Window{Unit: descriptor.Hour}, Algorithm: descriptor.SlidingWindow, Precision: 3},
		descriptor.Limit{Name: "steps", Requests: 9, Window: descriptor.Window{Unit: descriptor.Hour}, Algorithm: descriptor.TokenBucket, Interval: true})
	families := descriptor.HeadersIETF | descriptor.HeadersRetryAfter
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "edge", Children: []descriptor.NodeSpec{
		{Key: "path", Value: "/a", Rule: rule("", descriptor.Minute, 10), Children: []descriptor.NodeSpec{{Key: "user", Rule: shadow}}},
		{Key: "bucket", Rule: bucket},
		{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	}}, {Name: "more", Admission: descriptor.AllOrNothing, OnError: descriptor.OnErrorAllow, Headers: &families, Children: []descriptor.NodeSpec{
		{Key: "ip", Kind: descriptor.MatchCIDR, Value: "10.0.0.0/8", Rule: leaky},
		{Key: "ip", Kind: descriptor.MatchValues, Values: []string{"a", "b"}, Rule: several},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := start(t, Options{
		Tree: func() *descriptor.Tree { return tree },
		RuleFiles: func() []descriptor.FileStatus {
			return []descriptor.FileStatus{
				{Name: "z.yaml", State: descriptor.FileStale, Rules: 2, Domains: []string{"z"}, Errors: []string{"z.yaml:3:5: unknown key\nmore"}, Since: since},
				{Name: "a.yaml", State: descriptor.FileLoaded, Rules: 4, Domains: []string{"edge", "more"}, Since: since},
			}
		},
		Stats: func(w io.Writer) { fmt.Fprintln(w, "ratelimit.service.config_load_success: 1") },
	})
	want := `edge.path_/a: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false
edge.path_/a.user: unit=WEEK requests_per_unit=7, shadow_mode: true, quota_mode: true
edge.bucket: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false, unit_multiplier: 30, algorithm: token_bucket, burst: 1
edge.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited: true
# domain more, admission: all_or_nothing, on_error: allow, headers: [ietf, retry-after]
more.ip_10.0.0.0/8: unit=SECOND requests_per_unit=2, shadow_mode: false, quota_mode: false, on_error: deny, algorithm: leaky_bucket, burst: 0, nodelay: 5, lease: true
more.ip_a,b: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false, align: first_hit, count_denied: false, name: short
more.ip_a,b: unit=MONTH requests_per_unit=9, shadow_mode: false, quota_mode: false, calendar: UTC, name: long
more.ip_a,b: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, algorithm: sliding_window, precision: 3, name: smooth
more.ip_a,b: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 9, refill: interval, name: steps
# a.yaml: loaded since 2026-01-02T03:04:05Z, 4 rules, domains: edge, more
# z.yaml: stale since 2026-01-02T03:04:05Z, 2 rules, domains: z
#   z.yaml:3:5: unknown key more
`
	code, body := get(t, r.DebugAddr, "/rlconfig")
	if diff := cmp.Diff(want, body); code != 200 || diff != "" {
		t.Errorf("/rlconfig %d (-want +got):\n%s", code, diff)
	}
	if code, body := get(t, r.DebugAddr, "/stats"); code != 200 || body != "ratelimit.service.config_load_success: 1\n" {
		t.Errorf("/stats: %d %q", code, body)
	}
	if code, body := get(t, r.DebugAddr, "/"); code != 200 || !strings.Contains(body, "/rlconfig") {
		t.Errorf("/: %d %q", code, body)
	}
	if code, _ := get(t, r.DebugAddr, "/nothing"); code != 404 {
		t.Errorf("/nothing: %d", code)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		if code, _ := get(t, r.DebugAddr, path); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestDebugOfNothing(t *testing.T) {
	r := start(t, Options{Tree: func() *descriptor.Tree { return nil }})
	for _, path := range []string{"/rlconfig", "/stats"} {
		if code, body := get(t, r.DebugAddr, path); code != 200 || body != "" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}
