package redisconn_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// While a node sends nothing, calls cost their timeout until the breaker opens. Then calls fail immediately until the
// node answers again. The login of a new connection does not count as a call.
func TestBreaker(t *testing.T) {
	r := redistest.Start(t, "--requirepass", "secret")
	metrics := prometheus.NewRegistry()
	const silence, timeout = 300 * time.Millisecond, 50 * time.Millisecond
	opened := new(redisconn.OpenBreakers)
	client := connect(t, redisconn.Options{URL: r.Addr, Auth: "secret", PoolSize: 10, Breaker: &redisconn.BreakerOptions{Metrics: prom.With(metrics), Silence: silence, Opened: opened}})
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
		if nodes := opened.Open(); !slices.Equal(nodes, []string{r.Addr}) {
			t.Errorf("open: %q", nodes)
		}
		r.Continue(t)
		waitFor("a closed breaker", func() bool { _, err := call(); return err == nil })
		if nodes := opened.Open(); len(nodes) > 0 {
			t.Errorf("open: %q", nodes)
		}
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

// The metrics of a node that fails are there as long as it is in the cluster, and again when it is back and called.
func TestMetricsOfANodeThatLeavesItsCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.Setup{})
	metrics := prometheus.NewRegistry()
	client := connect(t, redisconn.Options{
		Type: "CLUSTER", URL: strings.Join(c.Addrs(), ","), Breaker: &redisconn.BreakerOptions{Metrics: prom.With(metrics)},
	})
	// open returns the metric's value for a node: "0", "1", or "" without one.
	open := func(node string) string {
		families, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		value, trips := "", false
		for _, f := range families {
			for _, m := range f.Metric {
				if len(m.Label) == 0 || m.Label[0].GetValue() != node {
					continue
				}
				if f.GetName() == "ratelimitd_redis_breaker_open" {
					value = fmt.Sprint(m.GetGauge().GetValue())
				} else {
					trips = true
				}
			}
		}
		if trips != (value != "") {
			t.Fatalf("of %s the state of the breaker is %q, and the time of trips is there: %v", node, value, trips)
		}
		return value
	}
	const key = "k"
	becomes := func(node, want string) {
		t.Helper()
		redistest.Eventually(t, fmt.Sprintf("%q of %s", want, node), func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			err := client.Incr(ctx, key).Err()
			if got := open(node); got != want {
				return fmt.Errorf("got %q; the call: %w", got, err)
			}
			return nil
		})
	}
	primary := c.Primary(t, c.Slot(t, key))
	becomes(primary.Addr, "0")
	primary.Kill(t)
	becomes(primary.Addr, "1")
	c.Await(t)
	becomes(primary.Addr, "")
	becomes(c.Primary(t, c.Slot(t, key)).Addr, "0")
	primary.Restart(t)
	c.Await(t)
	c.Failover(t, primary)
	becomes(primary.Addr, "0")
}

// A topology may name nodes otherwise than the client does.
func TestNodesOfATopology(t *testing.T) {
	for _, c := range []struct {
		topology, node string
		want           bool
	}{
		{"10.0.0.1:6379", "10.0.0.1:6379", true},
		{"10.0.0.1:6379", "10.0.0.2:6379", false},
		{"10.0.0.1:6379", "10.0.0.1:6380", false},
		{"10.0.0.1:6379", "redis.example:6379", false},
		{"127.0.0.1:7001", "redis.example:7001", true}, // the client replaces the host
		{"127.0.0.1:7001", "redis.example:7002", false},
		{"[::1]:7001", "redis.example:7001", true},
		{":7001", "redis.example:7001", true},
		{"10.0.0.1:0", "10.0.0.1:6379", true}, // the client replaces the port, too
		{"10.0.0.1:0", "10.0.0.2:6379", false},
		{"?", "10.0.0.1:6379", true}, // unreadable for everybody
	} {
		if got := redisconn.IsListed(map[string]bool{c.topology: true}, c.node); got != c.want {
			t.Errorf("%s in a topology of %s: %v", c.node, c.topology, got)
		}
	}
}
