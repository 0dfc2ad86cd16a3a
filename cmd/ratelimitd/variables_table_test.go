package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	rulesv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// ownDefaults are the defaults that differ from envoyproxy/ratelimit's. docs/reference/environment.md gives the
// reasons.
var ownDefaults = map[string]string{
	"BACKEND_TYPE":                     "",          // Redis if REDIS_URL is set, else memory
	"DEBUG_HOST":                       "127.0.0.1", // envoyproxy/ratelimit: all addresses
	"EXPIRATION_JITTER_MAX_SECONDS":    "",          // 300 where it has an effect
	"LOG_LEVEL":                        "info",
	"REDIS_SOCKET_TYPE":                "", // depends on the URL
	"REDIS_PERSECOND_SOCKET_TYPE":      "",
	"REDIS_URL":                        "",
	"REDIS_PERSECOND_URL":              "",
	"TRACING_SERVICE_NAME":             "", // OTEL_SERVICE_NAME, else envoyproxy/ratelimit's
	"USE_STATSD":                       "",
	"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES": "",

	// These are accepted without effect and are unset by default.
	"RUNTIME_WATCH_ROOT": "", "REDIS_PIPELINE_WINDOW": "", "REDIS_PIPELINE_LIMIT": "", "REDIS_CLUSTER_PIPELINE_PARALLELISM": "",
	"REDIS_PERSECOND_PIPELINE_WINDOW": "", "REDIS_PERSECOND_PIPELINE_LIMIT": "", "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM": "",
	"MEMCACHE_MAX_IDLE_CONNS": "", "MEMCACHE_SRV_REFRESH": "",
}

const oneADay = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n"

// table returns the rows of TestEveryVariable.
func table(t *testing.T) []variable {
	return slices.Concat(variablesOfRules(), variablesOfXDS(t), variablesOfListening(), variablesOfIntake(), variablesOfTLS(t), variablesOfOperators(t), variablesOfAnswers(),
		variablesOfCounting(), variablesOfRedis(t, "REDIS"), variablesOfRedis(t, "REDIS_PERSECOND"), variablesOfStatistics(), variablesOfTracing(), variablesOfEvents(t), silentVariables())
}

func variablesOfRules() []variable {
	directory := func(t *testing.T, i *instance) string {
		if i.err != nil {
			return i.err.Error()[:strings.Index(i.err.Error()+":", ":")]
		}
		return "rules are found"
	}
	// at creates a root with rules in a/b/rules.yaml and nowhere else.
	at := func(name, value, root, sub, app string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			dir := t.TempDir()
			write(t, dir, "a/b/rules.yaml", fiveADay)
			env := map[string]string{"RUNTIME_ROOT": dir + root, "RUNTIME_SUBDIRECTORY": sub, "RUNTIME_APPDIRECTORY": app}
			env[name] = value
			if name == "RUNTIME_ROOT" {
				env[name] = dir + root
			}
			return env, func(t *testing.T, i *instance) string { return strings.ReplaceAll(directory(t, i), dir, "DIR") }
		}
	}
	return []variable{
		{name: "CONFIG_TYPE", value: "grpc_xds_sotw", with: map[string]string{"CONFIG_GRPC_XDS_SERVER_URL": "127.0.0.1:1"}, look: logsOneOf("rule file loaded", "rules come over xDS"), unset: "rule file loaded", set: "rules come over xDS"},
		{name: "RUNTIME_ROOT", rules: []string{}, prepare: at("RUNTIME_ROOT", "", "", "a", "b"), unset: "load rules from /srv/runtime_data/current/a/b", set: "rules are found", anything: true},
		{name: "RUNTIME_SUBDIRECTORY", rules: []string{}, prepare: at("RUNTIME_SUBDIRECTORY", "a", "", "a", "b"), unset: "load rules from DIR/b", set: "rules are found", anything: true},
		{name: "RUNTIME_APPDIRECTORY", rules: []string{}, prepare: at("RUNTIME_APPDIRECTORY", "b", "", "a", "b"), unset: "load rules from DIR/a/config", set: "rules are found", anything: true},
		{name: "RATELIMITD_STRICT_RULES", value: "true", rules: []string{fiveADay, "domain: twice\ndescriptors: []\ndescriptors:\n  - {key: k, rate_limit: {unit: day}}\n"},
			look: metric("ratelimitd_rules "), unset: "ratelimitd_rules 2", set: "ratelimitd_rules 1"},
		{name: "MERGE_DOMAIN_CONFIG", value: "true", rules: []string{fiveADay, strings.ReplaceAll(fiveADay, "key: k", "key: l")}, look: metric("ratelimitd_rules "), unset: "ratelimitd_rules 1", set: "ratelimitd_rules 2"},
		{name: "FORCE_START_WITHOUT_INITIAL_CONFIG", value: "true", rules: []string{"domain: ["}, look: healthy, unset: "red", set: "green"},
		{name: "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", value: "true", rules: []string{"domain: ["}, with: map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true"}, look: healthy, unset: "green", set: "red"},

		{name: "LOG_LEVEL", value: "debug", look: page("/loglevel", true, `\w+`), unset: "OKinfo", set: "OKdebug", bad: map[string]string{"loud": "debug, info, warn or error"}},
		{name: "LOG_FORMAT", value: "json", look: running(func(t *testing.T, i *instance) string {
			eventually(t, "a line", func() bool { return i.log.String() != "" })
			return i.log.String()[:1]
		}), unset: "t", set: "{"},
	}
}

func variablesOfXDS(t *testing.T) []variable {
	authority := tlstest.NewAuthority(t, "rules")
	server, named := authority.Issue(t, "127.0.0.1"), authority.Issue(t, "gateway.example")
	ca := file(t, string(authority.PEM))
	cert, key := pemFiles(t, authority.Issue(t, "envoy-ratelimit"))

	// fromXDS looks at the first request that an xDS server receives, with one variable set.
	fromXDS := func(say func(*discoveryv3.DiscoveryRequest, metadata.MD) string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			a := listenADS(t, nil)
			return xdsFrom(a.addr), a.asked(say)
		}
	}
	shaken := func(pair tlstest.Pair, more ...string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			h := listenTLS(t, pair)
			return xdsFrom(h.addr, more...), h.look
		}
	}
	// ending is an xDS server whose streams end immediately.
	ending := func(l func(*ads) look, more ...string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			a := listenADS(t, func(discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
				return status.Error(codes.Unavailable, "no more")
			})
			return xdsFrom(a.addr, more...), l(a)
		}
	}
	retryIn := func(*ads) look {
		return logs("the stream from the xDS server has ended, no rules are active", "retry_in")
	}
	exact := func(*ads) look {
		return func(t *testing.T, i *instance) string {
			return either(retryIn(nil)(t, i) == "10s", "10 s", "about 10 s")
		}
	}
	resource := func(key string) *discoveryv3.DiscoveryResponse {
		rules, err := anypb.New(&rulesv3.RateLimitConfig{Name: "d", Domain: "d", Descriptors: []*rulesv3.RateLimitDescriptor{{Key: key}}})
		if err != nil {
			t.Fatal(err)
		}
		return &discoveryv3.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: resourcev3.RateLimitConfigType, Resources: []*anypb.Any{rules}}
	}
	return []variable{
		{name: "CONFIG_GRPC_XDS_SERVER_URL", value: "127.0.0.1:1", with: map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW"}, look: logs("rules come over xDS", "server"), unset: "localhost:18000", set: "127.0.0.1:1",
			bad: map[string]string{"http://a:1": "host:port"}},
		{name: "CONFIG_GRPC_XDS_NODE_ID", value: "envoy-ratelimit", prepare: fromXDS(func(r *discoveryv3.DiscoveryRequest, _ metadata.MD) string { return r.GetNode().GetId() }), unset: "default", set: "envoy-ratelimit", anything: true},
		{name: "CONFIG_GRPC_XDS_NODE_METADATA", value: "zone=a,rack=7", prepare: fromXDS(func(r *discoveryv3.DiscoveryRequest, _ metadata.MD) string {
			m := r.GetNode().GetMetadata().AsMap()
			return fmt.Sprint(m["zone"], m["rack"])
		}), with: map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW"}, unset: "<nil> <nil>", set: "a7", anything: true},
		{name: "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", value: "x-token:abc", prepare: fromXDS(func(_ *discoveryv3.DiscoveryRequest, md metadata.MD) string {
			return strings.Join(md.Get("x-token"), ",")
		}),
			with: map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW"}, unset: "", set: "abc", bad: map[string]string{"a=b": "key:value"}},
		{name: "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", value: "10ms", prepare: func(t *testing.T) (map[string]string, look) {
			l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
			var came atomic.Int64
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					came.Add(1)
					conn.Close()
				}
			}()
			return xdsFrom(l.Addr().String()), running(func(t *testing.T, i *instance) string {
				eventually(t, "a connection", func() bool { return came.Load() > 0 })
				// The default is 3 s, plus or minus half.
				return either(within(t, i, "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", patience, 500*time.Millisecond, func() bool { return came.Load() > 20 }), "soon again", "not soon again")
			})
		}, unset: "not soon again", set: "soon again"},
		{name: "CONFIG_GRPC_XDS_SERVER_USE_TLS", value: "true", prepare: shaken(server, "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca), unset: "plain text", set: "encrypted"},
		{name: "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", value: ca, prepare: shaken(server, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"), unset: "rejects the server's certificate", set: "encrypted",
			with: map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true"}, bad: map[string]string{"/none": "/none", key: "no certificate in it"}},
		{name: "CONFIG_GRPC_XDS_SERVER_TLS_SAN", value: "gateway.example", prepare: shaken(named, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca), unset: "rejects the server's certificate", set: "encrypted", anything: true},
		{name: "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", value: cert, prepare: shaken(server, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", key), unset: "does not start", set: "shows the certificate of envoy-ratelimit",
			with: map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY": key}, bad: map[string]string{"/none": "/none", ca: "certificate"}},
		{name: "CONFIG_GRPC_XDS_CLIENT_TLS_KEY", value: key, prepare: shaken(server, "CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ca, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT", cert), unset: "does not start", set: "shows the certificate of envoy-ratelimit",
			with: map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_USE_TLS": "true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT": cert}, bad: map[string]string{"/none": "/none", ca: "key"}},
		{name: "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", value: "7s", prepare: ending(retryIn, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0"), unset: "10s", set: "7s"},
		{name: "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", value: "0", prepare: ending(exact), unset: "about 10 s", set: "10 s"},
		{name: "XDS_CLIENT_BACKOFF_JITTER", value: "false", prepare: ending(exact), unset: "about 10 s", set: "10 s"},
		{name: "XDS_CLIENT_BACKOFF_MAX_INTERVAL", value: "10ms", prepare: ending(func(a *ads) look {
			return running(func(t *testing.T, i *instance) string {
				// Without the variable, 19 waits take 44 s: they start at 10 ms and grow by half each time.
				return either(within(t, i, "XDS_CLIENT_BACKOFF_MAX_INTERVAL", patience, 500*time.Millisecond, func() bool { return a.count(&a.streams) >= 20 }), "many streams", "fewer and fewer")
			})
		}, "XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms"), unset: "fewer and fewer", set: "many streams"},
		{name: "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", value: "1000", prepare: func(t *testing.T) (map[string]string, look) {
			a := listenADS(t, func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
				return s.Send(resource(strings.Repeat("k", 5000)))
			})
			return xdsFrom(a.addr), logsOneOf("rules accepted", "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES")
		}, unset: "rules accepted", set: "raise XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES"},
	}
}

func variablesOfListening() []variable {
	host := func(addr func(*instance) string) look {
		return running(func(_ *testing.T, i *instance) string {
			ip, _, _ := net.SplitHostPort(addr(i))
			return either(net.ParseIP(ip).IsUnspecified(), "everywhere", ip)
		})
	}
	grpcAddr := func(i *instance) string { return i.svc.Server.GRPCAddr.String() }
	httpAddr := func(i *instance) string { return i.svc.Server.HTTPAddr.String() }
	debugAddr := func(i *instance) string { return i.svc.Operators.DebugAddr.String() }
	port := func(addr func(*instance) string, name string) func(t *testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			free := freePort(t)
			return map[string]string{name: free}, running(func(_ *testing.T, i *instance) string {
				_, got, _ := net.SplitHostPort(addr(i))
				return either(got == free, "the port", "port "+got)
			})
		}
	}
	// watch opens a call that does not end on its own and reports whether it stays open.
	watch := running(func(t *testing.T, i *instance) string {
		stream, err := healthv1.NewHealthClient(dial(t, i.grpc())).Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		wait := patience // gRPC takes a second to close a connection
		if i.env["GRPC_MAX_CONNECTION_AGE_GRACE"] == absent {
			wait = 1500 * time.Millisecond
		}
		cut := make(chan struct{})
		go func() {
			_, _ = stream.Recv()
			close(cut)
		}()
		select {
		case <-cut:
			return "cut off"
		case <-time.After(wait):
			return "goes on"
		}
	})
	return []variable{
		{name: "GRPC_HOST", value: "127.0.0.1", look: host(grpcAddr), unset: "everywhere", set: "127.0.0.1", bad: map[string]string{"no host": "no host"}},
		{name: "HOST", value: "127.0.0.1", look: host(httpAddr), unset: "everywhere", set: "127.0.0.1", bad: map[string]string{"no host": "no host"}},
		{name: "DEBUG_HOST", value: "0.0.0.0", look: host(debugAddr), unset: "127.0.0.1", set: "everywhere", anything: true},
		{name: "GRPC_PORT", prepare: port(grpcAddr, "GRPC_PORT"), onlySet: true, set: "the port"},
		{name: "PORT", prepare: port(httpAddr, "PORT"), onlySet: true, set: "the port"},
		{name: "DEBUG_PORT", prepare: port(debugAddr, "DEBUG_PORT"), onlySet: true, set: "the port"},
		{name: "GRPC_UDS", prepare: func(t *testing.T) (map[string]string, look) {
			dir, err := os.MkdirTemp("", "uds") // t.TempDir's path may be too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			return map[string]string{"GRPC_UDS": filepath.Join(dir, "s")}, running(func(t *testing.T, i *instance) string {
				at := i.grpc()
				if i.svc.Server.GRPCAddr.Network() == "unix" {
					at = "unix:" + at
				}
				_, err := ratelimitv3.NewRateLimitServiceClient(dial(t, at)).ShouldRateLimit(t.Context(), ask("d", "k", "v"))
				return i.svc.Server.GRPCAddr.Network() + " " + status.Code(err).String()
			})
		}, unset: "tcp OK", set: "unix OK", bad: map[string]string{"/none/at/all": "no such file"}},
		{name: "GRPC_MAX_CONNECTION_AGE", value: "50ms", look: running(func(t *testing.T, i *instance) string {
			conn := dial(t, i.grpc())
			if _, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil {
				t.Fatal(err)
			}
			return either(within(t, i, "GRPC_MAX_CONNECTION_AGE", patience, 300*time.Millisecond, func() bool { return conn.GetState() != connectivity.Ready }), "connects anew", "stays")
		}), unset: "stays", set: "connects anew"},
		{name: "GRPC_MAX_CONNECTION_AGE_GRACE", value: "10ms", with: map[string]string{"GRPC_MAX_CONNECTION_AGE": "50ms"}, look: watch, unset: "goes on", set: "cut off"},
		{name: "RATELIMITD_MAX_CONNECTIONS", value: "1", look: running(func(t *testing.T, i *instance) string {
			first, err := net.Dial("tcp", i.svc.Server.HTTPAddr.String()) //nolint:noctx // closed below
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close()
			// The first connection counts only after it is accepted: the service answers on it then.
			fmt.Fprintf(first, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
			if _, err := first.Read(make([]byte, 10)); err != nil {
				t.Fatal(err)
			}
			resp, err := (&http.Client{Transport: &http.Transport{}}).Get(i.http() + "/livez") //nolint:noctx // the test's own server
			if err != nil {
				return "rejected"
			}
			resp.Body.Close()
			return "answered"
		}), unset: "answered", set: "rejected"},
		{name: "RATELIMITD_GRPC_REFLECTION", value: "true", look: running(func(t *testing.T, i *instance) string {
			stream, err := reflectionv1.NewServerReflectionClient(dial(t, i.grpc())).ServerReflectionInfo(t.Context())
			if err == nil {
				err = stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
			}
			if err == nil {
				_, err = stream.Recv()
			}
			return status.Code(err).String()
		}), unset: "Unimplemented", set: "OK"},
		{name: "RATELIMITD_DRAIN_DELAY", value: "20ms", look: running(func(t *testing.T, i *instance) string {
			i.stop()
			i.log.Wait(t, "stopped")
			return either(strings.Contains(i.log.String(), "draining: health is red"), "waits", "does not wait")
		}), unset: "does not wait", set: "waits"},
		{name: "RATELIMITD_STOP_TIMEOUT", value: "20ms", prepare: func(t *testing.T) (map[string]string, look) {
			// Redis never answers this call.
			env := map[string]string{"REDIS_URL": startSilent(t).Addr().String(), "REDIS_OP_TIMEOUT": "2s", "RATELIMITD_REDIS_STARTUP_SERVE": "true"}
			return env, running(func(t *testing.T, i *instance) string {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				go func() {
					_, _ = ratelimitv3.NewRateLimitServiceClient(dial(t, i.grpc())).ShouldRateLimit(ctx, ask("d", "k", "v"))
				}()
				eventually(t, "the call", func() bool {
					return len(shown(t, i.http()+"/metrics", `ratelimitd_calls_in_flight 1`)) > 0
				})
				i.stop()
				return either(within(t, i, "RATELIMITD_STOP_TIMEOUT", 8*time.Second, 300*time.Millisecond, func() bool {
					return strings.Contains(i.log.String(), "gRPC calls did not finish in time and are cut off")
				}), "cut off", "waited for")
			})
		}, unset: "waited for", set: "cut off"},
	}
}

func variablesOfTLS(t *testing.T) []variable {
	authority, other := tlstest.NewAuthority(t, "one"), tlstest.NewAuthority(t, "other")
	cert, key := pemFiles(t, authority.Issue(t, "ratelimit"))
	ca := file(t, string(authority.PEM))
	with := func(names ...string) map[string]string {
		all := map[string]string{"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": cert, "GRPC_SERVER_TLS_KEY": key, "GRPC_CLIENT_TLS_CACERT": ca}
		env := make(map[string]string)
		for _, n := range names {
			env[n] = all[n]
		}
		return env
	}
	stranger := other.Issue(t, "stranger").TLS(t)
	friend := authority.Issue(t, "friend").TLS(t)
	return []variable{
		{name: "GRPC_SERVER_USE_TLS", value: "true", with: with("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"), look: shakes(false), unset: "plain text", set: "certificate of ratelimit"},
		{name: "GRPC_SERVER_TLS_CERT", value: cert, with: with("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_KEY"), look: shakes(false), unset: "does not start", set: "certificate of ratelimit", bad: map[string]string{"/none": "/none"}},
		{name: "GRPC_SERVER_TLS_KEY", value: key, with: with("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT"), look: shakes(false), unset: "does not start", set: "certificate of ratelimit", bad: map[string]string{"/none": "/none"}},
		{name: "GRPC_CLIENT_TLS_CACERT", value: ca, with: with("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"), look: shakes(false, stranger), unset: "certificate of ratelimit", set: "rejects the client", bad: map[string]string{"/none": "/none"}},
		{name: "GRPC_CLIENT_TLS_SAN", value: "envoy", with: with("GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT"), look: shakes(false, friend), unset: "certificate of ratelimit", set: "rejects the client", anything: true},
	}
}

func variablesOfOperators(t *testing.T) []variable {
	authority, other := tlstest.NewAuthority(t, "one"), tlstest.NewAuthority(t, "other")
	cert, key := pemFiles(t, authority.Issue(t, "debug"))
	ca := file(t, string(authority.PEM))
	token := file(t, "ann "+adminToken+"\n")
	secure := map[string]string{"RATELIMITD_ADMIN_TLS_CERT": cert, "RATELIMITD_ADMIN_TLS_KEY": key}
	return []variable{
		{name: "RATELIMITD_ADMIN_TOKEN", value: adminToken, look: peeks(adminToken), unset: "PermissionDenied", set: "OK", bad: map[string]string{"short": "characters"}},
		{name: "RATELIMITD_ADMIN_TOKEN_FILE", value: token, look: peeks(adminToken), unset: "PermissionDenied", set: "OK", bad: map[string]string{"/none": "/none"}},
		{name: "RATELIMITD_ADMIN_TLS_CERT", value: cert, with: map[string]string{"RATELIMITD_ADMIN_TLS_KEY": key}, look: shakes(true), unset: "does not start", set: "certificate of debug", bad: map[string]string{"/none": "/none"}},
		{name: "RATELIMITD_ADMIN_TLS_KEY", value: key, with: map[string]string{"RATELIMITD_ADMIN_TLS_CERT": cert}, look: shakes(true), unset: "does not start", set: "certificate of debug", bad: map[string]string{"/none": "/none"}},
		{name: "RATELIMITD_ADMIN_TLS_CLIENT_CA", value: ca, with: secure, look: shakes(true, other.Issue(t, "stranger").TLS(t)), unset: "certificate of debug", set: "rejects the client", bad: map[string]string{"/none": "/none"}},
		{name: "RATELIMITD_ADMIN_TLS_CLIENT_SAN", value: "spiffe://test/ann, read bob", with: merged(secure, map[string]string{"RATELIMITD_ADMIN_TLS_CLIENT_CA": ca}), look: profiles(authority.Issue(t, "bob").TLS(t)), unset: "200 OK", set: "403 Forbidden", bad: map[string]string{"reader bob": "unknown role", "ann,,read bob": "empty", "read": "no name"}},
		{name: "RATELIMITD_DEBUG_HOST_NAMES", value: "ratelimitd.example,*.local", look: running(func(t *testing.T, i *instance) string {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.debug()+"/stats", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "pod.local"
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.Status
		}), unset: "403 Forbidden", set: "200 OK", anything: true},
	}
}

func variablesOfAnswers() []variable {
	two := "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: day, requests_per_unit: 1}\n  - key: l\n    rate_limit: {unit: day, requests_per_unit: 3}\n"
	together := ask("d", "k", "v")
	together.Descriptors = append(together.Descriptors, ask("d", "l", "v").GetDescriptors()...)
	// Two requests hit both counters. The remaining hits of l then show how many hits the denied request took.
	left := func(t *testing.T, i *instance) string {
		return answers(together, heavy(2, together), heavy(1, ask("d", "l", "v")), heavy(1, ask("d", "l", "v")))(t, i)
	}
	near := metric("ratelimitd_rule_near_limit_hits_total")
	headersOn := map[string]string{"LIMIT_RESPONSE_HEADERS_ENABLED": "true"}
	dynamic := func(find string) look {
		return running(func(t *testing.T, i *instance) string {
			got, err := ratelimitv3.NewRateLimitServiceClient(dial(t, i.grpc())).ShouldRateLimit(t.Context(), ask("d", "k", "v"))
			if err != nil {
				t.Fatal(err)
			}
			return either(got.GetDynamicMetadata() != nil && strings.Contains(got.GetDynamicMetadata().String(), find), find, "nothing")
		})
	}
	return []variable{
		{name: "SHADOW_MODE", value: "true", rules: []string{oneADay}, look: answers(times(2, ask("d", "k", "v"))...), unset: "OK OVER_LIMIT", set: "OK OK"},
		// One of two descriptors is over its limit: in quota mode the other one lets the request pass.
		{name: "QUOTA_MODE", value: "true", rules: []string{two}, look: answers(times(2, together)...), unset: "OK OVER_LIMIT", set: "OK OK"},
		{name: "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", value: "true", rules: []string{two}, look: left, unset: "OK OVER_LIMIT OVER_LIMIT OVER_LIMIT", set: "OK OVER_LIMIT OK OK"},
		{name: "RATELIMITD_ADMISSION", value: "all_or_nothing", rules: []string{two}, look: left, unset: "OK OVER_LIMIT OVER_LIMIT OVER_LIMIT", set: "OK OVER_LIMIT OK OK"},
		{name: "RATELIMITD_ON_ERROR", value: "deny", with: map[string]string{"REDIS_URL": "127.0.0.1:1"}, look: answers(ask("d", "k", "v")), unset: "Unavailable", set: "OVER_LIMIT"},
		{name: "RATELIMITD_RESPONSE_HEADERS", value: "x-ratelimit", look: clientHeader("X-RateLimit-Remaining"), unset: "", set: "4"},
		{name: "LIMIT_RESPONSE_HEADERS_ENABLED", value: "true", look: clientHeader("RateLimit-Remaining"), unset: "", set: "4"},
		{name: "LIMIT_LIMIT_HEADER", value: "My-Limit", with: headersOn, look: clientHeader("My-Limit"), unset: "", set: "5"},
		{name: "LIMIT_REMAINING_HEADER", value: "My-Rest", with: headersOn, look: clientHeader("My-Rest"), unset: "", set: "4"},
		{name: "LIMIT_RESET_HEADER", value: "My-Reset", with: headersOn, look: func(t *testing.T, i *instance) string {
			return either(clientHeader("My-Reset")(t, i) != "", "there", "not there")
		}, unset: "not there", set: "there"},
		{name: "RESPONSE_DYNAMIC_METADATA", value: "true", look: dynamic("domain"), unset: "nothing", set: "domain"},
		{name: "RATELIMITD_DECISION_METADATA", value: "true", look: dynamic("decision"), unset: "nothing", set: "decision"},
		{name: "NEAR_LIMIT_RATIO", value: "0", look: then(answers(times(4, ask("d", "k", "v"))...), near), unset: `ratelimitd_rule_near_limit_hits_total{domain="d",rule="k"} 0`, set: `ratelimitd_rule_near_limit_hits_total{domain="d",rule="k"} 4`},
		{name: "USE_CALENDAR_MONTH_RATE_LIMIT", value: "true", rules: []string{strings.Replace(fiveADay, "day", "month", 1)}, look: running(func(t *testing.T, i *instance) string {
			got, err := ratelimitv3.NewRateLimitServiceClient(dial(t, i.grpc())).ShouldRateLimit(t.Context(), ask("d", "k", "v"))
			if err != nil {
				t.Fatal(err)
			}
			now := time.Now().UTC()
			reset := now.Add(got.GetStatuses()[0].GetDurationUntilReset().AsDuration())
			first := time.Date(now.Year(), now.Month()+1, 1, 0, 0, 0, 0, time.UTC)
			const month = 30 * 24 * time.Hour
			next := time.Unix(0, 0).Add((time.Duration(now.Unix())*time.Second/month + 1) * month)
			near := func(a, b time.Time) bool { return a.Sub(b).Abs() < 10*time.Second }
			switch {
			case near(first, next): // both months end at the same time on one day in decades
				t.Skip("both months end at once")
			case near(reset, first):
				return "ends with the month"
			case near(reset, next):
				return "ends with 30 days"
			}
			return reset.String()
		}), unset: "ends with 30 days", set: "ends with the month"},
	}
}

func variablesOfCounting() []variable {
	down := map[string]string{"REDIS_URL": "127.0.0.1:1"}
	asks := func(find func(asked []time.Duration) string) look {
		return running(func(t *testing.T, i *instance) string {
			var waits []time.Duration
			eventually(t, "six attempts", func() bool {
				waits = waits[:0]
				for line := range strings.Lines(i.log.String()) {
					if _, after, found := strings.Cut(line, `"asked_again_in":"`); found {
						text, _, _ := strings.Cut(after, `"`)
						d, _ := time.ParseDuration(text)
						waits = append(waits, d)
					}
				}
				return len(waits) >= 6 || len(waits) > 0 && waits[0] > 400*time.Millisecond
			})
			return find(waits)
		})
	}
	return []variable{
		{name: "BACKEND_TYPE", value: "memory", with: map[string]string{"REDIS_URL": "127.0.0.1:1"}, look: logsOneOf("counting in Redis", "counting in this replica's memory"), unset: "counting in Redis", set: "counting in this replica's memory",
			bad: map[string]string{"memcache": "use redis", "disk": "memory or redis"}},
		{name: "CACHE_KEY_PREFIX", value: "blue_", prepare: func(t *testing.T) (map[string]string, look) { return redisKeys(t) }, unset: "d|k=v|f86400", set: "blue_d|k=v|f86400", anything: true},
		{name: "RATELIMITD_OVERRIDES", value: "redis", with: down, look: metric("ratelimitd_overrides_version "), unset: "", set: "ratelimitd_overrides_version 0", bad: map[string]string{"/none": "/none"}},
		{name: "RATELIMITD_REGION", shownBy: "TestRegionSettings", bad: map[string]string{"EU": "letters from a to z"}},
		{name: "RATELIMITD_REGIONS", shownBy: "TestRegionSettings", anything: true},
		{name: "RATELIMITD_REGIONS_LISTEN", shownBy: "TestRegions", anything: true},
		{name: "RATELIMITD_REGIONS_TLS_CERT", shownBy: "TestRegionSettings", anything: true},
		{name: "RATELIMITD_REGIONS_TLS_KEY", shownBy: "TestRegionSettings", anything: true},
		{name: "RATELIMITD_REGIONS_TLS_CACERT", shownBy: "TestRegionSettings", anything: true},
		{name: "RATELIMITD_OVERRIDES_COPY", shownBy: "TestOverridesInRedis", anything: true},
		{name: "RATELIMITD_RESERVATION_KEY", shownBy: "TestReservationKeys", bad: map[string]string{"too short": "fewer than 16 bytes"}},
		{name: "LOCAL_CACHE_SIZE_IN_BYTES", value: "100000", look: then(answers(times(8, ask("d", "k", "v"))...), func(t *testing.T, i *instance) string {
			return either(strings.HasSuffix(metric("ratelimitd_over_limit_cache_hits_total")(t, i), " 2"), "remembers", "does not remember")
		}), unset: "does not remember", set: "remembers"},
		{name: "RATELIMITD_MEMORY_MAX_COUNTERS", value: "1", look: then(answers(ask("d", "k", "a"), ask("d", "k", "b")), metric("ratelimitd_memory_shared_takes_total")),
			unset: `ratelimitd_memory_shared_takes_total{domain="d"} 0`, set: `ratelimitd_memory_shared_takes_total{domain="d"} 1`},
		{name: "REDIS_KEY_FORMAT", value: "lyft", prepare: func(t *testing.T) (map[string]string, look) { return redisKeys(t) }, unset: "d|k=v|f86400", set: "d_k_v_#"},
		{name: "EXPIRATION_JITTER_MAX_SECONDS", value: "0", prepare: func(t *testing.T) (map[string]string, look) {
			r := redistest.Start(t)
			env := map[string]string{"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "REDIS_KEY_FORMAT": "lyft"}
			var all []*ratelimitv3.RateLimitRequest
			for i := range 20 {
				all = append(all, ask("d", "k", fmt.Sprint(i)))
			}
			return env, then(answers(all...), running(func(t *testing.T, _ *instance) string {
				keys := r.Client(t).Keys(t.Context(), "*d_k_*").Val()
				longest := time.Duration(0)
				for _, k := range keys {
					longest = max(longest, r.Client(t).TTL(t.Context(), k).Val())
				}
				return fmt.Sprintf("%d keys, %s", len(keys), either(longest > 24*time.Hour, "longer", "as long as the window"))
			}))
		}, unset: "20 keys, longer", set: "20 keys, as long as the window"},
		{name: "RATELIMITD_REDIS_STARTUP_SERVE", value: "true", with: down, look: healthy, unset: "red", set: "green"},
		{name: "REDIS_STARTUP_INITIAL_INTERVAL", value: "10ms", with: down, look: asks(func(all []time.Duration) string { return either(all[0] < 20*time.Millisecond, "at once", "later") }), unset: "later", set: "at once"},
		{name: "REDIS_STARTUP_MAX_INTERVAL", value: "20ms", with: merged(down, map[string]string{"REDIS_STARTUP_INITIAL_INTERVAL": "20ms"}), look: asks(func(all []time.Duration) string {
			return either(all[5] <= 31*time.Millisecond, "evenly", "ever later")
		}), unset: "ever later", set: "evenly"},
		{name: "REDIS_STARTUP_MAX_ELAPSED_TIME", value: "50ms", with: merged(down, map[string]string{"REDIS_STARTUP_INITIAL_INTERVAL": "10ms", "REDIS_STARTUP_MAX_INTERVAL": "10ms"}), look: running(func(_ *testing.T, i *instance) string {
			wait := patience
			if i.env["REDIS_STARTUP_MAX_ELAPSED_TIME"] == absent {
				wait = 500 * time.Millisecond
			}
			select {
			case err := <-i.ended:
				return either(err != nil && strings.Contains(err.Error(), "no answer within REDIS_STARTUP_MAX_ELAPSED_TIME=50ms"), "gives up", fmt.Sprint(err))
			case <-time.After(wait):
				return "goes on"
			}
		}), unset: "goes on", set: "gives up"},
		{name: "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", shownBy: "TestHealthFollowsRedis"},
		{name: "REDIS_PERSECOND", value: "true", prepare: func(t *testing.T) (map[string]string, look) {
			// A counter per second may be gone before the test looks. The slow log keeps the commands that named it.
			r := redistest.StartWith(t, redistest.Setup{Args: []string{"--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000"}})
			env := map[string]string{"REDIS_URL": r.Addr, "REDIS_OP_TIMEOUT": "5s", "REDIS_PERSECOND_URL": redistest.Start(t).Addr}
			return env, then(answers(ask("d", "k", "v")), running(func(t *testing.T, _ *instance) string {
				commands, err := r.Client(t).SlowLogGet(t.Context(), -1).Result()
				if err != nil {
					t.Fatal(err)
				}
				named := slices.ContainsFunc(commands, func(c goredis.SlowLog) bool { return slices.Contains(c.Args, "d|k=v|f1") })
				return either(named, "counts here", "counts elsewhere")
			}))
		}, rules: []string{strings.Replace(fiveADay, "day", "second", 1)}, with: map[string]string{"REDIS_URL": "127.0.0.1:1"}, unset: "counts here", set: "counts elsewhere"},
	}
}

func variablesOfRedis(t *testing.T, prefix string) []variable {
	authority := tlstest.NewAuthority(t, "redis")
	server, named := authority.Issue(t, "127.0.0.1"), authority.Issue(t, "redis.example.com")
	ca := file(t, string(authority.PEM))
	cert, key := pemFiles(t, authority.Issue(t, "counter"))
	password := file(t, "s3cret\n")
	// one returns the environment for the Redis under test, and a healthy Redis as well.
	one := func(t *testing.T, addr string, more ...string) map[string]string {
		env := map[string]string{prefix + "_URL": addr}
		if prefix != "REDIS" {
			env["REDIS_PERSECOND"], env["REDIS_URL"] = "true", redistest.Start(t).Addr
		}
		for i := 0; i < len(more); i += 2 {
			env[prefix+"_"+more[i]] = more[i+1]
		}
		return env
	}
	shaken := func(pair tlstest.Pair, more ...string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			h := listenTLS(t, pair)
			return one(t, h.addr, more...), h.look
		}
	}
	first := func(find, url string, more ...string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			addr, l := listenFirst(t, "tcp", find)
			return one(t, fmt.Sprintf(url, addr), more...), l
		}
	}
	pool := either(prefix == "REDIS", "ratelimit_redis_pool_cx_active", "ratelimit_redis_per_second_pool_cx_active")
	rows := []variable{
		{name: "URL", prepare: func(t *testing.T) (map[string]string, look) {
			env := one(t, redistest.Start(t).Addr)
			return env, func(t *testing.T, i *instance) string {
				if i.err != nil {
					return "does not start"
				}
				return metric(pool+" 1")(t, i) + healthy(t, i)
			}
		}, unset: either(prefix == "REDIS", "green", "does not start"), set: pool + " 1green",
			with: map[string]string{"REDIS_URL": "127.0.0.1:1", "REDIS_PERSECOND": either(prefix == "REDIS", "false", "true")}, bad: map[string]string{"http://a:1": "redis"}},
		{name: "TYPE", value: "cluster", prepare: first("cluster", "%s"), unset: "not cluster", set: "cluster"},
		{name: "SOCKET_TYPE", value: "tcp", prepare: func(t *testing.T) (map[string]string, look) {
			r := redistest.Start(t)
			return one(t, r.Socket), func(t *testing.T, i *instance) string {
				if i.err != nil {
					return "does not start"
				}
				return healthy(t, i)
			}
		}, unset: "green", set: "does not start"},
		{name: "AUTH", value: "s3cret", prepare: first("s3cret", "%s"), unset: "not s3cret", set: "s3cret", anything: true},
		{name: "AUTH_FILE", value: password, prepare: first("s3cret", "%s"), unset: "not s3cret", set: "s3cret", with: map[string]string{"REDIS_URL": "127.0.0.1:1"}, bad: map[string]string{"/none": "/none"}},
		{name: "SENTINEL_AUTH", value: "s3cret", prepare: first("s3cret", "primary,%s", "TYPE", "SENTINEL"), unset: "not s3cret", set: "s3cret", anything: true},
		{name: "SHARDED", value: "true", prepare: func(t *testing.T) (map[string]string, look) {
			r := redistest.Start(t)
			return one(t, r.Addr), running(func(t *testing.T, i *instance) string {
				return healthy(t, i) + either(r.Calls(t, "get") >= 32, ", finds out", ", is told")
			})
		}, unset: "green, finds out", set: "green, is told"},
		{name: "POOL_SIZE", shownBy: "TestVariablesOfThePool"},
		{name: "POOL_ON_EMPTY_BEHAVIOR", shownBy: "TestVariablesOfThePool"},
		{name: "TIMEOUT", value: "100ms", prepare: func(t *testing.T) (map[string]string, look) {
			s := startSilent(t)
			return one(t, s.Addr().String(), "AUTH", "x"), running(func(t *testing.T, i *instance) string {
				return either(within(t, i, prefix+"_TIMEOUT", 8*time.Second, 300*time.Millisecond, func() bool { return len(s.left) > 0 }), "gives up", "waits")
			})
		}, unset: "waits", set: "gives up"},
		{name: "TLS", value: "true", prepare: shaken(server), with: map[string]string{"REDIS_TLS_CACERT": ca}, unset: "plain text", set: "encrypted"},
	}
	if prefix == "REDIS" { // both Redis share these
		rows = append(rows, []variable{
			{name: "OP_TIMEOUT", value: "100ms", rules: []string{oneADay}, prepare: func(t *testing.T) (map[string]string, look) {
				// without it the breaker opens after Redis has been silent for a second
				return one(t, startSilent(t).Addr().String()), took(900*time.Millisecond, ask("d", "k", "v"))
			}, unset: "long", set: "short"},
			{name: "TLS_CACERT", value: ca, prepare: shaken(server, "TLS", "true"), unset: "rejects the server's certificate", set: "encrypted", bad: map[string]string{"/none": "/none"}},
			{name: "TLS_CLIENT_CERT", value: cert, prepare: shaken(server, "TLS", "true", "TLS_CACERT", ca, "TLS_CLIENT_KEY", key), unset: "does not start", set: "shows the certificate of counter", bad: map[string]string{"/none": "/none"}},
			{name: "TLS_CLIENT_KEY", value: key, prepare: shaken(server, "TLS", "true", "TLS_CACERT", ca, "TLS_CLIENT_CERT", cert), unset: "does not start", set: "shows the certificate of counter", bad: map[string]string{"/none": "/none"}},
			{name: "TLS_SKIP_HOSTNAME_VERIFICATION", value: "true", prepare: shaken(named, "TLS", "true", "TLS_CACERT", ca), unset: "rejects the server's certificate", set: "encrypted"},
		}...)
	}
	for i := range rows {
		r := &rows[i]
		if r.with == nil {
			r.with = make(map[string]string)
		}
		if len(r.bad) > 0 && r.name != "URL" { // the row with which the bad values are tried
			r.with[prefix+"_URL"] = "127.0.0.1:1"
			r.with["REDIS_URL"] = "127.0.0.1:1"
			r.with["REDIS_PERSECOND"] = either(prefix == "REDIS", "false", "true")
		}
		switch r.name {
		case "TLS_CACERT":
			r.with[prefix+"_TLS"] = "true"
		case "TLS_CLIENT_CERT":
			r.with[prefix+"_TLS"], r.with[prefix+"_TLS_CLIENT_KEY"] = "true", key
		case "TLS_CLIENT_KEY":
			r.with[prefix+"_TLS"], r.with[prefix+"_TLS_CLIENT_CERT"] = "true", cert
		}
		r.name = prefix + "_" + r.name
	}
	return rows
}

func variablesOfStatistics() []variable {
	const hits = "ratelimit.service.rate_limit.d.k.total_hits"
	// sent returns the first line that a daemon receives under a name. Without the variable it may be empty.
	sent := func(name, network, find string, more ...string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			d := listenStatsD(t, network)
			env := map[string]string{"STATSD_HOST": d.host, "STATSD_PORT": d.port, "STATS_FLUSH_INTERVAL": "10ms"}
			for i := 0; i < len(more); i += 2 {
				env[more[i]] = more[i+1]
			}
			return env, func(t *testing.T, i *instance) string {
				if i.err != nil {
					return "does not start"
				}
				answers(ask("d", "k", "v"))(t, i)
				got := "nothing"
				within(t, i, name, patience, 300*time.Millisecond, func() bool {
					for {
						select {
						case line := <-d.lines:
							if strings.HasPrefix(line, find) || strings.HasPrefix(line, hits) {
								line, _, _ = strings.Cut(line, "|e:")
								got, _, _ = strings.Cut(line, "|c:")
								return true
							}
						default:
							return false
						}
					}
				})
				return got
			}
		}
	}
	own := func(path string) look {
		return running(func(t *testing.T, i *instance) string {
			addr := i.svc.Operators.MetricsAddr
			if addr == nil {
				return "no listener"
			}
			_, port, _ := net.SplitHostPort(addr.String())
			code, _ := get(t, "http://127.0.0.1:"+port+path)
			return http.StatusText(code)
		})
	}
	counted := answers(ask("d", "k", "v"))
	mogrified := []string{"USE_DOG_STATSD", "true", "USE_DOG_STATSD_MOGRIFIERS", "FOO", "DOG_STATSD_MOGRIFIER_FOO_PATTERN", `^ratelimit\.service\.rate_limit\.(.*)\.k\.total_hits$`, "DOG_STATSD_MOGRIFIER_FOO_NAME", "hits", "DOG_STATSD_MOGRIFIER_FOO_TAGS", "domain:$1"}
	asMogrified := map[string]string{}
	for i := 0; i < len(mogrified); i += 2 {
		asMogrified[mogrified[i]] = mogrified[i+1]
	}
	return []variable{
		{name: "DISABLE_STATS", value: "true", look: then(counted, metric("ratelimit_service_config_load_success")), unset: "ratelimit_service_config_load_success 1", set: ""},
		{name: "USE_PROMETHEUS", value: "true", with: map[string]string{"PROMETHEUS_ADDR": "127.0.0.1:0"}, look: own("/metrics"), unset: "no listener", set: "OK"},
		{name: "PROMETHEUS_ADDR", value: "127.0.0.1:0", with: map[string]string{"USE_PROMETHEUS": "true"}, look: own("/metrics"), onlySet: true, set: "OK", anything: true},
		{name: "PROMETHEUS_PATH", value: "/own", with: map[string]string{"USE_PROMETHEUS": "true", "PROMETHEUS_ADDR": "127.0.0.1:0"}, look: own("/own"), unset: "Not Found", set: "OK"},
		{name: "PROMETHEUS_MAPPER_YAML", prepare: func(t *testing.T) (map[string]string, look) {
			return map[string]string{"PROMETHEUS_MAPPER_YAML": file(t, "mappings: [{match: ratelimit.service.config_load_success, name: loaded}]")}, metric("loaded")
		}, unset: "", set: "loaded 1", anything: true},
		{name: "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", value: "true", look: then(counted, running(func(t *testing.T, i *instance) string {
			_, body := get(t, i.http()+"/metrics")
			_, after, _ := strings.Cut(body, `ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} `)
			var sum float64
			_, _ = fmt.Sscan(after, &sum)
			// A call takes longer than 10 us and less than 10 s: 0.00001 to 10 in seconds, 0.01 to 10,000 in milliseconds.
			_, after, _ = strings.Cut(body, `ratelimitd_request_duration_seconds_sum{transport="grpc"} `)
			var seconds float64
			_, _ = fmt.Sscan(after, &seconds)
			return either(sum > 100*seconds, "milliseconds", "seconds")
		})), unset: "seconds", set: "milliseconds"},
		{name: "SANITIZE_DESCRIPTOR_METRIC_DOTS", value: "true", rules: []string{"domain: shop.example\ndescriptors:\n  - {key: host, value: a.b, rate_limit: {unit: day, requests_per_unit: 5}}\n"},
			look:  then(answers(ask("shop.example", "host", "a.b")), metric("ratelimit_service_rate_limit_total_hits")),
			unset: `ratelimit_service_rate_limit_total_hits{domain="shop",key1="example",key2="host_a"} 1`, set: `ratelimit_service_rate_limit_total_hits{domain="shop_example",key1="host_a_b"} 1`},
		{name: "USE_STATSD", value: "true", prepare: sent("USE_STATSD", "tcp", hits), unset: "nothing", set: hits + ":1|c"},
		{name: "STATSD_HOST", prepare: sent("STATSD_HOST", "tcp", hits, "USE_STATSD", "true"), onlySet: true, set: hits + ":1|c", anything: true},
		{name: "STATSD_PORT", prepare: sent("STATSD_PORT", "tcp", hits, "USE_STATSD", "true"), unset: "nothing", set: hits + ":1|c"},
		{name: "STATSD_PROTOCOL", value: "udp", prepare: sent("STATSD_PROTOCOL", "udp", hits, "USE_STATSD", "true"), unset: "nothing", set: hits + ":1|c"},
		{name: "STATS_FLUSH_INTERVAL", value: "10ms", prepare: sent("STATS_FLUSH_INTERVAL", "tcp", hits, "USE_STATSD", "true"), unset: "nothing", set: hits + ":1|c"},
		{name: "EXTRA_TAGS", value: "env:prod", look: metric("ratelimit_service_config_load_success"), unset: "ratelimit_service_config_load_success 1", set: `ratelimit_service_config_load_success{env="prod"} 1`, bad: map[string]string{"env": "key:value"}},
		{name: "USE_DOG_STATSD", value: "true", prepare: sent("USE_DOG_STATSD", "udp", hits, "EXTRA_TAGS", "env:prod"), unset: "nothing", set: hits + ":1|c|#env:prod"},
		{name: "USE_DOG_STATSD_MOGRIFIERS", prepare: sent("", "udp", "hits", mogrified...), unset: hits + ":1|c", set: "hits:1|c|#domain:d", with: map[string]string{"USE_DOG_STATSD": "true"}, bad: map[string]string{"BAR": "DOG_STATSD_MOGRIFIER_BAR_PATTERN"}},
		{name: "DOG_STATSD_MOGRIFIER_<name>_PATTERN", value: asMogrified["DOG_STATSD_MOGRIFIER_FOO_PATTERN"], prepare: sent("DOG_STATSD_MOGRIFIER_<name>_PATTERN", "udp", "hits", mogrified...), unset: "does not start", set: "hits:1|c|#domain:d", with: asMogrified, bad: map[string]string{"(": "missing closing )"}},
		{name: "DOG_STATSD_MOGRIFIER_<name>_NAME", value: "hits", prepare: sent("DOG_STATSD_MOGRIFIER_<name>_NAME", "udp", "hits", mogrified...), unset: "does not start", set: "hits:1|c|#domain:d", with: asMogrified, bad: map[string]string{"": "set DOG_STATSD_MOGRIFIER_FOO_PATTERN and"}},
		{name: "DOG_STATSD_MOGRIFIER_<name>_TAGS", value: "domain:$1", prepare: sent("DOG_STATSD_MOGRIFIER_<name>_TAGS", "udp", "hits", mogrified...), unset: "hits:1|c", set: "hits:1|c|#domain:d", with: asMogrified, bad: map[string]string{"domain": "key:value"}},
	}
}

func variablesOfTracing() []variable {
	// traced returns the spans that a collector receives for one call.
	traced := func(protocol string, say func(c *collector) string, more ...string) func(*testing.T) (map[string]string, look) {
		return func(t *testing.T) (map[string]string, look) {
			c := &collector{}
			env := map[string]string{"TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": c.listen(t, protocol)}
			for i := 0; i < len(more); i += 2 {
				env[more[i]] = more[i+1]
			}
			return env, running(func(t *testing.T, i *instance) string {
				answers(ask("d", "k", "v"))(t, i)
				i.stop() // sends the recorded spans
				i.log.Wait(t, "stopped")
				if err := <-i.ended; err != nil {
					t.Error(err)
				}
				return say(c)
			})
		}
	}
	attribute := func(name string) func(*collector) string {
		return func(c *collector) string {
			_, sender := c.got()
			return sender[name]
		}
	}
	spans := func(c *collector) string {
		n, _ := c.got()
		return fmt.Sprintf("%d spans", n)
	}
	return []variable{
		{name: "TRACING_ENABLED", value: "true", prepare: traced("http", spans), unset: "0 spans", set: "1 spans"},
		{name: "TRACING_EXPORTER_PROTOCOL", value: "grpc", prepare: traced("grpc", spans), unset: "0 spans", set: "1 spans"},
		{name: "TRACING_SERVICE_NAME", value: "edge", prepare: traced("http", attribute("service.name")), unset: "RateLimit", set: "edge", anything: true},
		{name: "TRACING_SERVICE_NAMESPACE", value: "prod", prepare: traced("http", attribute("service.namespace")), unset: "", set: "prod", anything: true},
		{name: "TRACING_SERVICE_INSTANCE_ID", value: "one", prepare: traced("http", func(c *collector) string {
			return either(attribute("service.instance.id")(c) == "one", "one", "another")
		}), unset: "another", set: "one", anything: true},
		{name: "TRACING_SAMPLING_RATE", value: "0", prepare: traced("http", spans), unset: "1 spans", set: "0 spans"},
	}
}

func silentVariables() []variable {
	return []variable{
		{name: "RUNTIME_WATCH_ROOT", value: "false", silent: true},
		{name: "RUNTIME_IGNOREDOTFILES", value: "false", silent: true},
		{name: "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", value: "false", silent: true},
		{name: "REDIS_PIPELINE_WINDOW", value: "150us", silent: true},
		{name: "REDIS_PIPELINE_LIMIT", value: "8", silent: true},
		{name: "REDIS_CLUSTER_PIPELINE_PARALLELISM", value: "4", silent: true},
		{name: "REDIS_PERSECOND_PIPELINE_WINDOW", value: "150us", silent: true},
		{name: "REDIS_PERSECOND_PIPELINE_LIMIT", value: "8", silent: true},
		{name: "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", value: "4", silent: true},
		{name: "MEMCACHE_HOST_PORT", value: "memcached:11211", silent: true, anything: true},
		{name: "MEMCACHE_MAX_IDLE_CONNS", value: "5", silent: true},
		{name: "MEMCACHE_SRV", value: "_memcache._tcp.example", silent: true, anything: true},
		{name: "MEMCACHE_SRV_REFRESH", value: "10s", silent: true},
		{name: "MEMCACHE_TLS", value: "true", silent: true},
		{name: "MEMCACHE_TLS_CACERT", value: "ca.pem", silent: true, anything: true},
		{name: "MEMCACHE_TLS_CLIENT_CERT", value: "cert.pem", silent: true, anything: true},
		{name: "MEMCACHE_TLS_CLIENT_KEY", value: "key.pem", silent: true, anything: true},
		{name: "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", value: "true", silent: true},
		{name: "GRPC_SERVER_TLS_CA_CERT", value: "/none.pem", silent: true, anything: true},
	}
}
