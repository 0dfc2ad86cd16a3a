package e2e

import (
	"context"
	"fmt"
	"testing"
)

// perUser are rules that allow each user this number of requests a day.
func perUser(limit int) string {
	return fmt.Sprintf("domain: e2e\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: %d}}\n", limit)
}

// byUser is a listener that limits requests by their header x-user.
func byUser(filter string) listener {
	return listener{Name: "main", Filter: filter, Routes: `
- match: {prefix: /}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
`}
}

// often is a health check with a short interval. One failed check is enough, because ratelimitd reports itself
// unhealthy before it stops.
const often = `
health_checks:
- timeout: 5s
  interval: 0.1s
  no_traffic_interval: 0.1s
  unhealthy_threshold: 1
  healthy_threshold: 1
  grpc_health_check: {}
`

// reload replaces the rule file of the fleet and waits until both services have read it. They may reject it.
// The log says so when the rules are active; the metrics count a reload before that.
func (f *fleet) reload(t *testing.T, rule string) {
	t.Helper()
	loaded := func(s *service) int { return len(s.Log.All(t, "active rules", 0)) }
	before := make(map[*service]int)
	for _, s := range f.services {
		before[s] = loaded(s)
	}
	writeRules(t, f.rules, 0, rule)
	for _, s := range f.services {
		await(t, s.name+" to use the rules", func(context.Context) error {
			if n := loaded(s); n == before[s] {
				return fmt.Errorf("it has loaded them %d times, as before", n)
			}
			return nil
		})
	}
}

// Rules change under load. Once both services have read the new rules, they apply them to all requests. Invalid rules
// change nothing. Each request is answered without an error.
func TestReloadUnderTraffic(t *testing.T) {
	f := startFleet(t, perUser(1_000_000))
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{byUser("failure_mode_deny: true")}})
	l := startLoad(t, "main", "/", 20, e)
	for i, phase := range []struct {
		rule   string
		denied bool // all requests; otherwise none
	}{
		{perUser(1_000_001), false},
		{perUser(0), true},
		{perUser(0) + "    bogus: true\n", true},
		{"domain: [", true},
		{perUser(2_000_000), false},
		{perUser(0), true},
		{perUser(3_000_000), false},
	} {
		f.reload(t, phase.rule)
		got := l.next(t, 100)
		if want := map[bool]int{true: got.sent(), false: 0}[phase.denied]; got.Denied != want || got.Failed != 0 {
			t.Errorf("phase %d: %v; want %d denied", i+1, got, want)
		}
	}
	all := l.stop()
	t.Log(all)
	if all.Failed != 0 {
		t.Errorf("requests were lost: %v", all)
	}
	if got, want := e.verdicts(t, "main"), (verdicts{OK: all.Answered, OverLimit: all.Denied}); got != want {
		t.Errorf("Envoy counted %+v, the callers %+v", got, want)
	}
	f.agree(t, []*envoy{e}, "main")
}

// The services restart one after the other under load, as in an update. No request fails, and none passes without a
// decision.
func TestRollingRestart(t *testing.T) {
	const retries = `envoy_grpc: {cluster_name: rls}, retry_policy: {
                retry_on: connect-failure, num_retries: 5, retry_back_off: {base_interval: 0.001s, max_interval: 10s}, host_selection_retry_max_attempts: 5,
                retry_host_predicate: [{name: previous_hosts, typed_config: {
                  "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}]}`
	const manyRetries = "circuit_breakers: {thresholds: [{max_retries: 100}]}"
	for name, way := range map[string]struct {
		drain   string // how long a stopping service is unhealthy and still answers
		cluster string
		call    string
	}{
		// Envoy notices that a service is unhealthy and calls the other one. It passes changes of health to its workers once
		// a second (update_merge_window). A service that stops sooner after its last change still gets calls after it has
		// stopped.
		"health checks": {drain: "2s", cluster: often},
		// When a connection is rejected, Envoy calls the other service: the first one has counted nothing. By default Envoy
		// runs at most three such retries at a time and waits a second before each; max_interval also limits how long one
		// may take.
		"retries": {drain: "0s", cluster: manyRetries, call: retries},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, perUser(1_000_000), "RATELIMITD_DRAIN_DELAY="+way.drain)
			main := byUser("failure_mode_deny: true")
			main.Call = way.call
			e := startEnvoy(t, bootstrap{
				Clusters:  []cluster{upstreamCluster(f.upstream), rls(f.services...).with(way.cluster)},
				Listeners: []listener{main},
			})
			e.awaitHealthy(t, "rls", 2)
			l := startLoad(t, "main", "/", 20, e)
			l.next(t, 100)
			for _, s := range f.services {
				s.restart(t)
				await(t, s.name+" to be asked again", func(ctx context.Context) error {
					m, err := s.readMetrics(ctx)
					if err == nil && m.answers().OK < 20 {
						err = fmt.Errorf("it answered %+v", m.answers())
					}
					return err
				})
			}
			all := l.stop()
			t.Log(all)
			if all.Failed != 0 || all.Denied != 0 {
				t.Errorf("requests were lost: %v", all)
			}
			if got, want := e.verdicts(t, "main"), (verdicts{OK: all.Answered}); got != want {
				t.Errorf("Envoy counted %+v, the callers %+v", got, want)
			}
			if way.drain != "0s" { // otherwise nobody can read the last metrics of a service
				f.agree(t, []*envoy{e}, "main")
			}
			if counted := f.counted(t, 1_000_000, 20); counted != all.Answered {
				t.Errorf("%d requests were let through, and %d counted", all.Answered, counted)
			}
		})
	}
}
