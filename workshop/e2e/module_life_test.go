package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

// moduleUser returns settings with which a module limits each user.
func moduleUser(rules string, more ...string) string {
	const limits = "rate_limits: [{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]}]"
	return strings.Join(append([]string{"domain: e2e", "rules: " + rules, limits}, more...), "\n")
}

const allRoutes = `
- match: {prefix: /}
  route: {cluster: upstream, timeout: 60s}
`

// startModule starts an Envoy with one listener, main, whose module has these settings.
func startModule(t *testing.T, name string, u *upstream, settings string, more ...listener) *envoy {
	t.Helper()
	b := bootstrap{
		Name: name, Clusters: []cluster{upstreamCluster(u)}, Env: needsModule(t), Args: []string{"--concurrency", "2"},
		Listeners: append([]listener{{Name: "main", Module: settings, Routes: allRoutes}}, more...),
	}
	return startEnvoy(t, b)
}

// Settings that the module cannot obey are an error when the configuration loads, and Envoy's log says how to fix them.
// The module connects to nothing to check them.
func TestModuleRejects(t *testing.T) {
	env := needsModule(t)
	good := moduleUser(rules(t, perUser(1)))
	redisNobodyHas := "redis_url: " + redistest.FreeAddr(t)
	for _, c := range []struct{ settings, says string }{
		{good + "\n" + redisNobodyHas, "OK"},
		{good + "\nmemory_max_counters: 3000000", "OK"},
		{good + "\ndenial: 1", `unknown field \"denial\"`},
		{strings.Replace(good, "rate_limits: [{", "rate_limits: [{disable_key: key, ", 1), "rate_limits[0]: disable_key is not supported"},
	} {
		if said := validate(t, c.settings, allRoutes, env); !strings.Contains(said, c.says) {
			t.Errorf("%s\nwant %s, got\n%s", c.settings, c.says, said)
		}
	}
	said := validate(t, good, perModuleRoute("/", "- {disable_key: key, actions: [{remote_address: {}}]}"), env)
	if !strings.Contains(said, "the configuration of a route is rejected") || !strings.Contains(said, "disable_key") {
		t.Errorf("a route: %s", said)
	}
}

// validate returns Envoy's output when it validates a module with these settings and routes.
func validate(t *testing.T, settings, routes string, env []string) string {
	t.Helper()
	b := bootstrap{
		Name: "validated", Clusters: []cluster{{Name: "upstream", Endpoints: []string{"127.0.0.1:1"}}},
		Listeners: []listener{{Name: "main", Module: settings, Routes: routes}},
	}
	cmd := exec.Command(envoyBinary, "--mode", "validate", "-c", b.write(t, t.TempDir()), "-l", "warning")
	cmd.Env = env
	said, _ := cmd.CombinedOutput() // the output has the error
	return string(said)
}

// A module that does not fit its Envoy is rejected, and the log names the missing function: one that the module calls,
// or one that Envoy calls.
func TestModuleOfAnotherEnvoy(t *testing.T) {
	needsEnvoy(t)
	needsCompiler(t)
	settings := moduleUser(rules(t, perUser(1)))
	for renamed, says := range map[string]string{
		"envoy_dynamic_module_callback_http_add_custom_flag": "lacks envoy_dynamic_module_callback_http_add_custom_flag",
		"envoy_dynamic_module_on_http_filter_scheduled":      "Failed to resolve symbol envoy_dynamic_module_on_http_filter_scheduled",
	} {
		dir := t.TempDir()
		if err := build.EnvoyModule(dir, "-D"+renamed+"="+renamed+"_of_another_version"); err != nil {
			t.Fatal(err)
		}
		if said := validate(t, settings, allRoutes, []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + dir}); !strings.Contains(said, says) {
			t.Errorf("without %s: want %s, got\n%s", renamed, says, said)
		}
	}
}

// counts returns the number of responses by status code.
func counts(codes []int) map[int]int {
	all := make(map[int]int)
	for _, c := range codes {
		all[c]++
	}
	return all
}

// storm sends n requests of each user, over 64 connections, to several Envoys in turn. It returns how many of each user
// passed.
func storm(t *testing.T, users, n int, envoys ...*envoy) []int {
	t.Helper()
	passed := make([]atomic.Int64, users)
	var next atomic.Int64
	var callers sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	for range 64 {
		callers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= users*n {
					return
				}
				user := i / n
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+envoys[i%len(envoys)].ports["main"], nil)
				req.Header.Set("X-User", fmt.Sprint(user))
				res, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = res.Body.Close()
				switch res.StatusCode {
				case http.StatusOK:
					passed[user].Add(1)
				case http.StatusTooManyRequests:
				default:
					t.Errorf("status %d", res.StatusCode)
				}
			}
		})
	}
	callers.Wait()
	all := make([]int, users)
	for i := range passed {
		all[i] = int(passed[i].Load())
	}
	return all
}

// Two Envoys count in one Redis: exactly the limit passes for each user. With leases it is never more.
func TestModulesShareALimit(t *testing.T) {
	users := 4
	if os.Getenv("RATELIMITD_SOAK") != "" {
		users = 20
	}
	const limit = 500
	for _, lease := range []string{"", ", lease: true"} {
		redis := redistest.Start(t)
		servicetest.NotAtMidnight()
		rule := fmt.Sprintf("domain: e2e\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: %d%s}}]", limit, lease)
		settings := moduleUser(rules(t, rule), "redis_url: "+redis.Addr, "timeout: 10s", "failure_mode_deny: true")
		u := startUpstream(t)
		envoys := []*envoy{startModule(t, "envoy 1", u, settings), startModule(t, "envoy 2", u, settings)}
		least := limit
		if lease != "" {
			least = limit * 9 / 10 // one may deny while the other has permits
		}
		if passed := storm(t, users, limit+100, envoys...); slices.ContainsFunc(passed, func(n int) bool { return n > limit || n < least }) {
			t.Errorf("lease %q: %v passed, want %d each", lease, passed, limit)
		}
	}
}

const leased = "domain: e2e\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 100000, lease: true}}]"

// When Envoy ends, it first returns the permits that it has not used.
func TestModuleReturnsPermits(t *testing.T) {
	redis := redistest.Start(t)
	servicetest.NotAtMidnight()
	settings := moduleUser(rules(t, leased), "redis_url: "+redis.Addr, "timeout: 10s", "failure_mode_deny: true")
	e := startModule(t, "envoy", startUpstream(t), settings)
	passed := storm(t, 1, 500, e)
	held := servicetest.Counts(t, "", redis)
	e.Stop(t)
	for key, n := range servicetest.Counts(t, "", redis) {
		if n != int64(passed[0]) || held[key] == n {
			t.Errorf("%s: %d requests passed, Redis had counted %d, and %d at the end: no permits were given back", key, passed[0], held[key], n)
		}
	}
}

// Redis stops answering, or is killed: each request is answered by its deadline, by the failure mode or by on_error.
// When Redis answers again, so does the module.
func TestModuleWithoutRedis(t *testing.T) {
	redis := redistest.Start(t)
	servicetest.NotAtMidnight()
	of := func(rule string, more ...string) string {
		return moduleUser(rules(t, "domain: e2e\n"+rule+"\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]"),
			append(more, "redis_url: "+redis.Addr, "timeout: 1s")...)
	}
	listeners := map[string]int{"main": 200, "deny": 503, "rule": 429}
	e := startModule(t, "envoy", startUpstream(t), of(""),
		listener{Name: "deny", Module: of("", "failure_mode_deny: true", "status_on_error: {code: 503}"), Routes: allRoutes},
		listener{Name: "rule", Routes: allRoutes, Module: of("on_error: deny", "response_headers: [retry-after]",
			"response_headers_to_add: [{header: {key: X-Limited, value: 100%%}}]")})
	post := func(listener string) (code int) {
		body := strings.NewReader(strings.Repeat("x", 3<<20))
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+e.ports[listener], body)
		req.Header.Set("X-User", "ann")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	// the first connection may take longer than the timeout
	await(t, "the first answer of Redis", func(context.Context) error {
		if code := e.get(t, "deny", "/", "x-user", "first").code; code != 200 {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	for _, outage := range []struct {
		user       string
		begin, end func(testing.TB)
	}{{"bob", redis.Pause, redis.Continue}, {"eve", redis.Kill, redis.Restart}} {
		outage.begin(t)
		for name, want := range listeners {
			for range 20 { // the breaker opens
				if code := post(name); code != want {
					t.Errorf("%s: a request got %d without Redis, want %d", name, code, want)
				}
			}
		}
		outage.end(t)
		await(t, "the limits to hold again", func(context.Context) error {
			if code := e.get(t, "deny", "/", "x-user", "after "+outage.user).code; code == 503 {
				return errors.New("no decision")
			}
			return nil
		})
		if got := counts(e.codes(t, 10, "rule", "/", "x-user", outage.user)); got[200] != 3 || got[429] != 7 {
			t.Errorf("afterwards: %v", got)
		}
	}
	r := e.get(t, "rule", "/", "x-user", "eve")
	has(t, r, "x-limited", "100%")
	has(t, r, "x-envoy-ratelimited", "true")
	stats := e.stats(t, "ratelimit")
	if n := stats["module.ratelimit.deny.e2e.error"]; n < 40 {
		t.Errorf("%d errors are counted: %v", n, stats)
	}
	if n := stats["module.ratelimit.main.e2e.failure_mode_allowed"]; n < 40 {
		t.Errorf("%d requests are counted that passed without a decision", n)
	}
	if n := stats["module.ratelimit.rule.e2e.over_limit"]; n != 2*(20+7)+1 {
		t.Errorf("%d denials are counted", n)
	}
}

// Requests end while they wait for Redis: their clients disconnect, or Envoy answers them itself, because they take too
// long. Redis answers later, when nobody waits any more. Then Envoy ends while requests wait.
func TestModuleRequestsThatEndPaused(t *testing.T) {
	redis := redistest.Start(t)
	limit := moduleUser(rules(t, perUser(1_000_000)), "redis_url: "+redis.Addr, "timeout: 20s", "redis_op_timeout: 20s")
	ending := func(name, connections string) listener {
		return listener{Name: name, Module: limit, Routes: allRoutes, Connections: connections}
	}
	e := startModule(t, "envoy", startUpstream(t), limit,
		ending("request timeout", "request_timeout: 0.05s"),
		ending("stream duration", "common_http_protocol_options: {max_stream_duration: 0.05s}"),
		ending("idle", "stream_idle_timeout: 0.05s"))
	if code := e.get(t, "main", "/", "x-user", "ann").code; code != 200 {
		t.Fatalf("status %d", code)
	}
	for range 5 {
		redis.Pause(t)
		var all sync.WaitGroup
		for i := range 64 {
			for name := range e.ports {
				all.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+i)*time.Millisecond)
					defer cancel()
					if name != "main" {
						ctx = t.Context()
					}
					req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+e.ports[name], strings.NewReader("body"))
					req.Header.Set("X-User", fmt.Sprint(i))
					if res, err := http.DefaultClient.Do(req); err == nil {
						_ = res.Body.Close()
						if name == "main" || res.StatusCode < 400 {
							t.Errorf("%s: status %d from a Redis that is silent", name, res.StatusCode)
						}
					}
				})
			}
		}
		all.Wait()
		redis.Continue(t)
		if code := e.get(t, "main", "/", "x-user", "ann").code; code != 200 {
			t.Errorf("status %d afterwards", code)
		}
	}
	redis.Pause(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	for i := range 16 {
		waiting.Go(func() { _ = e.outcome(ctx, "main", "/", "x-user", fmt.Sprint(i)) })
	}
	await(t, "requests to wait", func(context.Context) error {
		if n := e.stats(t, "downstream_rq_active")["http.main.downstream_rq_active"]; n != 16 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	began := time.Now()
	e.Signal(t, syscall.SIGTERM)
	<-e.Ended
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Envoy ended after %v", took)
	}
	cancel()
	waiting.Wait()
	redis.Continue(t)
}

// discoverModule writes the settings of a module into a file from which ECDS reads the filter of this name.
func discoverModule(t *testing.T, file, name, settings string) {
	t.Helper()
	replaceFile(t, file, `
resources:
- "@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig
  name: `+name+`
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter
    dynamic_module_config: {name: ratelimitd, do_not_close: true, metrics_namespace: module}
    filter_name: ratelimitd
    filter_config:
      "@type": type.googleapis.com/google.protobuf.Struct
      value:`+indent(8, settings))
}

// Configurations change: by LDS, RDS and ECDS. Each change makes a new configuration, and all count together. If a
// configuration is rejected, the old one stays active.
func TestModuleUpdates(t *testing.T) {
	env := needsModule(t)
	dir := t.TempDir()
	servicetest.NotAtMidnight()
	rule := rules(t, perUser(4))
	discover := func(name string) string {
		return "{path_config_source: {path: " + filepath.Join(dir, name) + "}, resource_api_version: V3}"
	}
	lds := func(bytes int) {
		replaceFile(t, filepath.Join(dir, "lds.yaml"), fmt.Sprintf(`
resources:
- "@type": type.googleapis.com/envoy.config.listener.v3.Listener
  name: main
  per_connection_buffer_limit_bytes: %d
  address: {socket_address: {address: 127.0.0.1, port_value: 0}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
        stat_prefix: main
        rds: {route_config_name: routes, config_source: %s}
        http_filters:
        - name: ratelimitd
          config_discovery:
            config_source: %s
            type_urls: [type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter]
        - name: envoy.filters.http.router
          typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`, bytes, discover("rds.yaml"), discover("ecds.yaml")))
	}
	ecds := func(settings string) { discoverModule(t, filepath.Join(dir, "ecds.yaml"), "ratelimitd", settings) }
	rds := func(routes string) {
		replaceFile(t, filepath.Join(dir, "rds.yaml"), `
resources:
- "@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
  name: routes
  virtual_hosts:
  - name: all
    domains: ["*"]
    routes:`+indent(4, routes))
	}
	lds(100_000)
	ecds(moduleUser(rule))
	rds(allRoutes)
	e := startEnvoy(t, bootstrap{
		Env: env, Clusters: []cluster{upstreamCluster(startUpstream(t))},
		More: "dynamic_resources: {lds_config: " + discover("lds.yaml") + "}",
	})
	await(t, "the listener", func(context.Context) error {
		e.readPorts(t)
		if e.ports["main"] == "" {
			return errors.New("there is none")
		}
		return nil
	})
	updates := func(stat string, n int) {
		t.Helper()
		await(t, stat, func(context.Context) error {
			if got := e.stats(t, stat)[stat]; got < n {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
	}
	ask := func(what, path string, want int) {
		t.Helper()
		if code := e.get(t, "main", path, "x-user", "ann").code; code != want {
			t.Errorf("%s: status %d, want %d", what, code, want)
		}
	}
	const ofFilter = "extension_config_discovery.http_filter.ratelimitd."
	ask("first", "/", 200)
	ecds(moduleUser(rule, "timeout: 1s", "rate_limited_status: {code: 403}"))
	updates(ofFilter+"config_reload", 2)
	ask("after ECDS", "/", 200)
	rds(perModuleRoute("/free", "- {actions: [{request_headers: {header_name: x-tenant, descriptor_key: user}}]}") + allRoutes)
	updates("http.main.rds.routes.config_reload", 2)
	ask("after RDS", "/", 200)
	ask("a route of its own", "/free", 200)
	lds(200_000)
	updates("listener_manager.listener_create_success", 2)
	await(t, "the new listener", func(context.Context) error {
		e.readPorts(t)
		_, err := e.try(t, "main", "/free")
		return err
	})
	ask("after LDS, the last one", "/", 200)
	ask("over the limit", "/", 403)
	ask("the route of its own", "/free", 200)
	ecds(moduleUser(rule, "no_such_setting: 1"))
	updates(ofFilter+"config_fail", 1)
	ask("after a bad configuration", "/", 403)
	e.Log.Find(t, "the reason", 0, func(line string) bool { return strings.Contains(line, "no_such_setting") })
	writeRules(t, rule, 0, perUser(1_000_000)) // denied requests count too
	await(t, "the new rules", func(context.Context) error {
		if code := e.get(t, "main", "/", "x-user", "ann").code; code != 200 {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
}

// The last request of a configuration that ECDS has replaced ends on its worker, and the engine with it. Other requests
// of this worker do not wait for a Redis that is silent.
func TestModuleEndsAnEngineOnAWorker(t *testing.T) {
	env := needsModule(t)
	redis := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "ecds.yaml")
	configure := func(settings string) { discoverModule(t, file, "discovered", settings) }
	lease := rules(t, leased)
	configure(moduleUser(lease, "redis_url: "+redis.Addr, "timeout: 10s", "failure_mode_deny: true"))
	u := startUpstream(t)
	e := startEnvoy(t, bootstrap{
		Env: env, Args: []string{"--component-log-level", "dynamic_modules:info"}, Clusters: []cluster{upstreamCluster(u)},
		Listeners: []listener{{Name: "main", Routes: allRoutes, Module: moduleUser(rules(t, perUser(1_000_000))), FiltersBefore: `
- name: discovered
  config_discovery:
    config_source: {path_config_source: {path: ` + file + `}, resource_api_version: V3}
    type_urls: [type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter]
`}},
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = e.outcome(t.Context(), "main", "/a/hold", "x-user", "ann")
	}()
	await(t, "the upstream to hold the request", func(context.Context) error {
		if u.held.Load() != 1 {
			return errors.New("it does not")
		}
		return nil
	})
	redis.Pause(t)
	defer redis.Continue(t)
	configure(moduleUser(lease))
	await(t, "the new configuration", func(context.Context) error {
		const stat = "extension_config_discovery.http_filter.discovered.config_reload"
		if n := e.stats(t, stat)[stat]; n != 2 {
			return fmt.Errorf("%d configurations", n)
		}
		return nil
	})
	u.release <- struct{}{}
	<-ended
	if code := e.get(t, "main", "/", "x-user", "ann").code; code != 200 {
		t.Errorf("status %d", code)
	}
	const end = "an engine ended"
	if len(e.Log.With(end)) > 0 {
		t.Error("the worker waited")
	}
	e.Log.Find(t, end, 0, func(line string) bool { return strings.Contains(line, end) })
}

// A hot restart: a second process takes over the listeners, and the first one ends. Until then both hold leases, so one
// may deny while the other has permits. Never more than the limit passes, and no request fails.
func TestModuleHotRestart(t *testing.T) {
	env := needsModule(t)
	redis := redistest.Start(t)
	servicetest.NotAtMidnight()
	const limit, users = 500, 4
	port, id := freePort(t), fmt.Sprint(os.Getpid()%30_000)
	b := bootstrap{
		Clusters: []cluster{upstreamCluster(startUpstream(t))},
		Listeners: []listener{{Name: "main", Routes: allRoutes, Module: moduleUser(
			rules(t, fmt.Sprintf("domain: e2e\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: %d, lease: true}}]", limit)),
			"redis_url: "+redis.Addr, "timeout: 10s", "failure_mode_deny: true")}},
	}
	text, err := os.ReadFile(b.write(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "envoy.yaml")
	const free = "name: main\n    address: {socket_address: {address: 127.0.0.1, port_value: 0}}"
	changed := strings.Replace(string(text), free, strings.Replace(free, "0}}", port+"}}", 1), 1)
	if err := os.WriteFile(config, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(epoch string) *envoy {
		return startEnvoyWith(t, "envoy "+epoch, config, env,
			[]string{"--restart-epoch", epoch, "--base-id", id, "--parent-shutdown-time-s", "1", "--drain-time-s", "1"})
	}
	first := start("0")
	before := storm(t, users, limit/2, first)
	during := make(chan []int)
	go func() { during <- storm(t, users, limit, first) }() // the port stays the same
	second := start("1")
	<-first.Ended
	after := storm(t, users, limit, second)
	for i, n := range <-during {
		if all := before[i] + n + after[i]; all > limit || all < limit*9/10 {
			t.Errorf("%d requests of user %d passed, want %d", all, i, limit)
		}
	}
}

// The example enforces the limits of its rules.
func TestModuleExample(t *testing.T) {
	env := needsModule(t)
	text, err := os.ReadFile("../../examples/envoy-module/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs("../../examples/envoy/rules")
	if err != nil {
		t.Fatal(err)
	}
	upstream := freePort(t)
	changed := strings.NewReplacer(
		"port_value: 10000}", "port_value: 0}", "port_value: 9901}", "port_value: 0}", "port_value: 10001}", "port_value: "+upstream+"}",
		"rules: examples/envoy/rules", "rules: "+rules).Replace(string(text))
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	e := startEnvoyWith(t, "envoy", file, env, nil)
	got := counts(e.codes(t, 20, "front", "/", "x-api-key", "k1"))
	if got[200] < 3 || got[200] > 6 || got[200]+got[429] != 20 { // a minute may end during the test
		t.Errorf("the answers are %v", got)
	}
	if n := e.stats(t, "ratelimitd")["ratelimitd.ratelimit.front.over_limit"]; n != got[429] {
		t.Errorf("%d denials are counted, and were %d", n, got[429])
	}
}
