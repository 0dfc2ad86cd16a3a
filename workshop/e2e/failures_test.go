package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// byHow is a listener that limits requests by their header x-how.
func byHow(name, filter string) listener {
	return listener{Name: name, Filter: filter, Routes: `
- match: {prefix: /}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{request_headers: {header_name: x-how, descriptor_key: how}}]
`}
}

// Redis is gone. The rule's on_error decides the answer; for error, Envoy's failure mode decides.
func TestRedisGone(t *testing.T) {
	f := startFleet(t, `
domain: e2e
descriptors:
  - {key: how, value: error, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: how, value: allow, on_error: allow, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: how, value: deny, on_error: deny, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: how, value: local, on_error: local, rate_limit: {unit: day, requests_per_unit: 8}}
`, "REDIS_OP_TIMEOUT=100ms")
	for _, s := range f.services {
		s.AwaitReplicas(t, 2)
	}
	e := startEnvoy(t, bootstrap{
		Clusters: []cluster{upstreamCluster(f.upstream), rls(f.services...).with(often)},
		Listeners: []listener{
			byHow("open", "failure_mode_deny: false"),
			byHow("closed", "failure_mode_deny: true"),
			byHow("unavailable", "failure_mode_deny: true\nstatus_on_error: {code: ServiceUnavailable}"),
		},
	})
	e.awaitHealthy(t, "rls", 2)
	const n = 10
	// expect sends n requests through a listener. All must return code, and Envoy must have counted want.
	expect := func(t *testing.T, listener, how string, code int, want verdicts) {
		t.Helper()
		before, start := e.verdicts(t, listener), time.Now()
		got := e.codes(t, n, listener, "/", "x-how", how)
		if slices.ContainsFunc(got, func(c int) bool { return c != code }) {
			t.Errorf("%s through %s: %v, want %d", how, listener, got, code)
		}
		if counted := e.verdicts(t, listener).minus(before); counted != want {
			t.Errorf("%s through %s: Envoy counted %+v, want %+v", how, listener, counted, want)
		}
		if took := time.Since(start); took > n*10*100*time.Millisecond { // ten times the timeout for each
			t.Errorf("%s through %s: %d requests took %v", how, listener, n, took)
		}
	}
	well := func(t *testing.T) {
		t.Helper()
		await(t, "Redis to be asked again by both", func(context.Context) error {
			before := e.verdicts(t, "closed")
			for _, how := range []string{"error", "deny"} {
				if got := e.codes(t, n, "closed", "/", "x-how", how); slices.ContainsFunc(got, func(c int) bool { return c != 200 }) {
					return fmt.Errorf("%s: %v", how, got)
				}
			}
			if counted := e.verdicts(t, "closed").minus(before); counted != (verdicts{OK: 2 * n}) {
				t.Errorf("Envoy counted %+v, want %+v", counted, verdicts{OK: 2 * n})
			}
			return nil
		})
	}
	sick := func(t *testing.T) {
		t.Helper()
		expect(t, "open", "error", 200, verdicts{Error: n, FailureModeAllowed: n})
		expect(t, "closed", "error", 500, verdicts{Error: n})
		expect(t, "unavailable", "error", 503, verdicts{Error: n})
		for _, listener := range []string{"open", "closed"} { // ratelimitd answers, so the failure mode does not matter
			expect(t, listener, "allow", 200, verdicts{OK: n})
			expect(t, listener, "deny", 429, verdicts{OverLimit: n})
		}
		if healthy := e.stats(t, "membership_healthy")["cluster.rls.membership_healthy"]; healthy != 2 {
			t.Errorf("Envoy takes %d of 2 for healthy", healthy)
		}
	}

	t.Run("well", well)
	t.Run("killed", func(t *testing.T) {
		f.redis.Kill(t)
		sick(t)
		passed := 0
		for _, code := range e.codes(t, 2*n, "closed", "/", "x-how", "local") {
			if code == 200 {
				passed++
			}
		}
		if passed != 8 {
			t.Errorf("%d passed, want 8: each of two replicas counts half of the limit by itself", passed)
		}
	})
	t.Run("back", func(t *testing.T) {
		f.redis.Restart(t)
		well(t)
	})
	t.Run("hung", func(t *testing.T) {
		f.redis.Pause(t)
		sick(t)
		f.redis.Continue(t)
	})
	t.Run("back again", well)
	f.agree(t, []*envoy{e}, "open", "closed", "unavailable")
}

// Redis hangs, and Envoy's timeout is shorter than ratelimitd's. Envoy gives up, and so does ratelimitd at the deadline
// that Envoy sent.
func TestEnvoyGivesUp(t *testing.T) {
	f := startFleet(t, perUser(1000), "REDIS_OP_TIMEOUT=1m")
	main := byUser("failure_mode_deny: true")
	main.Timeout = "0.2s"
	e := startEnvoy(t, bootstrap{Clusters: f.clusters(), Listeners: []listener{main}})
	f.redis.Pause(t)
	const n = 4
	start := time.Now()
	if got := e.codes(t, n, "main", "/", "x-user", "u"); !slices.Equal(got, []int{500, 500, 500, 500}) {
		t.Errorf("got %v", got)
	}
	if took := time.Since(start); took > n*10*200*time.Millisecond {
		t.Errorf("%d requests took %v", n, took)
	}
	f.awaitAnswers(t, answers{}, answers{Failed: n}) // before Redis can answer: a service may be behind Envoy
	f.redis.Continue(t)
	if got, want := e.verdicts(t, "main"), (verdicts{Error: n}); got != want {
		t.Errorf("Envoy counted %+v, want %+v", got, want)
	}
}

// A ratelimitd is killed under load. Envoy's failure mode decides the calls in flight and the calls made before Envoy
// notices. Then the other service answers all calls. After the restart both answer again.
func TestServiceKilled(t *testing.T) {
	f := startFleet(t, perUser(1_000_000))
	e := startEnvoy(t, bootstrap{
		Clusters:  []cluster{upstreamCluster(f.upstream), rls(f.services...).with(often)},
		Listeners: []listener{byUser("failure_mode_deny: false")},
	})
	e.awaitHealthy(t, "rls", 2)
	l := startLoad(t, "main", "/", 20, e)
	l.next(t, 100)
	f.services[0].Kill(t)
	e.awaitHealthy(t, "rls", 1)
	await(t, "Envoy's workers to know", func(context.Context) error {
		before := e.verdicts(t, "main").Error
		l.next(t, 50)
		if more := e.verdicts(t, "main").Error - before; more != 0 {
			return fmt.Errorf("%d more errors", more)
		}
		return nil
	})
	f.services[0].start(t)
	await(t, "it to be asked again", func(context.Context) error {
		if f.services[0].metrics(t).answers().OK == 0 {
			return errors.New("it was not")
		}
		return nil
	})
	all := l.stop()
	v := e.verdicts(t, "main")
	t.Logf("%v; Envoy counted %+v", all, v)
	if all.Failed != 0 || all.Denied != 0 {
		t.Errorf("requests were lost: %v", all)
	}
	if v.Error != v.FailureModeAllowed || v.OK+v.FailureModeAllowed != all.Answered || v.OverLimit != 0 {
		t.Errorf("Envoy counted %+v of %v", v, all)
	}
}
