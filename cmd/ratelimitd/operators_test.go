package main

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

// The admin port changes the log level at run time: lines below the level are not logged.
func TestLogLevelAtRunTime(t *testing.T) {
	directory := rulesOf(t, fiveADay)
	p := startProcess(t, nil, "--rules", directory)
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
	// reload adds a file with a rule, and returns when the service has that many rules.
	reload := func(rules int) {
		t.Helper()
		name := fmt.Sprintf("domain%d", rules)
		write(t, directory, name+".yaml", strings.Replace(fiveADay, "domain: d", "domain: "+name, 1))
		eventually(t, "a reload", func() bool {
			return len(shown(t, "http://"+p.HTTP+"/metrics", fmt.Sprint("ratelimitd_rules ", rules))) > 0
		})
	}
	set("warn")
	reload(2)
	set("info")
	reload(3)
	all := p.Log.All(t, "active rules", 2)
	if len(all) != 2 || all[0]["rules"] != 1.0 || all[1]["rules"] != 3.0 {
		t.Errorf("lines of the start and of two reloads, the first below the level: %v", all)
	}
	for _, field := range []string{"@timestamp", "@message"} {
		if all[1][field] == nil {
			t.Errorf("there is no %s in %v", field, all[1])
		}
	}
}

// Operators connect on loopback, unless DEBUG_HOST gives another address.
func TestWhereOperatorsAre(t *testing.T) {
	rules := rulesOf(t, fiveADay)
	for host, env := range map[string]map[string]string{
		"127.0.0.1": nil,
		"::":        {"DEBUG_HOST": "0.0.0.0"}, // Go's name for all addresses
		"127.0.0.2": {"DEBUG_HOST": "127.0.0.2"},
	} {
		p := startProcess(t, env, "--rules", rules)
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

// At the start the log warns of an admin port that others can reach and that needs no credentials. A port with
// credentials causes no warning.
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
