package main

import (
	"net"
	"net/http"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// The admin port changes the log level at run time: from no refusals in the log to each refused caller.
func TestLogLevelAtRunTime(t *testing.T) {
	p := startProcess(t, map[string]string{"RATELIMITD_LOG_REFUSALS": "1000", "CACHE_KEY_PREFIX": "p:"}, "--rules", rulesOf(t, strings.ReplaceAll(fiveADay, ": 5", ": 0")))
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	refusedOf := func(value string) {
		t.Helper()
		got, err := client.ShouldRateLimit(t.Context(), ask("d", "k", value))
		if err != nil || got.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
			t.Fatalf("%v %v", got, err)
		}
	}
	set := func(level string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+p.Debug+"/loglevel?level="+level, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", level, resp.Status)
		}
	}
	set("warn")
	refusedOf("unseen")
	set("info")
	refusedOf("seen")

	line := p.Log.Wait(t, "request denied")
	for field, want := range map[string]any{"level": "info", "domain": "d", "entries": "k=seen", "rule": "d.k", "key": "p:d|k=seen|f86400", "wait": "forever"} {
		if line[field] != want {
			t.Errorf("%s is %v, want %v", field, line[field], want)
		}
	}
	for _, field := range []string{"@timestamp", "@message"} {
		if line[field] == nil {
			t.Errorf("there is no %s in %v", field, line)
		}
	}
	if strings.Contains(p.Log.String(), "unseen") {
		t.Errorf("logged below the level:\n%s", p.Log)
	}
}

// Operators connect on loopback, unless DEBUG_HOST gives another address or turns the port off.
func TestWhereOperatorsAre(t *testing.T) {
	rules := rulesOf(t, fiveADay)
	for host, env := range map[string]map[string]string{
		"127.0.0.1": nil,
		"::":        {"DEBUG_HOST": "0.0.0.0"}, // Go's name for all addresses
		"127.0.0.2": {"DEBUG_HOST": "127.0.0.2"},
		"":          {"RATELIMITD_NO_DEBUG": "true", "RATELIMITD_NO_ADMIN": "true"},
	} {
		p := startProcess(t, env, "--rules", rules)
		if host == "" {
			if p.Debug != "off" {
				t.Errorf("%v: it listens on %s", env, p.Debug)
			}
			continue
		}
		if got, _, err := net.SplitHostPort(p.Debug); err != nil || got != host {
			t.Errorf("%v: it listens on %s, want %s", env, p.Debug, host)
		}
		for _, page := range []string{"/rlconfig", "/stats", "/debug/pprof/", "/loglevel", "/debug/hotkeys"} {
			if code, _ := get(t, "http://"+p.Debug+page); code != http.StatusOK {
				t.Errorf("%s on the debug port: %d", page, code)
			}
			if code, _ := get(t, "http://"+p.HTTP+page); code != http.StatusNotFound {
				t.Errorf("%s on the port for all: %d", page, code)
			}
		}
	}
}

// At the start the log warns of an admin port that others can reach and that needs no credentials. A port that needs them
// gets no warning.
func TestUnguardedDebugPort(t *testing.T) {
	const warning = "anyone who can reach the admin port can read its pages"
	for name, c := range map[string]struct {
		env  map[string]string
		warn bool
	}{
		"on loopback":          {nil, false},
		"everywhere":           {map[string]string{"DEBUG_HOST": "0.0.0.0"}, true},
		"everywhere, unnamed":  {map[string]string{"DEBUG_HOST": ""}, true},
		"by name, on loopback": {map[string]string{"DEBUG_HOST": "localhost"}, false},
		"with a token":         {map[string]string{"DEBUG_HOST": "0.0.0.0", "RATELIMITD_ADMIN_TOKEN": adminToken}, false},
		"without it":           {map[string]string{"DEBUG_HOST": "0.0.0.0", "RATELIMITD_NO_DEBUG": "true", "RATELIMITD_NO_ADMIN": "true"}, false},
	} {
		i := begin(t, c.env, "--rules", rulesOf(t, fiveADay))
		if i.err != nil {
			t.Errorf("%s: %v", name, i.err)
			continue
		}
		if got := strings.Contains(i.log.String(), warning); got != c.warn {
			t.Errorf("%s: the log has the warning: %t, want %t", name, got, c.warn)
		}
	}
}

// Scrapers need no token: /metrics is not on the admin port.
func TestScrapersNeedNoToken(t *testing.T) {
	i := begin(t, map[string]string{"RATELIMITD_ADMIN_TOKEN": adminToken, "USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0"}, "--rules", rulesOf(t, fiveADay))
	if i.err != nil {
		t.Fatal(i.err)
	}
	for _, at := range []string{i.http(), "http://" + i.svc.Operators.MetricsAddr.String()} {
		if code, body := get(t, at+"/metrics"); code != http.StatusOK || !strings.Contains(body, "ratelimitd_rules 1") {
			t.Errorf("%s/metrics: %d", at, code)
		}
	}
	if code, _ := get(t, i.debug()+"/stats"); code != http.StatusUnauthorized {
		t.Errorf("/stats without the token: %d", code)
	}
}
