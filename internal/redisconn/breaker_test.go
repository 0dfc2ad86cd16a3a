package redisconn_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// While a node sends nothing, calls cost their timeout until the breaker opens. Then calls fail at once until the node answers again. The
// login of a new connection does not count as a call.
func TestBreaker(t *testing.T) {
	r := redistest.Start(t, "--requirepass", "secret")
	metrics := prometheus.NewRegistry()
	const silence, timeout = 300 * time.Millisecond, 50 * time.Millisecond
	client := connect(t, redisconn.Options{URL: r.Addr, Auth: "secret", PoolSize: 10, Breaker: &redisconn.BreakerOptions{Metrics: metrics, Silence: silence}})
	call := func() (time.Duration, error) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		start := time.Now()
		err := client.(*goredis.Client).Echo(ctx, "hello").Err()
		return time.Since(start), err
	}
	waitFor := func(what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !reached(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s did not come about", what)
			}
		}
	}
	if _, err := call(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.Pause(t)
		paused, waited := time.Now(), 0
		waitFor("an open breaker", func() bool {
			took, err := call()
			if err == nil {
				t.Fatal("a node that hangs answered")
			}
			if took >= timeout/2 {
				waited++
			}
			return took < timeout/2
		})
		if took := time.Since(paused); took < silence || waited > int(silence/timeout)+1 {
			t.Errorf("%d calls waited before the breaker opened after %v, want those of %v", waited, took, silence)
		}
		r.Continue(t)
		waitFor("a closed breaker", func() bool { _, err := call(); return err == nil })
	}
	if n, err := testutil.GatherAndCount(metrics, "ratelimitd_redis_breaker_open"); n != 1 || err != nil {
		t.Errorf("%d nodes in the metric, %v", n, err)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "ratelimitd_redis_trip_duration_seconds" {
			continue
		}
		// Calls waited for the node that hung, twice, until its breaker opened.
		if h := f.Metric[0].GetHistogram(); h.GetSampleCount() < 5 || h.GetSampleSum() < 2*silence.Seconds()*.5 {
			t.Errorf("%d trips of %v s in the metric", h.GetSampleCount(), h.GetSampleSum())
		}
		return
	}
	t.Error("the time of trips is no metric")
}
