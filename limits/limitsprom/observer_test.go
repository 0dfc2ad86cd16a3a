package limitsprom_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/limits/limitsprom"
	"github.com/ratelimitd/ratelimitd/ratelimit"
)

func TestDecisionsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	l, err := ratelimit.Open(t.Context(), ratelimit.Options{
		Domains:  []ratelimit.Domain{{Name: "api", Rules: []ratelimit.Rule{{Key: "customer", Limit: ratelimit.PerDay(2)}}}},
		Observer: limitsprom.New(registry),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for range 3 {
		if _, err := l.Allow(t.Context(), "api", "customer", "ann"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Decide(t.Context(), limits.NewRequest("api", "customer")); err == nil {
		t.Fatal("a key without a value is decided")
	}
	want := `
# HELP ratelimit_decisions_total Decisions of rate limits, by result and by what the answer is based on.
# TYPE ratelimit_decisions_total counter
ratelimit_decisions_total{domain="api",result="allowed",source="counted"} 2
ratelimit_decisions_total{domain="api",result="denied",source="counted"} 1
ratelimit_decisions_total{domain="api",result="error",source=""} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "ratelimit_decisions_total"); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(registry, "ratelimit_decision_duration_seconds"); n != 1 {
		t.Errorf("%d series of durations, want one", n)
	}
}

// Observers of one registry share their metrics.
func TestOneRegistry(t *testing.T) {
	registry := prometheus.NewRegistry()
	for range 2 {
		limitsprom.New(registry).Decided(t.Context(), limits.NewRequest("api"), &limits.Decision{Allowed: true}, nil, 0)
	}
	want := `
# HELP ratelimit_decisions_total Decisions of rate limits, by result and by what the answer is based on.
# TYPE ratelimit_decisions_total counter
ratelimit_decisions_total{domain="api",result="allowed",source="counted"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "ratelimit_decisions_total"); err != nil {
		t.Error(err)
	}
}

func ExampleNew() {
	l, err := ratelimit.Open(context.Background(), ratelimit.Options{
		Domains:  []ratelimit.Domain{{Name: "api", Rules: []ratelimit.Rule{{Key: "customer", Limit: ratelimit.PerDay(2)}}}},
		Observer: limitsprom.New(prometheus.DefaultRegisterer),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	fmt.Println(l.Allow(context.Background(), "api", "customer", "ann"))
	// Output: true <nil>
}
