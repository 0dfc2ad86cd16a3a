package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// fails marks a value with which the service does not start.
const fails = "fails"

// oddValues maps variables of envoyproxy/ratelimit to unusual values, each with the value that the service uses. The
// log reports every value that is adjusted. envoyproxy/ratelimit accepts all of these values except the values marked
// fails.
var oddValues = map[string]map[string]string{
	"PORT":      {"0x1F90": "8080", "017620": "8080", "0b11": "3", "8_080": "8080", "+80": "80", "08": fails, " 80": fails, "8080.0": fails, "-1": fails, "65536": fails},
	"GRPC_PORT": {"0x1F91": "8081", "1e3": fails, "99999999999999999999": fails},

	// not a valid port: the pages are off
	"DEBUG_PORT":                    {"0x17B6": "6070", "70000": "70000", "-1": "-1"},
	"GRPC_MAX_CONNECTION_AGE":       {"0": "0s", "-1s": "0s", "1ns": "1ms", "1h30m": "1h30m0s", "5": fails, "1d": fails, " 5s": fails},
	"GRPC_MAX_CONNECTION_AGE_GRACE": {"0": "0s", "-1s": "-1s", ".5s": "500ms"},

	// the minimum is 512 KiB
	"LOCAL_CACHE_SIZE_IN_BYTES":     {"0x1000": "4096", "1_000": "1000", "-1": "-1", "1e6": fails},
	"EXPIRATION_JITTER_MAX_SECONDS": {"0x10": "16", "-1": "0", "99999999999": "31536000"},
	"NEAR_LIMIT_RATIO":              {"1.2": "1", "-1": "0", "NaN": "0.8", "Inf": "1", "0x1p-2": "0.25", "1e400": fails, " 0.5": fails},
	"LOG_FORMAT":                    {"plain": "text", "JSON": "json"},
	"LIMIT_LIMIT_HEADER":            {"X A": "RateLimit-Limit", "X-A": "X-A"},
	"LIMIT_REMAINING_HEADER":        {"X:A": "RateLimit-Remaining"},
	"LIMIT_RESET_HEADER":            {"é": "RateLimit-Reset"},

	"REDIS_TIMEOUT":                {"0": "10s", "-1s": "10s", "1us": "1ms"},
	"REDIS_POOL_SIZE":              {"0": "4", "0x10": "16", "999999": "100000"},
	"REDIS_POOL_ON_EMPTY_BEHAVIOR": {"wait": "WAIT", "foo": "WAIT"},
	// udp: envoyproxy/ratelimit waits forever
	"REDIS_SOCKET_TYPE":           {"tcp4": "tcp4", "tcp6": "tcp6", "TCP": "tcp", "udp": fails},
	"REDIS_PERSECOND_TIMEOUT":     {"0": "10s"},
	"REDIS_PERSECOND_POOL_SIZE":   {"0": "4"},
	"REDIS_PERSECOND_SOCKET_TYPE": {"tcp4": "tcp4"},
	"REDIS_PIPELINE_LIMIT":        {"0x10": "16", "-1": "-1"},

	"REDIS_STARTUP_INITIAL_INTERVAL": {"0": "100ms", "-1s": "100ms", "1ns": "1ms", "1h30m": "1h30m0s"},
	"REDIS_STARTUP_MAX_INTERVAL":     {"0": "10s", "-1s": "10s", "500ms": "500ms"},
	"REDIS_STARTUP_MAX_ELAPSED_TIME": {"-1s": "0s"},

	"STATSD_PORT":           {"0": "0", "-1": "0", "9999999999": "65535"},
	"STATS_FLUSH_INTERVAL":  {"1us": "1ms", "0s": fails, "-1s": fails},
	"TRACING_SAMPLING_RATE": {"7": "1", "-1": "0", "NaN": "1"},
	"PROMETHEUS_PATH":       {"/{x}": "/metrics", "metrics": "/metrics", "/m": "/m"},

	"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL":           {"0": "100ms", "-1s": "100ms"},
	"XDS_CLIENT_BACKOFF_MAX_INTERVAL":               {"0": "10s", "-1s": "10s"},
	"XDS_CLIENT_BACKOFF_RANDOM_FACTOR":              {"5": "1", "-1": "0", "NaN": "0.5"},
	"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES":              {"-1": "0", "0x1000": "4096"},
	"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL": {"-1s": "0s"},

	// Invalid values of the service's own variables are rejected.
	"RATELIMITD_MAX_CALLS":    {"0": fails, "0x10": "16"},
	"RATELIMITD_STOP_TIMEOUT": {"0s": fails},
}

func TestOddValues(t *testing.T) {
	racetest.Sequential(t)
	for name, values := range oddValues {
		for value, want := range values {
			var c cli
			var got string
			inEnvironment(map[string]string{name: value}, func() {
				parser, err := newParser(&c)
				if err == nil {
					_, err = parser.Parse([]string{"serve"})
				}
				if err != nil {
					got = fails
					if !strings.Contains(err.Error(), name) {
						t.Errorf("%s=%q: the error does not name the variable: %v", name, value, err)
					}
					return
				}
				target := flagsByVariable(parser.Model)[name].Target
				for target.Kind() == reflect.Pointer {
					target = target.Elem()
				}
				got = fmt.Sprint(target.Interface())
			})
			if got != want {
				t.Errorf("%s=%q is %s, want %s", name, value, got, want)
			}
			if adjustment, adjusted := c.Serve.Adjusted.inForce()[name]; got == want && got != fails && adjusted != adjustedFrom(value, want) {
				t.Errorf("%s=%q is %s, and it is noted: %t %v", name, value, got, adjusted, adjustment)
			}
		}
	}
}

// adjustedFrom reports whether the service uses a different value from the one given.
func adjustedFrom(value, want string) bool {
	if given, err := time.ParseDuration(value); err == nil && value != "0" {
		used, err := time.ParseDuration(want)
		return err != nil || given != used
	}
	switch value {
	case "0":
		return want != "0" && want != "0s"
	case "1.2", "-1", "NaN", "Inf", "99999999999", "999999", "9999999999", "7", "5", "/{x}", "metrics", "plain", "foo", "X A", "X:A", "é":
		return value != want
	}
	return false
}

// The log has one line for each adjusted value, unless a flag overrides the variable.
func TestAdjustedValuesAreLogged(t *testing.T) {
	env := map[string]string{"REDIS_TIMEOUT": "0", "NEAR_LIMIT_RATIO": "1.2", "TRACING_SAMPLING_RATE": "7"}
	i := begin(t, env, "--rules", rulesOf(t, fiveADay), "--tracing-sampling-rate", "0.5")
	if i.err != nil {
		t.Fatal(i.failed())
	}
	var lines []string
	for line := range strings.Lines(i.log.String()) {
		if strings.Contains(line, "does not accept") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], `"variable":"NEAR_LIMIT_RATIO","given":"1.2","used":"1"`) || !strings.Contains(lines[1], `"variable":"REDIS_TIMEOUT","given":"0s","used":"10s"`) {
		t.Errorf("it says %q", lines)
	}
}

// envoyproxy/ratelimit starts with these faulty settings. This service starts too, and its log names the part that it
// ignores.
func TestStartsWithFaultySettings(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "bad.yaml", "mappings: [{match: a.b, nome: c}]")
	r := redistest.Start(t)
	for name, c := range map[string]struct {
		env  map[string]string
		says string
	}{
		"an admin port that is none":    {map[string]string{"DEBUG_PORT": "70000"}, "runs without it"},
		"a debug host that is unknown":  {map[string]string{"DEBUG_HOST": "no host"}, "runs without it"},
		"an address of Prometheus":      {map[string]string{"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "9090"}, "runs without it"},
		"a mapping":                     {map[string]string{"PROMETHEUS_MAPPER_YAML": filepath.Join(dir, "bad.yaml")}, "nome"},
		"a mapping that is a directory": {map[string]string{"PROMETHEUS_MAPPER_YAML": dir}, "is a directory"},
		"a tag without a value":         {map[string]string{"EXTRA_TAGS": "env:prod,zone:"}, `"variable":"EXTRA_TAGS","part":"zone:"`},
		"metadata without a value":      {map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": "127.0.0.1:1", "CONFIG_GRPC_XDS_NODE_METADATA": "a=b,c"}, `"part":"c"`},
		"a longest wait that is short":  {map[string]string{"REDIS_URL": r.Addr, "REDIS_STARTUP_MAX_INTERVAL": "500ms"}, "counting in Redis"},
		"TCP over IPv4":                 {map[string]string{"REDIS_URL": r.Addr, "REDIS_SOCKET_TYPE": "tcp4"}, "counting in Redis"},
		"a cluster on a socket":         {map[string]string{"REDIS_TYPE": "CLUSTER", "REDIS_URL": r.Addr, "REDIS_SOCKET_TYPE": "unix", "RATELIMITD_REDIS_STARTUP_SERVE": "true"}, "counting in Redis"},
		"a tiny cache":                  {map[string]string{"LOCAL_CACHE_SIZE_IN_BYTES": "0x1000"}, "listening"},
	} {
		t.Run(name, func(t *testing.T) {
			i := begin(t, c.env, "--rules", rulesOf(t, fiveADay))
			if i.err != nil {
				t.Fatal(i.failed())
			}
			if !strings.Contains(i.log.String(), c.says) {
				t.Errorf("the log does not say %q", c.says)
			}
			if c.env["CONFIG_TYPE"] != "" {
				return // no rules are loaded
			}
			eventually(t, "health", func() bool { code, _ := get(t, i.http()+"/healthcheck"); return code == http.StatusOK })
		})
	}
}
