package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// probed is a process whose health is checked.
type probed struct {
	*servicetest.Process
	grpcHealth healthv1.HealthClient
}

func probe(t *testing.T, p *servicetest.Process) probed {
	t.Helper()
	return probed{p, healthv1.NewHealthClient(dial(t, p.GRPC))}
}

// health checks all health endpoints and reports whether the process is green. It fails unless all agree.
func (p *probed) health(t *testing.T) bool {
	t.Helper()
	// Health may turn between two checks: then all are checked again.
	for try := 1; ; try++ {
		code, _ := get(t, "http://"+p.HTTP+"/healthcheck")
		ready, _ := get(t, "http://"+p.HTTP+"/readyz")
		green := code == 200
		agreed := (ready == 200) == green
		for _, name := range []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"} {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			got, err := p.grpcHealth.Check(ctx, &healthv1.HealthCheckRequest{Service: name})
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			agreed = agreed && (got.GetStatus() == healthv1.HealthCheckResponse_SERVING) == green
		}
		if live, _ := get(t, "http://"+p.HTTP+"/livez"); live != 200 {
			t.Fatalf("/livez: %d", live)
		}
		switch {
		case agreed:
			return green
		case try == 3:
			t.Fatalf("health does not agree: /healthcheck %d, /readyz %d", code, ready)
		}
	}
}

// turns waits until health is green, or red.
func (p *probed) turns(t *testing.T, green bool) time.Duration {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.health(t) != green {
		if time.Since(start) > patience {
			t.Fatalf("health did not turn, green is %v, within %s:\n%s", green, patience, p.Log)
		}
		<-tick.C
	}
	return time.Since(start)
}

// logs waits until a process has logged a text this many times.
func (p *probed) logs(t *testing.T, text string, times int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); strings.Count(p.Log.String(), text) < times; <-tick.C {
		if time.Since(start) > patience {
			t.Fatalf("%q was not logged %d times within %s:\n%s", text, times, patience, p.Log)
		}
	}
}

// opTimeout is REDIS_OP_TIMEOUT in these tests. A call may take ten times that on a busy machine.
const opTimeout = 50 * time.Millisecond

const onErrorRules = `
domain: d
descriptors:
  - key: error
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: allow
    on_error: allow
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: deny
    on_error: deny
    rate_limit: {unit: year, requests_per_unit: 1000000}
  - key: local
    on_error: local
    rate_limit: {unit: year, requests_per_unit: 10}
`

// Without Redis the service keeps trying. Health is red until Redis has answered once, or green from the start with a
// setting. on_error decides calls, in bounded time.
func TestStartWithoutRedis(t *testing.T) {
	for name, c := range map[string]struct {
		env   map[string]string
		green bool
	}{
		"waits":  {nil, false},
		"serves": {map[string]string{"RATELIMITD_REDIS_STARTUP_SERVE": "true"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := redistest.Start(t)
			r.Kill(t)
			env := map[string]string{
				"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": opTimeout.String(),
				"REDIS_STARTUP_INITIAL_INTERVAL": "100ms", "REDIS_STARTUP_MAX_INTERVAL": "200ms",
			}
			for k, v := range c.env {
				env[k] = v
			}
			p := probe(t, startProcess(t, env, "--rules", rulesOf(t, onErrorRules)))
			p.Log.Wait(t, "Redis does not answer yet: on_error decides until it does")
			if green := p.health(t); green != c.green {
				t.Errorf("health is green: %v", green)
			}
			client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
			for key, want := range map[string]codes.Code{"error": codes.Unavailable, "allow": codes.OK, "local": codes.OK} {
				start := time.Now()
				if _, err := client.ShouldRateLimit(t.Context(), ask("d", key, "v")); status.Code(err) != want {
					t.Errorf("%s: %v", key, err)
				}
				if took := time.Since(start); took > 10*opTimeout {
					t.Errorf("%s: it took %v", key, took)
				}
			}
			r.Restart(t)
			p.Log.Wait(t, "Redis answers")
			t.Logf("health is green %v after that", p.turns(t, true))
			start := time.Now()
			for {
				_, err := client.ShouldRateLimit(t.Context(), ask("d", "error", "v"))
				if err == nil {
					break
				}
				if time.Since(start) > patience {
					t.Fatal(err)
				}
			}

			// After the first answer, losing Redis does not turn health red.
			r.Kill(t)
			if _, err := client.ShouldRateLimit(t.Context(), ask("d", "error", "v")); status.Code(err) != codes.Unavailable {
				t.Errorf("without Redis: %v", err)
			}
			if !p.health(t) {
				t.Error("health is red")
			}
		})
	}
}

// If Redis is up, the service connects before it logs that it listens: health is never seen red.
func TestStartWithRedis(t *testing.T) {
	r := redistest.Start(t)
	p := probe(t, startProcess(t, map[string]string{"REDIS_URL": r.Addr}, "--rules", rulesOf(t, fiveADay)))
	if !p.health(t) {
		t.Error("health is red")
	}
}

// With a limit on the waiting time, the process ends when Redis does not come up.
func TestStartGivesUp(t *testing.T) {
	r := redistest.Start(t)
	r.Kill(t)
	for name, env := range map[string]map[string]string{
		"REDIS":           {"REDIS_URL": r.Addr},
		"REDIS_PERSECOND": {"REDIS_URL": redistest.Start(t).Addr, "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": r.Addr},
	} {
		env["REDIS_STARTUP_INITIAL_INTERVAL"], env["REDIS_STARTUP_MAX_ELAPSED_TIME"] = "100ms", "1s"
		env["GRPC_PORT"], env["PORT"], env["DEBUG_PORT"] = "0", "0", "0"
		start := time.Now()
		code, text := output(t, env, "--rules", rulesOf(t, fiveADay))
		if code != 1 || !strings.Contains(text, name+"_URL: no answer within REDIS_STARTUP_MAX_ELAPSED_TIME=1s") {
			t.Errorf("it ended with %d after %v and said\n%s", code, time.Since(start), text)
		}
	}
}

func TestStartupSettings(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"--redis-startup-max-interval: must": {"REDIS_STARTUP_MAX_INTERVAL": "2"},
		"--redis-key-format: must":           {"REDIS_KEY_FORMAT": "envoy"},
	} {
		env["REDIS_URL"] = "127.0.0.1:1"
		if code, text := output(t, env, "--rules", rulesOf(t, fiveADay)); code == 0 || !strings.Contains(text, want) {
			t.Errorf("%v: it ended with %d and said\n%s", env, code, text)
		}
	}
}

// With REDIS_HEALTH_CHECK_ACTIVE_CONNECTION health follows Redis, however it is lost. With two Redis, both must be up.
func TestHealthFollowsRedis(t *testing.T) {
	t.Parallel() // it spends most of its time waiting
	r, perSecond := redistest.Start(t), redistest.Start(t)
	p := probe(t, startProcess(t, map[string]string{
		"REDIS_URL": r.Addr, "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": perSecond.Addr, "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION": "true",
	}, "--rules", rulesOf(t, fiveADay)))
	if !p.health(t) {
		t.Error("health is red at the start")
	}
	for _, step := range []struct {
		what        string
		do          func(testing.TB)
		lost, found int // how often the log has reported each by then
		green       bool
	}{
		{"killed", r.Kill, 1, 0, false},
		{"restarted", r.Restart, 1, 1, true},
		{"stopped by a signal", r.Pause, 2, 1, false},
		{"continued", r.Continue, 2, 2, true},
		{"the one for limits per second killed", perSecond.Kill, 3, 2, false},
		{"the other one killed too", r.Kill, 4, 2, false},
		{"the other one restarted", r.Restart, 4, 3, false},
		{"both restarted", perSecond.Restart, 4, 4, true},
	} {
		start := time.Now()
		step.do(t)
		p.logs(t, "Redis cannot be used: health is red", step.lost)
		p.logs(t, "Redis can be used again", step.found)
		p.turns(t, step.green)
		t.Logf("%s: health knows within %v", step.what, time.Since(start))
	}
}

// Where no decision can be made, /json answers 503.
func TestJSONWithoutRedis(t *testing.T) {
	p := startProcess(t, map[string]string{"REDIS_URL": "127.0.0.1:1"}, "--rules", rulesOf(t, fiveADay))
	for body, code := range map[string]int{
		`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`: http.StatusServiceUnavailable,
		`{"domain":"d","descriptors":[{"entries":[{"key":"x","value":"v"}]}]}`: http.StatusOK, // no rule, no count
		`{"domain":"","descriptors":[{}]}`:                                     http.StatusBadRequest,
		`domain: d`:                                                            http.StatusBadRequest,
	} {
		resp, err := http.Post("http://"+p.HTTP+"/json", "application/json", strings.NewReader(body)) //nolint:noctx // the test's own server
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != code {
			t.Errorf("%s: %s, want %d", body, resp.Status, code)
		}
	}
}

// Health is red while Redis answers and rejects every call, regardless of the settings, and even if that starts later.
// The page of health shows the reason. It is green again when Redis accepts the calls.
func TestHealthWhenRedisRejects(t *testing.T) {
	server := redistest.Start(t)
	p := startProcess(t, map[string]string{"REDIS_URL": server.Addr}, "--rules", rulesOf(t, edgeRules))
	rights := func(all ...any) {
		t.Helper()
		if err := server.Client(t).Do(t.Context(), append([]any{"acl", "setuser", "default"}, all...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	health := func(want int) {
		t.Helper()
		redistest.Eventually(t, fmt.Sprint("health is ", want), func(ctx context.Context) error {
			_, _ = client.ShouldRateLimit(ctx, ask("edge", "second", "x"))
			if code, body := servicetest.Get(t, "http://"+p.HTTP+"/healthcheck"); code != want {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	health(200)
	rights("-@scripting")
	health(500)
	rights("+@all")
	health(200)
}
