package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

func TestUnknownVariable(t *testing.T) {
	for _, c := range []struct{ name, says string }{
		{"RATELIMITD_ONERROR", "unknown variable RATELIMITD_ONERROR in the environment: did you mean RATELIMITD_ON_ERROR?"},
		{"RATELIMITD_HEADER", "unknown variable RATELIMITD_HEADER in the environment: `ratelimitd help settings` lists all variables"},
		{"RATELIMITD_COLOUR_OF_THE_SKY", "unknown variable RATELIMITD_COLOUR_OF_THE_SKY in the environment: `ratelimitd help settings` lists all variables"},
	} {
		code, said := output(t, map[string]string{c.name: "1"}, "--rules", "../../config/domains")
		if code != 2 || !strings.Contains(said, c.says) {
			t.Errorf("%s: exit code %d, %q; want 2 and %q", c.name, code, said, c.says)
		}
	}
	// Kubernetes sets these variables for a Service named ratelimitd or ratelimitd-canary. They are not a mistake.
	code, said := output(t, map[string]string{
		"RATELIMITD_SERVICE_HOST": "10.0.0.1", "RATELIMITD_SERVICE_PORT": "8081", "RATELIMITD_SERVICE_PORT_GRPC": "8081",
		"RATELIMITD_PORT": "tcp://10.0.0.1:8081", "RATELIMITD_PORT_8081_TCP": "tcp://10.0.0.1:8081", "RATELIMITD_PORT_8081_TCP_ADDR": "10.0.0.1",
		"RATELIMITD_CANARY_SERVICE_HOST": "10.0.0.2", "RATELIMITD_CANARY_PORT_8081_TCP_PROTO": "tcp",
	}, "version")
	if code != 0 {
		t.Errorf("with a Service's variables: exit code %d: %s", code, said)
	}
}

// Variables of envoyproxy/ratelimit, and those that look like them, have no prefix. A mistake in one is logged, in one
// line.
func TestUnknownVariablesAreLogged(t *testing.T) {
	parser, err := new(cli).parser()
	if err != nil {
		t.Fatal(err)
	}
	say := func(names ...string) []string {
		for i := range names {
			names[i] += "=x"
		}
		return unknownVariables(parser.Model, names)
	}
	want := map[string]string{
		"REDIS_PASSWORD": "REDIS_AUTH", "REDIS_PERSECOND_PASSWORD": "REDIS_PERSECOND_AUTH", "REDIS_SENTINEL_PASSWORD": "REDIS_SENTINEL_AUTH", "REDIS_USER": "REDIS_AUTH",
		"REDIS_HOST": "REDIS_URL", "REDIS_DB": "REDIS_URL", "LOGLEVEL": "LOG_LEVEL", "log_level": "LOG_LEVEL", "REDIS_PIPLINE_WINDOW": "REDIS_PIPELINE_WINDOW",
		"LIMIT_RESPONSE_HEADER_ENABLED": "LIMIT_RESPONSE_HEADERS_ENABLED", "SHADOWMODE": "SHADOW_MODE", "GRPC_SERVER_TLS_CRT": "GRPC_SERVER_TLS_CERT",
		// These were proposed to envoyproxy/ratelimit, or belong to no program.
		"LIMIT_ALL_DESCRIPTORS_HEADERS_ENABLED": "", "REDIS_AWS_IAM_AUTH": "", "DESCRIPTOR_KEY_CONFIG": "", "TRACING_EXPORTER_GRPC_BALANCER": "",
	}
	for _, known := range variables(parser.Model) {
		if strings.HasPrefix(known, ownPrefix) || strings.HasSuffix(known, "_PORT") || len(known) <= shortestGuess {
			continue
		}
		for i := range known {
			slip := known[:i] + known[i+1:]
			if got := say(slip); len(got) != 1 && !slices.Contains(variables(parser.Model), slip) && !serviceLink.MatchString(slip) {
				t.Errorf("%s: %q", slip, got)
			}
		}
	}
	for name, meant := range want {
		said := name
		if meant != "" {
			said += ": did you mean " + meant + "?"
		}
		if got := say(name); len(got) != 1 || got[0] != said {
			t.Errorf("%s: %q, want %q", name, got, said)
		}
	}
	if got := say("REDIS_SERVICE_HOST", "REDIS_SERVICE_PORT", "REDIS_PORT", "REDIS_PORT_6379_TCP", "REDIS_PORT_6379_TCP_ADDR", "REDIS_MASTER_SERVICE_PORT_REDIS", "REDIS_URL", "HOSTNAME", "HOME",
		"PATH", "POST", "LOGNAME", "TERM", "LANG", "PWD", "SHLVL", "HOST_IP", "POD_NAME", "POD_NAMESPACE", "NODE_NAME", "KUBERNETES_PORT", "KUBERNETES_SERVICE_HOST", "GOMAXPROCS", "GOMEMLIMIT",
		"GOGC", "GRPC_GO_LOG_SEVERITY_LEVEL", "GRPC_XDS_BOOTSTRAP", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME", "SSL_CERT_FILE", "HTTP_PROXY", "https_proxy", "no_proxy",
		"DOG_STATSD_MOGRIFIER_FOO_PATTERN", "RATELIMITD_PORT"); len(got) > 0 {
		t.Errorf("these belong to others: %q", got)
	}

	p := startProcess(t, map[string]string{"REDIS_PASSWORD": "s3cret", "LOGLEVEL": "debug"}, "--rules", rulesOf(t, fiveADay))
	line := p.Log.Wait(t, "variables that look like settings are unknown and have no effect: correct or remove them")
	if fmt.Sprint(line["variables"]) != "[LOGLEVEL: did you mean LOG_LEVEL? REDIS_PASSWORD: did you mean REDIS_AUTH?]" || strings.Contains(p.Log.String(), "s3cret") {
		t.Error(p.Log.String())
	}
}

// An error that ends the service is a line of its log. It names the setting to change, even an unset one, and settings
// are checked before rules are read.
func TestFatalErrors(t *testing.T) {
	cert, key := pemFiles(t, tlstest.NewAuthority(t, "one").Issue(t, "ratelimit"))
	for name, c := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"TLS without files":          {map[string]string{"GRPC_SERVER_USE_TLS": "true"}, []string{"set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY"}},
		"TLS with one":               {map[string]string{"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_KEY": key}, []string{"set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY"}},
		"TLS and no such file":       {map[string]string{"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "/none", "GRPC_SERVER_TLS_KEY": key}, []string{"GRPC_SERVER_TLS_CERT, GRPC_SERVER_TLS_KEY: ", "/none"}},
		"a name without authority":   {map[string]string{"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": cert, "GRPC_SERVER_TLS_KEY": key, "GRPC_CLIENT_TLS_SAN": "envoy"}, []string{"GRPC_CLIENT_TLS_SAN", "CA"}},
		"a key for operators":        {map[string]string{"RATELIMITD_ADMIN_TLS_KEY": key}, []string{"RATELIMITD_ADMIN_TLS_KEY: "}},
		"mogrifiers":                 {map[string]string{"USE_DOG_STATSD": "true", "USE_DOG_STATSD_MOGRIFIERS": "FOO"}, []string{"DOG_STATSD_MOGRIFIER_FOO_PATTERN"}},
		"Redis":                      {map[string]string{"REDIS_URL": "localhost"}, []string{"REDIS_URL is not an address"}},
		"a number":                   {map[string]string{"GRPC_PORT": "http"}, []string{"GRPC_PORT"}},
		"a variable of ours":         {map[string]string{"RATELIMITD_ONERROR": "deny"}, []string{"RATELIMITD_ON_ERROR"}},
		"only the rules are missing": {nil, []string{"load rules from /none"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{"LOG_FORMAT": "json"}
			maps.Copy(env, c.env)
			code, said := output(t, env, "--rules", "/none")
			lines := strings.Split(strings.TrimSpace(said), "\n")
			var last struct {
				Level   string `json:"level"`
				Message string `json:"@message"`
				Error   string `json:"error"`
			}
			for _, line := range lines {
				if err := json.Unmarshal([]byte(line), &last); err != nil {
					t.Fatalf("%v: %s", err, line)
				}
			}
			if code != 2 || last.Level != "error" || last.Message != "ratelimitd ends" || strings.Contains(last.Error, ": :") || strings.HasPrefix(last.Error, ":") {
				t.Errorf("exit code %d\n%s", code, said)
			}
			for _, want := range c.want {
				if !strings.Contains(last.Error, want) {
					t.Errorf("want %q in %q", want, last.Error)
				}
			}
		})
	}
	if code, said := output(t, map[string]string{"GRPC_SERVER_USE_TLS": "true"}, "--rules", "/none"); code != 2 || !strings.Contains(said, "\nratelimitd: GRPC_SERVER_USE_TLS=true needs") {
		t.Errorf("as text: exit code %d\n%s", code, said)
	}
}

// envoyproxy/ratelimit starts without TLS if only these are set. So does this service, and it logs the consequence.
func TestClientCertificatesWithoutTLS(t *testing.T) {
	for _, env := range []map[string]string{{"GRPC_CLIENT_TLS_CACERT": "/none"}, {"GRPC_CLIENT_TLS_SAN": "envoy"}} {
		p := startProcess(t, env, "--rules", rulesOf(t, fiveADay))
		line := p.Log.Wait(t, "clients are not authenticated and gRPC is not encrypted: set GRPC_SERVER_USE_TLS=true, or unset these variables")
		if line["level"] != "error" || env[fmt.Sprint(line["variables"])] == "" {
			t.Errorf("%v", line)
		}
		p.Stop(t)
	}
}

func TestInvalidVariable(t *testing.T) {
	for _, c := range []struct{ name, value, says string }{
		{"GRPC_PORT", "http", "GRPC_PORT"},
		{"SHADOW_MODE", "perhaps", `must be true or false, not "perhaps"`},
		{"RATELIMITD_ON_ERROR", "panic", "--on-error: must be `error`, `allow`, `deny` or `local`, not \"panic\" (from envar RATELIMITD_ON_ERROR"},
		{"REDIS_TIMEOUT", "10", "REDIS_TIMEOUT"},
		{"NEAR_LIMIT_RATIO", "most", "NEAR_LIMIT_RATIO"},
		{"RATELIMITD_RESPONSE_HEADERS", "x-headers", "must be `ratelimit`, `x-ratelimit`, `ietf` or `retry-after`, not \"x-headers\""},
		{"CONFIG_TYPE", "CONSUL", "FILE"},
		{"BACKEND_TYPE", "memcache", "memcached"},
	} {
		code, said := output(t, map[string]string{c.name: c.value}, "--rules", "../../config/domains")
		if code == 0 || !strings.Contains(said, c.says) {
			t.Errorf("%s=%s: exit code %d, %q; want an error with %q", c.name, c.value, code, said, c.says)
		}
	}
}

// TestFlagsAsTheReference writes true and false in all forms that envoyproxy/ratelimit accepts.
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

// TestEmptyVariable checks that an empty variable, as a manifest may have it, means the default.
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

// There is one set of TLS files for both Redis, as in envoyproxy/ratelimit.
func TestPerSecondHasTheTLSFilesOfRedis(t *testing.T) {
	authority := tlstest.NewAuthority(t, "redis")
	cert, key := pemFiles(t, authority.Issue(t, "counter"))
	plain := redistest.Start(t)
	for _, c := range []struct {
		server string
		more   map[string]string
		want   string
	}{
		{"127.0.0.1", map[string]string{"REDIS_TLS_CACERT": file(t, string(authority.PEM))}, "encrypted"},
		{"127.0.0.1", map[string]string{"REDIS_TLS_CACERT": file(t, string(authority.PEM)), "REDIS_TLS_CLIENT_CERT": cert, "REDIS_TLS_CLIENT_KEY": key}, "shows the certificate of counter"},
		{"redis.example.com", map[string]string{"REDIS_TLS_CACERT": file(t, string(authority.PEM)), "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true"}, "encrypted"},
		{"127.0.0.1", nil, "rejects the server's certificate"},
	} {
		h := listenTLS(t, authority.Issue(t, c.server))
		i := begin(t, merged(c.more, map[string]string{"REDIS_URL": plain.Addr, "REDIS_PERSECOND": "true", "REDIS_PERSECOND_URL": h.addr, "REDIS_PERSECOND_TLS": "true"}), "--rules", rulesOf(t, fiveADay))
		if got := h.look(t, i); got != c.want {
			t.Errorf("%v: it %s, want %s", c.more, got, c.want)
		}
	}
}

// Zero means forever, as in gRPC and envoyproxy/ratelimit.
func TestConnectionsMayStayForEver(t *testing.T) {
	if got := endless(0); got != math.MaxInt64 {
		t.Errorf("0 is %s", got)
	}
	if got := endless(time.Second); got != time.Second {
		t.Errorf("1s is %s", got)
	}
}

// parsed returns the serve command that results from the current environment.
func parsed(t *testing.T) *serveCommand {
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

// With the STOP flag, a shadow rule over its limit does not stop enforced counters from counting.
func TestShadowRulesHoldNothingBack(t *testing.T) {
	rules := "domain: d\ndescriptors:\n  - key: k\n    shadow_mode: true\n    rate_limit: {unit: year, requests_per_unit: 1}\n  - key: l\n    rate_limit: {unit: year, requests_per_unit: 3}\n"
	together := ask("d", "k", "v")
	together.Descriptors = append(together.Descriptors, ask("d", "l", "v").GetDescriptors()...)
	i := begin(t, map[string]string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true"}, "--rules", rulesOf(t, rules))
	if got := answers(together, together, ask("d", "l", "v"), ask("d", "l", "v"))(t, i); got != "OK OK OK OVER_LIMIT" {
		t.Errorf("%s, want the second request to count in l too", got)
	}
}

// `ratelimitd help settings` lists every setting of serve in a group, with its meaning, default and variable. Hidden
// settings have no effect, or exist for comparisons only.
func TestHelp(t *testing.T) {
	racetest.Sequential(t)
	var c cli
	application, err := newParser(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, ofServe, _ := asks(t, "help", everySetting)
	one := strings.Join(strings.Fields(ofServe), " ")
	silent := make(map[string]bool)
	for _, v := range silentVariables() {
		silent[v.name] = true
	}
	shown := 0
	for name, f := range flagsByVariable(application.Model) {
		if f.Hidden {
			if !silent[name] && !strings.HasSuffix(f.Help, "for comparison.") {
				t.Errorf("%s is not in the help", name)
			}
			continue
		}
		shown++
		switch {
		case f.Group == nil || !strings.Contains(ofServe, "\n"+f.Group.Title+"\n"):
			t.Errorf("%s is in no group", name)
		case len(f.Help) < 10:
			t.Errorf("%s: %q is no help", name, f.Help)
		case !strings.Contains(one, "$"+name+")"):
			t.Errorf("the help of %s does not name it", name)
		case f.Default != "" && !strings.Contains(one, "--"+f.Name+"="+f.FormatPlaceHolder()) && !strings.Contains(one, "default "+f.Default+"; $"+name):
			t.Errorf("the help of %s does not have its default %q", name, f.Default)
		}
	}
	if shown < 130 {
		t.Errorf("only %d settings", shown)
	}
}
