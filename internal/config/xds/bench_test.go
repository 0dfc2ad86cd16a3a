package xds

import (
	"strconv"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// BenchmarkLargeSet measures 40,000 rules in one resource, from bytes to active rules.
func BenchmarkLargeSet(b *testing.B) {
	large := &ratelimitv3.RateLimitConfig{Name: "r", Domain: "d"}
	for i := range 40_000 {
		large.Descriptors = append(large.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: "user", Value: strconv.Itoa(i), RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_SECOND, RequestsPerUnit: 3},
		})
	}
	packed, err := anypb.New(large)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		s := config.NewResources(config.ResourceOptions{Logger: discard})
		if _, err := s.Apply(resources([]*anypb.Any{packed})); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(packed.GetValue())), "wire-bytes")
}
