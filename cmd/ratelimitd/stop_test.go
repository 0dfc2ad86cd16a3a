package main

import (
	"slices"
	"testing"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// With STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT, a limit in the denial cache denies a request from the cache, and this
// is counted. The request uses nothing of its other limits.
func TestKnownDenialStopsTheOthers(t *testing.T) {
	rules := rulesOf(t, "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: year, requests_per_unit: 8}\n  - key: b\n    rate_limit: {unit: year, requests_per_unit: 0}\n")
	p := startProcess(t, map[string]string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true", "LOCAL_CACHE_SIZE_IN_BYTES": "100000"}, "--rules", rules)
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	both := ask("d", "a", "v")
	both.Descriptors, both.HitsAddend = append(both.Descriptors, ask("d", "b", "v").Descriptors...), 100
	var got []uint32
	for _, r := range []*ratelimitv3.RateLimitRequest{ask("d", "b", "v"), both, ask("d", "a", "v")} {
		answer, err := client.ShouldRateLimit(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range answer.Statuses {
			got = append(got, uint32(s.Code), s.LimitRemaining)
		}
	}
	const ok, over = uint32(ratelimitv3.RateLimitResponse_OK), uint32(ratelimitv3.RateLimitResponse_OVER_LIMIT)
	if want := []uint32{over, 0, ok, 8, over, 0, ok, 7}; !slices.Equal(got, want) {
		t.Errorf("codes and what is left: %v, want %v", got, want)
	}
	const name = "ratelimit_service_rate_limit_d_b_over_limit_with_local_cache"
	if all := shown(t, "http://"+p.HTTP+"/metrics", name); !slices.Contains(all, name+" 100") {
		t.Errorf("hits that the cache denied: %q", all)
	}
}

// A limit that is held back because another one denies counts its hits as near the limit, as in envoyproxy/ratelimit:
// these are the statistics of f2fb157 after the same requests.
func TestStatisticsOfHeldLimits(t *testing.T) {
	rules := rulesOf(t, "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: year, requests_per_unit: 10}\n  - key: b\n    rate_limit: {unit: year, requests_per_unit: 1}\n")
	p := startProcess(t, map[string]string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true"}, "--rules", rules)
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	a, b := ask("d", "a", "v").Descriptors[0], ask("d", "b", "v").Descriptors[0]
	for i := range 15 {
		r := ask("d", "a", "v")
		switch {
		case i >= 12:
			r.Descriptors = []*descriptorv3.RateLimitDescriptor{b, a}
		case i >= 8:
			r.Descriptors = []*descriptorv3.RateLimitDescriptor{a, b}
		}
		if _, err := client.ShouldRateLimit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`ratelimit_service_rate_limit_near_limit{domain="d",key1="a"} 7`,
		`ratelimit_service_rate_limit_near_limit{domain="d",key1="b"} 1`,
		`ratelimit_service_rate_limit_over_limit{domain="d",key1="b"} 6`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="a"} 15`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="b"} 7`,
		`ratelimit_service_rate_limit_within_limit{domain="d",key1="a"} 15`,
		`ratelimit_service_rate_limit_within_limit{domain="d",key1="b"} 1`,
	}
	if got := shown(t, "http://"+p.HTTP+"/metrics", "ratelimit_service_rate_limit_"); !slices.Equal(got, want) {
		t.Errorf("statistics %q, want %q", got, want)
	}
}
