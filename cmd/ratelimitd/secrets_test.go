package main

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// secret is in every setting below that may contain a secret.
const secret = "hunter2hunter2hunter2"

// The error of a failed start gives the reason and no password.
func TestFailedStartsKeepSecrets(t *testing.T) {
	racetest.Sequential(t)
	rules := rulesOf(t, fiveADay)
	const redisURL, otherURL, headers = "REDIS_URL", "REDIS_PERSECOND_URL", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS"
	xds := func(name, value string) map[string]string {
		return map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", name: value}
	}
	for name, env := range map[string]map[string]string{
		"no scheme":         {redisURL: "u:" + secret + "@127.0.0.1:1"},
		"another scheme":    {redisURL: "http://u:" + secret + "@127.0.0.1:1"},
		"a broken URL":      {redisURL: "redis://u:" + secret + "%zz@127.0.0.1:1"},
		"no port":           {redisURL: "redis://u:" + secret},
		"no database":       {redisURL: "redis://u:" + secret + "@127.0.0.1:1/" + secret},
		"a socket":          {redisURL: "u:" + secret + "@/run/redis.sock", "REDIS_SOCKET_TYPE": "unix"},
		"a cluster":         {redisURL: "redis://u:" + secret + "@127.0.0.1:1", "REDIS_TYPE": "CLUSTER", "REDIS_STARTUP_INITIAL_INTERVAL": "10ms", "REDIS_STARTUP_MAX_ELAPSED_TIME": "50ms"},
		"sentinels":         {redisURL: "name,u:" + secret + "@127.0.0.1:1", "REDIS_TYPE": "SENTINEL", "REDIS_SENTINEL_AUTH": secret},
		"the other Redis":   {redisURL: "127.0.0.1:1", "REDIS_PERSECOND": "true", otherURL: "u:" + secret + "@127.0.0.1:1"},
		"a header":          xds(headers, "authorization=Bearer "+secret),
		"a broken header":   xds(headers, "authorization:Bearer "+secret+"\x01"),
		"half a header":     xds(headers, "a:b,"+secret),
		"an xDS server":     xds("CONFIG_GRPC_XDS_SERVER_URL", "u:"+secret+"@127.0.0.1:1"),
		"an xDS server URL": xds("CONFIG_GRPC_XDS_SERVER_URL", "https://u:"+secret+"@127.0.0.1:1"),
		"a token":           {"RATELIMITD_ADMIN_TOKEN": secret + " " + secret},
		"another variable":  {"RATELIMITD_ADMIN_TOKEM": secret},
		"a webhook":         {"RATELIMITD_EVENTS": "ftp://u:" + secret + "@h/"},
		"a broken webhook":  {"RATELIMITD_EVENTS": "https://u:" + secret + "@h/%zz"},
		"another flag":      {"REDIS_AUTH": secret, "RATELIMITD_ADMIN_TOKEN": secret, "LOG_LEVEL": "loud"},
		"a wrong password":  {"REDIS_AUTH": secret, redisURL: redistest.Start(t, "--requirepass", "another").Addr, "REDIS_STARTUP_INITIAL_INTERVAL": "10ms", "REDIS_STARTUP_MAX_ELAPSED_TIME": "50ms"},
		"nobody there":      {redisURL: "redis://u:" + secret + "@127.0.0.1:1", "REDIS_STARTUP_INITIAL_INTERVAL": "10ms", "REDIS_STARTUP_MAX_ELAPSED_TIME": "50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{"GRPC_PORT": "0", "PORT": "0", "DEBUG_PORT": "0"}
			maps.Copy(all, env)
			for _, level := range []string{"info", "debug"} {
				if all["LOG_LEVEL"] != "loud" {
					all["LOG_LEVEL"] = level
				}
				code, text := output(t, all, "--rules", rules)
				if code == 0 {
					t.Errorf("it started and ended well:\n%s", text)
				}
				if strings.Contains(text, "hunter2") {
					t.Errorf("the output has a secret:\n%s", text)
				}
			}
		})
	}
	code, help := output(t, map[string]string{"REDIS_AUTH": secret, "REDIS_URL": "redis://:" + secret + "@h:1", "RATELIMITD_ADMIN_TOKEN": secret}, "serve", "--help")
	if code != 0 || !strings.Contains(help, "REDIS_AUTH") || strings.Contains(help, secret) {
		t.Errorf("--help: %d\n%s", code, help)
	}
}

// A running service never shows a password: not in its log, pages or answers. This holds whether Redis accepts its
// login or not, and also for failed requests.
func TestSecretsAreNotShown(t *testing.T) {
	racetest.Sequential(t)
	known, unknown := redistest.Start(t, "--requirepass", secret), redistest.Start(t, "--requirepass", "another")
	g := newGateway(t, "default")
	g.set("1", perDay("d", 2))
	for name, env := range map[string]map[string]string{
		"let in":         {"REDIS_URL": known.Addr, "REDIS_AUTH": secret},
		"let in by URL":  {"REDIS_URL": "redis://default:" + secret + "@" + known.Addr},
		"wrong":          {"REDIS_URL": unknown.Addr, "REDIS_AUTH": secret},
		"wrong by URL":   {"REDIS_URL": "redis://:" + secret + "@" + unknown.Addr},
		"nobody there":   {"REDIS_URL": "redis://:" + secret + "@127.0.0.1:1"},
		"sentinels gone": {"REDIS_TYPE": "SENTINEL", "REDIS_URL": "name,127.0.0.1:1", "REDIS_AUTH": secret, "REDIS_SENTINEL_AUTH": secret},
		"no TLS there":   {"REDIS_URL": "rediss://:" + secret + "@" + known.Addr},
	} {
		t.Run(name, func(t *testing.T) {
			all := map[string]string{
				"LOG_LEVEL": "debug", "RATELIMITD_EVENTS": "stdout", "RATELIMITD_ADMIN_TOKEN": secret, "REDIS_OP_TIMEOUT": "2s",
				"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": g.addr, "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS": "authorization:Bearer " + secret,
				"TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:" + secret + "@127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=" + secret + "," + secret,
				"OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_TIMEOUT": "500",
			}
			maps.Copy(all, env)
			p := startProcess(t, all, "--redis-persecond-auth", secret)
			p.Log.Wait(t, "active rules")
			outputs := map[string]string{}
			client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC))
			for range 4 {
				if _, err := client.ShouldRateLimit(t.Context(), askRoute("d", "10.0.0.1")); err != nil {
					outputs["a gRPC error"] = err.Error()
				}
			}
			body := `{"domain":"d","descriptors":[{"entries":[{"key":"httproute/default/shop/rule/0/match/0/*","value":"httproute/default/shop/rule/0/match/0/*"},{"key":"rule-0-match-0","value":"rule-0-match-0"},{"key":"remote_address","value":"1"}]}]}`
			resp, err := http.Post("http://"+p.HTTP+"/json", "application/json", strings.NewReader(body)) //nolint:noctx // the test's own server
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			for _, page := range []string{
				"/", "/rlconfig", "/stats", "/loglevel", "/debug/hotkeys", "/debug/hotkeys?format=json", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2",
				"/debug/pprof/heap?debug=1", "/debug/vars",
			} {
				_, outputs[page] = get(t, "http://"+p.Debug+page)
			}
			_, outputs["/metrics"] = get(t, "http://"+p.HTTP+"/metrics")
			p.Stop(t)
			outputs["the log"] = p.Log.String()
			for where, text := range outputs {
				if strings.Contains(text, "hunter2") {
					t.Errorf("a secret is in %s:\n%s", where, text)
				}
			}
		})
	}
}
