package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const fiveADay = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 5}\n"

func TestStartSaysWhatIsServed(t *testing.T) {
	p := startProcess(t, nil, "--rules", rulesOf(t, fiveADay, strings.ReplaceAll(fiveADay, "domain: d", "domain: e")))
	if line := p.Log.Wait(t, "active rules"); line["domains"] != 2.0 || line["rules"] != 2.0 || line["files"] != 2.0 {
		t.Errorf("logged %v, want 2 domains, 2 rules, 2 files", line)
	}
	if line := p.Log.Wait(t, "rule file loaded"); line["file"] != "rules0.yaml" {
		t.Errorf("logged %v, want the files by name", line)
	}
	if code, body := get(t, "http://"+p.HTTP+"/healthcheck"); code != http.StatusOK || body != "OK" {
		t.Errorf("/healthcheck: %d %q", code, body)
	}
}

// The log of a start fits on a screen, however many rule files there are. The first command of README.md serves five.
func TestStartIsShort(t *testing.T) {
	many := make([]string, 50)
	for i := range many {
		many[i] = strings.ReplaceAll(fiveADay, "domain: d", fmt.Sprintf("domain: d%d", i))
	}
	for directory, files := range map[string]float64{"../../config/domains": 5, rulesOf(t, many...): 50} {
		p := startProcess(t, nil, "--rules", directory)
		if line := p.Log.Wait(t, "active rules"); line["files"] != files {
			t.Errorf("%s: logged %v, want %v files", directory, line, files)
		}
		if log := p.Log.String(); strings.Count(log, "\n") > 10 {
			t.Errorf("%s: more than ten lines:\n%s", directory, log)
		}
	}
}

// The requests that README.md shows first get the status codes that it shows.
func TestReadmeRequests(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?s) localhost:8080/json -d '(.+?)'; done\n((?:\d+\n)+)`).FindSubmatch(readme)
	if shown == nil {
		t.Fatal("README.md shows no requests with their status codes")
	}
	p := startProcess(t, nil, "--rules", "../../config/domains")
	for i, want := range strings.Fields(string(shown[2])) {
		// curl -d sends it like this
		response, err := http.Post("http://"+p.HTTP+"/json", "application/x-www-form-urlencoded", bytes.NewReader(shown[1]))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if got := strconv.Itoa(response.StatusCode); got != want {
			t.Errorf("request %d: %s, README.md shows %s", i+1, got, want)
		}
	}
}

// The service rejects settings that cannot work: it exits immediately with an error that names the remedy.
func TestDoesNotStart(t *testing.T) {
	racetest.Sequential(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	good := rulesOf(t, fiveADay)

	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want []string
	}{
		"redis without a url": {map[string]string{"BACKEND_TYPE": "redis"}, []string{"--rules", good}, []string{"BACKEND_TYPE=redis needs REDIS_URL"}},
		"memcached":           {map[string]string{"BACKEND_TYPE": "memcache"}, []string{"--rules", good}, []string{"BACKEND_TYPE=memcache", "use redis"}},
		"another backend":     {map[string]string{"BACKEND_TYPE": "disk"}, []string{"--rules", good}, []string{"BACKEND_TYPE=disk", "memory or redis"}},
		"another source":      {map[string]string{"CONFIG_TYPE": "XDS"}, []string{"--rules", good}, []string{`CONFIG_TYPE="XDS"`, "FILE", "GRPC_XDS_SOTW"}},
		"no xDS certificate":  {map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT": "/none"}, nil, []string{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "/none"}},
		"xDS headers":         {map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "a=b"}, nil, []string{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: item 1", "key:value"}},
		"xDS over HTTP":       {map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": "http://a:1"}, nil, []string{"http://a:1", "host:port"}},
		"a log level":         {map[string]string{"LOG_LEVEL": "loud"}, []string{"--rules", good}, []string{"LOG_LEVEL=loud", "debug, info, warn or error"}},
		"a port":              {map[string]string{"GRPC_PORT": "high"}, []string{"--rules", good}, []string{"--grpc-port", "GRPC_PORT"}},
		"a flag":              {nil, []string{"--rulez", good}, []string{"--rulez"}},
		"a taken port":        {map[string]string{"PORT": port, "HOST": "127.0.0.1", "GRPC_PORT": "0", "DEBUG_PORT": "0"}, []string{"--rules", good}, []string{"listen for HTTP", port}},
		"no directory":        {nil, []string{"--rules", filepath.Join(good, "none")}, []string{"none", "FORCE_START_WITHOUT_INITIAL_CONFIG"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, text := output(t, c.env, c.args...)
			if code == 0 {
				t.Fatalf("it started and ended well:\n%s", text)
			}
			for _, want := range c.want {
				if !strings.Contains(text, want) {
					t.Errorf("it does not say %q:\n%s", want, text)
				}
			}
		})
	}
}

// A directory without a good file gives a start with red health. It turns green with the first good file. Until then no
// request is decided.
func TestStartsWithoutAGoodFile(t *testing.T) {
	bad := strings.ReplaceAll(fiveADay, "rate_limit", "ratelimit")
	for name, c := range map[string]struct {
		files, said []string
	}{
		"an empty directory": {nil, []string{"there is no rule file"}},
		"only bad files":     {[]string{bad}, []string{"no rule file can be used", "rules0.yaml:4:5", "did you mean `rate_limit`"}},
	} {
		t.Run(name, func(t *testing.T) {
			rules := rulesOf(t, c.files...)
			p := startProcess(t, nil, "--rules", rules)
			p.Log.Wait(t, "no rules are active: requests are answered with UNAVAILABLE until there are some")
			for _, want := range c.said {
				if !strings.Contains(p.Log.String(), want) {
					t.Errorf("it does not say %q:\n%s", want, p.Log)
				}
			}
			client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
			red := func() {
				t.Helper()
				if code, body := get(t, "http://"+p.HTTP+"/healthcheck"); code != http.StatusInternalServerError || body != "not ready: "+service.NoRules {
					t.Errorf("/healthcheck: %d %q", code, body)
				}
				if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); status.Code(err) != codes.Unavailable {
					t.Errorf("a request: %v", err)
				}
			}
			red()
			write(t, rules, "worse.yaml", "domian: d\n") // a reload with more errors changes nothing
			eventually(t, "the state of the bad file", func() bool {
				_, body := get(t, "http://"+p.Debug+"/rlconfig")
				return strings.Contains(body, "worse.yaml: rejected")
			})
			red()
			write(t, rules, "good.yaml", fiveADay)
			eventually(t, "green health", func() bool { code, _ := get(t, "http://"+p.HTTP+"/healthcheck"); return code == http.StatusOK })
			if got, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil || got.GetStatuses()[0].GetLimitRemaining() != 4 {
				t.Errorf("after rules came: %v %v", got, err)
			}
		})
	}
}

// When the last file is removed, its rules stay active and health stays green. The log and metrics show it.
func TestTheLastRuleFileIsRemoved(t *testing.T) {
	rules := rulesOf(t, fiveADay)
	p := startProcess(t, nil, "--rules", rules)
	if err := os.Remove(filepath.Join(rules, "rules0.yaml")); err != nil {
		t.Fatal(err)
	}
	p.Log.Wait(t, "reload ignored: it would remove every rule; keeping the active rules")
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	if got, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil || got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() != 5 {
		t.Errorf("without the file: %v %v", got, err)
	}
	if code, _ := get(t, "http://"+p.HTTP+"/healthcheck"); code != http.StatusOK {
		t.Errorf("/healthcheck: %d", code)
	}
	if _, body := get(t, "http://"+p.HTTP+"/metrics"); !strings.Contains(body, `ratelimitd_rules_gone{rules="kept"} 1`) || !strings.Contains(body, "ratelimitd_rules 1\n") {
		t.Error("the metrics do not show it")
	}
	// it is shown when the reload is over, after it is logged
	redistest.Eventually(t, "the file's state", func(context.Context) error {
		if _, body := get(t, "http://"+p.Debug+"/rlconfig"); !strings.Contains(body, "rules0.yaml: stale") {
			return fmt.Errorf("/rlconfig:\n%s", body)
		}
		return nil
	})
}

func TestForceStartWithoutRules(t *testing.T) {
	rules := t.TempDir()
	p := startProcess(t, map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}, "--rules", rules)
	write(t, rules, "late.yaml", fiveADay)
	p.Log.Wait(t, "active rules")
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	got, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v"))
	if err != nil || got.GetStatuses()[0].GetLimitRemaining() != 4 {
		t.Errorf("after rules came: %v %v", got, err)
	}
}

// The rule directory is RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, as in envoyproxy/ratelimit. A flag
// overrides the environment.
func TestWhereRulesAre(t *testing.T) {
	root := t.TempDir()
	write(t, root, "ratelimit/config/rules.yaml", fiveADay)
	env := map[string]string{"RUNTIME_ROOT": root, "RUNTIME_SUBDIRECTORY": "ratelimit", "RUNTIME_IGNOREDOTFILES": "true", "RUNTIME_WATCH_ROOT": "false"}
	write(t, root, "ratelimit/config.yaml", strings.ReplaceAll(fiveADay, "domain: d", "domain: beside"))
	p := startProcess(t, env)
	if line := p.Log.Wait(t, "files next to the rule directory are not read, unlike in envoyproxy/ratelimit"); !strings.Contains(fmt.Sprint(line["files"]), filepath.Join(root, "ratelimit", "config.yaml")) {
		t.Errorf("logged %v", line)
	}
	if line := p.Log.Wait(t, "active rules"); line["directory"] != filepath.Join(root, "ratelimit", "config") || line["rules"] != 1.0 {
		t.Errorf("logged %v", line)
	}
	other := rulesOf(t, fiveADay)
	p = startProcess(t, env, "--rules", other)
	if line := p.Log.Wait(t, "active rules"); line["directory"] != other {
		t.Errorf("logged %v, want the flag's directory", line)
	}
}

// A change of a file changes decisions. A bad change changes nothing, and the log names the place of the mistake.
func TestReload(t *testing.T) {
	rules := rulesOf(t, fiveADay)
	p := startProcess(t, nil, "--rules", rules)
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	limit := func() uint32 {
		got, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v"))
		if err != nil {
			t.Fatal(err)
		}
		return got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit()
	}
	eventually := func(what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !reached(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s did not come about within %s", what, patience)
			}
		}
	}
	if got := limit(); got != 5 {
		t.Fatalf("limit %d, want 5", got)
	}
	write(t, rules, "rules0.yaml", strings.ReplaceAll(fiveADay, ": 5", ": 7"))
	eventually("the new limit", func() bool { return limit() == 7 })

	write(t, rules, "rules0.yaml", strings.ReplaceAll(fiveADay, "unit: day", "unit: daily"))
	rlconfig := func() string { _, body := get(t, "http://"+p.Debug+"/rlconfig"); return body }
	eventually("the file's state", func() bool { return strings.Contains(rlconfig(), "rules0.yaml: stale") })
	if body := rlconfig(); !strings.Contains(body, "rules0.yaml:4:24") || limit() != 7 {
		t.Errorf("after a bad change the limit is %d and /rlconfig says:\n%s", limit(), body)
	}
}

// After SIGTERM and SIGHUP a call in flight finishes and the exit code is 0. Health is red until then.
func TestStopsOnSignals(t *testing.T) {
	// A process inherits which signals are ignored, but not which are handled. So under nohup, which ignores SIGHUP, the
	// service would ignore it too, unless this process handles it.
	if signal.Ignored(syscall.SIGHUP) {
		handled := make(chan os.Signal, 1)
		signal.Notify(handled, syscall.SIGHUP)
		t.Cleanup(func() { signal.Stop(handled) })
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			testStopsOn(t, s)
		})
	}
}

func testStopsOn(t *testing.T, s syscall.Signal) {
	quick := startProcess(t, nil, "--rules", rulesOf(t, fiveADay))
	quick.Signal(t, s)
	select {
	case <-quick.Ended:
		if quick.Err != nil || !strings.Contains(quick.Log.String(), s.String()+" signal received") {
			t.Errorf("it ended with %v and said:\n%s", quick.Err, quick.Log)
		}
	case <-time.After(patience):
		t.Errorf("it did not end within %v", patience)
	}

	p := startProcess(t, map[string]string{"RATELIMITD_DRAIN_DELAY": "30s"}, "--rules", rulesOf(t, fiveADay))
	p.Signal(t, s)
	p.Log.Wait(t, "draining: health is red, calls are still answered")
	if s != syscall.SIGINT { // a service manager may send its signal again
		p.Signal(t, s)
	}
	if code, body := get(t, "http://"+p.HTTP+"/readyz"); code != http.StatusServiceUnavailable || body != "not ready: stopping" {
		t.Errorf("/readyz while draining: %d %q, want 503", code, body)
	}
	if code, _ := get(t, "http://"+p.HTTP+"/livez"); code != http.StatusOK {
		t.Errorf("/livez while draining: %d, want 200", code)
	}
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
	if _, err := client.ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil {
		t.Errorf("a call while draining: %v", err)
	}
	if s != syscall.SIGINT {
		p.Kill(t) // it would drain for 30 s
		return
	}
	p.Signal(t, s) // a second Ctrl-C ends it immediately
	select {
	case <-p.Ended:
	case <-time.After(patience):
		t.Errorf("it did not end within %v", patience)
	}
	p.Err = nil // the signal: this test asked for it
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Without --rules the service uses envoyproxy/ratelimit's directory, even when only a part of its path is set. It never
// loads the example rules in the working directory by default.
func TestExamplesAreNotServedUnasked(t *testing.T) {
	examples := t.TempDir()
	write(t, examples, "config/domains/example.yaml", fiveADay)
	for name, c := range map[string]struct {
		env  map[string]string
		want string
	}{
		"nothing set":          {nil, "/srv/runtime_data/current/config"},
		"an empty root":        {map[string]string{"RUNTIME_ROOT": ""}, "/srv/runtime_data/current/config"},
		"only a subdirectory":  {map[string]string{"RUNTIME_SUBDIRECTORY": "no-such-rules"}, "/srv/runtime_data/current/no-such-rules/config"},
		"only an appdirectory": {map[string]string{"RUNTIME_APPDIRECTORY": "no-such-rules"}, "/srv/runtime_data/current/no-such-rules"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, c.env)
			cmd.Dir = examples
			out, code := untilEnd(t, cmd)
			if code == 0 {
				t.Fatalf("it started without rules:\n%s", out)
			}
			_, out, _ = strings.Cut(out, "\n") // the build
			first, rest, _ := strings.Cut(out, "\n")
			if !strings.Contains(first, `"serving rules from a directory"`) || !strings.Contains(first, `"directory":"`+c.want+`"`) {
				t.Errorf("the second line of the log is %s", first)
			}
			if !strings.Contains(rest, "load rules from "+c.want+":") || !strings.Contains(rest, "--rules, RUNTIME_ROOT") || strings.Contains(rest, "example") {
				t.Errorf("it says\n%s", rest)
			}
		})
	}
}
