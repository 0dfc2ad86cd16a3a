package main

import (
	"strings"
	"testing"
)

func TestUnknownVariable(t *testing.T) {
	for _, c := range []struct{ name, says string }{
		{"RATELIMITD_ONERROR", "unknown variable RATELIMITD_ONERROR in the environment: did you mean RATELIMITD_ON_ERROR?"},
		{"RATELIMITD_COLOUR_OF_THE_SKY", "unknown variable RATELIMITD_COLOUR_OF_THE_SKY in the environment: `ratelimitd serve --help` lists those there are"},
	} {
		code, said := output(t, map[string]string{c.name: "1"}, "--rules", "../../config/domains")
		if code != 2 || !strings.Contains(said, c.says) {
			t.Errorf("%s: exit code %d, %q; want 2 and %q", c.name, code, said, c.says)
		}
	}
	// What Kubernetes sets by itself for a Service named ratelimitd, or ratelimitd-canary, is nobody's mistake.
	code, said := output(t, map[string]string{
		"RATELIMITD_SERVICE_HOST": "10.0.0.1", "RATELIMITD_SERVICE_PORT": "8081", "RATELIMITD_SERVICE_PORT_GRPC": "8081",
		"RATELIMITD_PORT": "tcp://10.0.0.1:8081", "RATELIMITD_PORT_8081_TCP": "tcp://10.0.0.1:8081", "RATELIMITD_PORT_8081_TCP_ADDR": "10.0.0.1",
		"RATELIMITD_CANARY_SERVICE_HOST": "10.0.0.2", "RATELIMITD_CANARY_PORT_8081_TCP_PROTO": "tcp",
	}, "version")
	if code != 0 {
		t.Errorf("with a Service's variables: exit code %d: %s", code, said)
	}
}

func TestInvalidVariable(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"GRPC_PORT", "http", "GRPC_PORT"},
		{"SHADOW_MODE", "perhaps", `must be true or false, this is "perhaps"`},
		{"RATELIMITD_ON_ERROR", "panic", "--on-error: must be `error`, `allow`, `deny` or `local`, this is \"panic\" (from envar RATELIMITD_ON_ERROR"},
		{"REDIS_TIMEOUT", "10", "REDIS_TIMEOUT"},
		{"NEAR_LIMIT_RATIO", "most", "NEAR_LIMIT_RATIO"},
		{"RATELIMITD_RESPONSE_HEADERS", "x-headers", "must be `ratelimit`, `x-ratelimit`, `ietf` or `retry-after`, this is \"x-headers\""},
		{"CONFIG_TYPE", "CONSUL", "FILE"},
		{"BACKEND_TYPE", "memcache", "memcached"},
	} {
		code, said := output(t, map[string]string{c.name: c.value}, "--rules", "../../config/domains")
		if code == 0 || !strings.Contains(said, c.says) {
			t.Errorf("%s=%s: exit code %d, %q; want an error with %q", c.name, c.value, code, said, c.says)
		}
	}
}

// TestFlagsAsTheReference writes true and false as its environment may.
func TestFlagsAsTheReference(t *testing.T) {
	for value, shadowed := range map[string]bool{
		"1": true, "t": true, "T": true, "TRUE": true, "true": true, "True": true, "yes": true,
		"0": false, "f": false, "F": false, "FALSE": false, "false": false, "False": false, "no": false, "": false,
	} {
		t.Setenv("SHADOW_MODE", value)
		if got := parsed(t).Answers.Shadow; got != shadowed {
			t.Errorf("SHADOW_MODE=%s is %t", value, got)
		}
	}
}

// TestEmptyVariable takes what a manifest leaves empty for its default.
func TestEmptyVariable(t *testing.T) {
	want := parsed(t)
	for _, name := range []string{"GRPC_PORT", "REDIS_TIMEOUT", "NEAR_LIMIT_RATIO", "SHADOW_MODE", "REDIS_POOL_SIZE"} {
		t.Setenv(name, "")
	}
	got := parsed(t)
	if got.Listen.GRPCPort != want.Listen.GRPCPort || got.Answers.NearRatio != want.Answers.NearRatio || got.Answers.Shadow {
		t.Errorf("empty variables change what is unset: %+v", got)
	}
}

// parsed is what serve makes of the environment as it is.
func parsed(t *testing.T) *serve {
	t.Helper()
	var c cli
	parser, err := newParser(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"serve"}); err != nil {
		t.Fatal(err)
	}
	return &c.Serve
}
