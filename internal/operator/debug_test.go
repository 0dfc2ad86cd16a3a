package operator

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestDebug(t *testing.T) {
	rule := func(name string, unit descriptor.Unit, n uint64) *descriptor.Rule {
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
	priced := rule("", descriptor.Day, 100)
	priced.SetScales(&descriptor.Scales{Of: []*descriptor.Scale{{Key: "model", Max: 40}}})
	priced.SetHitCost(&descriptor.HitCost{Factor: 1, Tables: []descriptor.CostTable{{Key: "model", Values: map[string]uint64{"small": 1, "large": 10}, Other: 3}}})
	headers := descriptor.Headers{Families: descriptor.HeadersIETF | descriptor.HeadersRetryAfter, Own: []descriptor.OwnHeader{
		{Name: "X-Left", Text: []descriptor.HeaderPart{{Field: descriptor.FieldRemaining}}, When: descriptor.HeaderPassed},
	}}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "edge", Children: []descriptor.NodeSpec{
		{Key: "path", Value: "/a", Rule: rule("", descriptor.Minute, 10), Children: []descriptor.NodeSpec{{Key: "user", Rule: shadow}}},
		{Key: "bucket", Rule: bucket},
		{Key: "model", Rule: priced},
		{Key: "free", Rule: &descriptor.Rule{Unlimited: true}},
	}}, {Name: "more",
		DomainSettings: descriptor.DomainSettings{Admission: descriptor.AllOrNothing, OnError: descriptor.OnErrorAllow, Headers: &headers, RequestOverride: descriptor.RequestMin, Refunds: descriptor.RefundsDeny, EnvoyDelay: true, QuotaBuckets: &descriptor.QuotaBuckets{Order: []string{"plan", "ip"}, Deny: true}}, Children: []descriptor.NodeSpec{
			{Key: "ip", Kind: descriptor.MatchCIDR, Value: "10.0.0.0/8", Rule: leaky},
			{Key: "ip", Kind: descriptor.MatchValues, Values: []string{"a", "b"}, Rule: several},
		}}}, descriptor.Options{})

	if err != nil {
		t.Fatal(err)
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r := start(t, Options{
		Rules: Rules{
			Tree: func() *descriptor.Tree { return tree },
			Files: func() []descriptor.FileStatus {
				return []descriptor.FileStatus{
					{Name: "z.yaml", State: descriptor.FileStale, Rules: 2, Domains: []string{"z"}, Errors: []string{"z.yaml:3:5: unknown key\nmore"}, Since: since},
					{Name: "a.yaml", State: descriptor.FileLoaded, Rules: 4, Domains: []string{"edge", "more"}, Since: since},
				}
			},
		},
		Stats: func(w io.Writer) { fmt.Fprintln(w, "ratelimit.service.config_load_success: 1") },
	})
	if tree.Checksum == 0 {
		t.Error("the rules have the checksum of none")
	}
	want := fmt.Sprintf(`edge.path_/a: unit=MINUTE requests_per_unit=10, shadow_mode: false, quota_mode: false
edge.path_/a.user: unit=WEEK requests_per_unit=7, shadow_mode: true, quota_mode: true
edge.bucket: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false, unit_multiplier: 30, algorithm: token_bucket, burst: 1
edge.model: unit=DAY requests_per_unit=100, shadow_mode: false, quota_mode: false, cost: {"model": {"large": 10, "small": 1, "*": 3}}, scale: {by: "model", max: 40}
edge.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false, unlimited: true
# domain more, admission: all_or_nothing, on_error: allow, headers: [ietf, retry-after, {name: X-Left, value: "{remaining}", when: passed}], request_override: min, refunds: deny, envoy_delay: true, quota_buckets: {order: ["plan", "ip"], default: deny}
more.ip_10.0.0.0/8: unit=SECOND requests_per_unit=2, shadow_mode: false, quota_mode: false, on_error: deny, algorithm: leaky_bucket, burst: 0, nodelay: 5, lease: true
more.ip_a,b: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false, align: first_hit, count_denied: false, name: short
more.ip_a,b: unit=MONTH requests_per_unit=9, shadow_mode: false, quota_mode: false, calendar: UTC, name: long
more.ip_a,b: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, algorithm: sliding_window, precision: 3, name: smooth
more.ip_a,b: unit=HOUR requests_per_unit=9, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 9, refill: interval, name: steps
# checksum: %d, the same in every replica with these rules
# a.yaml: loaded since 2026-01-02T03:04:05Z, 4 rules, domains: edge, more
# z.yaml: stale since 2026-01-02T03:04:05Z, 2 rules, domains: z
#   z.yaml:3:5: unknown key more
`, tree.Checksum)
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
	if code, body := get(t, r.DebugAddr, "/json"); code != 404 || !strings.Contains(body, "/rlconfig ") {
		t.Errorf("/nothing: %d", code)
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
		if code, _ := get(t, r.DebugAddr, path); code != 200 {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestDebugOfNothing(t *testing.T) {
	r := start(t, Options{Rules: Rules{Tree: func() *descriptor.Tree { return nil }}})
	for _, path := range []string{"/rlconfig", "/stats"} {
		if code, body := get(t, r.DebugAddr, path); code != 200 || body != "" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}
