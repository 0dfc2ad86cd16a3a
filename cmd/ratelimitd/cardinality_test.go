package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

const attackedRules = `
domain: d
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 1000000}
  - key: counted
    rate_limit: {unit: minute, requests_per_unit: 1000000}
  - key: steady
    rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

// attackMemory is the most live heap, in bytes, that an attack may use. Ten thousand names of 128 bytes, exported to
// Prometheus and StatsD, are about 20 MB. The number of values sent does not matter.
const attackMemory = 40 << 20

// TestSoakCardinality sends unknown values and domains under rules with a metric per value, with Prometheus and StatsD
// exporting everything. Memory must not grow with the attack. make soak runs
// nothing else on the machine, so there the test also compares latency: an ordinary client must not wait longer than
// during the same load without metrics per value.
func TestSoakCardinality(t *testing.T) {
	racetest.Sequential(t)
	const most = 10_000 // names in metrics
	values, domains := 20_000, 2_000
	soak := os.Getenv("RATELIMITD_SOAK") != "" // make soak
	if soak {
		values, domains = 1_000_000, 100_000
	}
	r := redistest.Start(t) // keeps counters out of this process: only metrics grow here
	d := listenStatsD(t, "udp")
	go func() {
		for range d.lines { // the lines are not needed; this keeps the channel from filling up
		}
	}()
	p := startProcess(t, map[string]string{
		"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s",
		"USE_STATSD": "true", "STATSD_PROTOCOL": "udp", "STATSD_HOST": d.host, "STATSD_PORT": d.port, "STATS_FLUSH_INTERVAL": "10s",
	}, "--rules", rulesOf(t, attackedRules))
	a := &attack{t: t, p: p}

	known := func(int) string { return "d" }
	unknown := func(i int) string { return fmt.Sprintf("domain-%0100d", i) }
	a.run("counted", 0, values/10, known, domains/10) // warm-up: creates connections, pools and buffers
	// Control and attack alternate, because other processes on this machine disturb every measurement. The best turn
	// counts.
	const turns = 2
	control, attacked := time.Hour, time.Hour
	var before, after int64
	for turn := range turns {
		beside, heap := a.run("counted", turn*values/turns, values/turns, known, domains/turns)
		if turn == 0 {
			before = heap
		}
		var under time.Duration
		under, after = a.run("user", turn*values/turns, values/turns, unknown, domains/turns)
		t.Logf("turn %d: p99 %s under attack, %s with as many values that no metric names", turn, under, beside)
		control, attacked = min(control, beside), min(attacked, under)
	}
	grown := after - before
	t.Logf("%d values and %d domains: live heap grew by %.1f MiB; p99 of a steady caller %s, with as many values that no metric names %s",
		values, domains, float64(grown)/(1<<20), attacked, control)
	if grown > attackMemory {
		t.Errorf("live heap grew by %d bytes, want %d at most", grown, attackMemory)
	}
	if bound := 5*control + 20*time.Millisecond; attacked > bound && soak {
		t.Errorf("the 99th percentile of a steady caller was %s under attack, want %s at most: it is %s with as many values that no metric names", attacked, bound, control)
	}

	if series := int(a.metric("ratelimitd_metric_series")); series < most || series > most+3 {
		t.Errorf("%d series, want %d, and three of rules at most beyond", series, most)
	}
	rest, named := a.metric(`ratelimitd_rule_hits_total{domain="overflow",rule="overflow"}`), a.sum(`ratelimitd_rule_hits_total{domain="d",rule="user_`)
	if rest+named != float64(values) {
		t.Errorf("%v hits are counted by name and %v under the series for the rest, want %d in all", named, rest, values)
	}
	if got := a.metric("ratelimitd_unknown_domain_requests_total"); got != float64(domains) {
		t.Errorf("%v requests for unknown domains are counted, want %d", got, domains)
	}
}

// together is the number of descriptors in a request. It is high so that the values, not the calls, take most of the
// time.
const together = 100

// attack sends load to a service.
type attack struct {
	t *testing.T
	p *servicetest.Process
}

// run sends this number of values of a key, starting at from, and one request to each of this number of domains. It
// returns the p99 latency of a steady client during the attack, and the live heap afterwards.
func (a *attack) run(key string, from, values int, domain func(int) string, domains int) (p99 time.Duration, heap int64) {
	a.t.Helper()
	value := func(i int) string { return fmt.Sprintf("value-%0100d", from+i) }
	done, stop := context.WithCancel(a.t.Context())
	defer stop()
	var steady, scraper, attackers sync.WaitGroup
	var took []time.Duration
	steady.Go(func() {
		client := ratelimitv3.NewRateLimitServiceClient(dial(a.t, a.p.GRPC))
		req := ask("d", "steady", "v")
		for done.Err() == nil {
			start := time.Now()
			if _, err := client.ShouldRateLimit(a.t.Context(), req); err != nil {
				a.t.Error(err)
				return
			}
			took = append(took, time.Since(start))
		}
	})
	scraper.Go(func() {
		tick := time.NewTicker(15 * time.Second)
		defer tick.Stop()
		for {
			if code, _ := get(a.t, "http://"+a.p.HTTP+"/metrics"); code != http.StatusOK {
				a.t.Errorf("/metrics: %d", code)
			}
			select {
			case <-tick.C:
			case <-done.Done():
				return
			}
		}
	})
	for half := range 2 {
		attackers.Go(func() {
			client := ratelimitv3.NewRateLimitServiceClient(dial(a.t, a.p.GRPC))
			call := func(req *ratelimitv3.RateLimitRequest) {
				if _, err := client.ShouldRateLimit(a.t.Context(), req); err != nil {
					a.t.Error(err)
				}
			}
			for i := half * values / 2; i < (half+1)*values/2; {
				req := ask("d", key, value(i))
				for i++; i < (half+1)*values/2 && len(req.GetDescriptors()) < together; i++ {
					req.Descriptors = append(req.Descriptors, ask("d", key, value(i)).GetDescriptors()...)
				}
				call(req)
			}
			for i := half * domains / 2; i < (half+1)*domains/2; i++ {
				call(ask(domain(from+i), "k", "v"))
			}
		})
	}
	attackers.Wait()
	stop()
	steady.Wait()
	scraper.Wait()
	if len(took) == 0 {
		a.t.Fatal("a steady caller was never answered")
	}
	slices.Sort(took)
	a.metric("ratelimitd_metric_series") // makes the service export every name
	if code, _ := get(a.t, "http://"+a.p.Debug+"/debug/pprof/heap?gc=1"); code != http.StatusOK {
		a.t.Errorf("collecting garbage: %d", code)
	}
	return took[len(took)*99/100], int64(a.metric("go_memstats_heap_alloc_bytes"))
}

// metric returns the value of one series.
func (a *attack) metric(series string) float64 {
	a.t.Helper()
	return a.sum(series + " ")
}

// sum adds up all series whose names start with prefix.
func (a *attack) sum(prefix string) (sum float64) {
	a.t.Helper()
	_, body := get(a.t, "http://"+a.p.HTTP+"/metrics")
	found := false
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &v); err != nil {
			a.t.Fatalf("%q: %v", line, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		a.t.Errorf("there is no series %s", prefix)
	}
	return sum
}
