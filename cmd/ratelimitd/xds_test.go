package main

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rulesv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/otlptest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// gateway stands for Envoy Gateway: go-control-plane's server and cache, with snapshots for one node.
type gateway struct {
	t     *testing.T
	addr  string
	node  string
	cache cachev3.SnapshotCache
}

func newGateway(t *testing.T, node string, opts ...grpc.ServerOption) *gateway {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{t, l.Addr().String(), node, cachev3.NewSnapshotCache(false, cachev3.IDHash{}, nil)}
	server := grpc.NewServer(opts...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(context.Background(), g.cache, nil))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("the xDS server: %v", err)
		}
	})
	return g
}

func (g *gateway) set(version string, all ...types.Resource) {
	g.t.Helper()
	snapshot, err := cachev3.NewSnapshot(version, map[resourcev3.Type][]types.Resource{resourcev3.RateLimitConfigType: all})
	if err == nil {
		err = g.cache.SetSnapshot(g.t.Context(), g.node, snapshot)
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// perDay returns a resource in Envoy Gateway's form: a domain for a listener, a route, and a rule of the route.
func perDay(domain string, requests uint32) *rulesv3.RateLimitConfig {
	const route = "httproute/default/shop/rule/0/match/0/*"
	return &rulesv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: []*rulesv3.RateLimitDescriptor{{
		Key: route, Value: route, Descriptors: []*rulesv3.RateLimitDescriptor{{
			Key: "rule-0-match-0", Value: "rule-0-match-0", Descriptors: []*rulesv3.RateLimitDescriptor{{
				Key: "remote_address", RateLimit: &rulesv3.RateLimitPolicy{Unit: rulesv3.RateLimitUnit_DAY, RequestsPerUnit: requests},
			}},
		}},
	}}}
}

// askRoute returns a request that matches such a rule.
func askRoute(domain, address string) *ratelimitv3.RateLimitRequest {
	const route = "httproute/default/shop/rule/0/match/0/*"
	return ask(domain, route, route, "rule-0-match-0", "rule-0-match-0", "remote_address", address)
}

func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); !reached(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s did not come about within %s", what, patience)
		}
	}
}

// The complete environment in which Envoy Gateway starts the service, against the resources that it serves: first no
// snapshot, then rules, then an empty snapshot, with a certificate renewal in between. Only addresses, file paths and
// REDIS_OP_TIMEOUT differ. SSL_CERT_FILE stands for the public authorities of an image.
func TestEnvoyGateway(t *testing.T) {
	ca := tlstest.NewAuthority(t, "envoy-gateway")
	secret := func(name string) map[string][]byte {
		pair := ca.Issue(t, name, "127.0.0.1")
		return map[string][]byte{"ca.crt": ca.PEM, "tls.crt": pair.Cert, "tls.key": pair.Key}
	}
	v := tlstest.NewVolume(t, secret("envoy-ratelimit"))
	redisCA := redistest.NewCA(t)
	redisServer := redistest.StartWith(t, redistest.Setup{TLS: redisCA.Server(redisCA.Issue(t, "127.0.0.1"), true)})
	redisClient := redisCA.Issue(t, "envoy-ratelimit")
	spans := otlptest.Start(t, "http")

	g := newGateway(t, "envoy-ratelimit", grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{ca.Issue(t, "envoy-gateway", "127.0.0.1").TLS(t)},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    ca.Pool(),
	})))
	p := startProcess(t, map[string]string{
		"RUNTIME_ROOT":                       "/data",
		"RUNTIME_SUBDIRECTORY":               "ratelimit",
		"RUNTIME_IGNOREDOTFILES":             "true",
		"RUNTIME_WATCH_ROOT":                 "false",
		"LOG_LEVEL":                          "info",
		"USE_STATSD":                         "false",
		"CONFIG_TYPE":                        "GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_SERVER_URL":         g.addr,
		"CONFIG_GRPC_XDS_NODE_ID":            "envoy-ratelimit",
		"GRPC_SERVER_USE_TLS":                "true",
		"GRPC_SERVER_TLS_CERT":               v.Path("tls.crt"),
		"GRPC_SERVER_TLS_KEY":                v.Path("tls.key"),
		"GRPC_SERVER_TLS_CA_CERT":            v.Path("ca.crt"), // must not make gRPC clients present certificates
		"CONFIG_GRPC_XDS_SERVER_USE_TLS":     "true",
		"CONFIG_GRPC_XDS_CLIENT_TLS_CERT":    v.Path("tls.crt"),
		"CONFIG_GRPC_XDS_CLIENT_TLS_KEY":     v.Path("tls.key"),
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT":  v.Path("ca.crt"),
		"FORCE_START_WITHOUT_INITIAL_CONFIG": "true",
		"REDIS_SOCKET_TYPE":                  "tcp",
		"REDIS_URL":                          redisServer.Addr,
		"REDIS_TLS":                          "true",
		"REDIS_TLS_CLIENT_CERT":              redisClient.Cert,
		"REDIS_TLS_CLIENT_KEY":               redisClient.Key,
		"USE_PROMETHEUS":                     "true",
		"PROMETHEUS_ADDR":                    "127.0.0.1:0",
		// the ConfigMap is optional and does not exist here
		"PROMETHEUS_MAPPER_YAML":      "/etc/statsd-exporter/conf.yaml",
		"TRACING_ENABLED":             "true",
		"TRACING_SERVICE_NAME":        "envoy-ratelimit",
		"TRACING_SERVICE_NAMESPACE":   "envoy-gateway-system",
		"TRACING_SERVICE_INSTANCE_ID": "envoy-ratelimit-7c9d",
		"TRACING_SAMPLING_RATE":       "1.0",
		"OTEL_EXPORTER_OTLP_ENDPOINT": spans.URL,

		"SSL_CERT_FILE":    redisCA.File,
		"REDIS_OP_TIMEOUT": "5s", // the machine may be busy; this test does not measure time
	})
	if line := p.Log.Wait(t, "counting in Redis"); line["address"] != redisServer.Addr || line["key_format"] != "ratelimitd" {
		t.Errorf("logged %v", line)
	}
	p.Log.Wait(t, "listening")
	if said := p.Log.String(); !strings.Contains(said, `"variables":"GRPC_SERVER_TLS_CA_CERT"`) || !strings.Contains(said, "set GRPC_CLIENT_TLS_CACERT") {
		t.Errorf("it does not say that GRPC_SERVER_TLS_CA_CERT has no effect:\n%s", said)
	}
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool()}))))
	const domain = "default/eg/http"
	decide := func(address string) (*ratelimitv3.RateLimitResponse, error) {
		return client.ShouldRateLimit(t.Context(), askRoute(domain, address))
	}
	rlconfig := func() string { _, body := get(t, "http://"+p.Debug+"/rlconfig"); return body }

	// The gateway has no snapshot yet: probes succeed, and clients use their failure mode.
	if code, body := get(t, "http://"+p.HTTP+"/healthcheck"); code != http.StatusOK || body != "OK" {
		t.Errorf("/healthcheck without rules: %d %q", code, body)
	}
	if _, err := decide("10.0.0.1"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no rate limit configuration loaded") {
		t.Errorf("without rules: %v", err)
	}

	today := time.Now().UTC().YearDay()
	g.set("1", perDay(domain, 2), perDay("default/eg/other", 9))
	eventually(t, "the first rules", func() bool { _, err := decide("10.0.0.9"); return err == nil })
	for i, want := range []ratelimitv3.RateLimitResponse_Code{1, 1, 2} {
		got, err := decide("10.0.0.1")
		if err != nil || got.GetOverallCode() != want || got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() != 2 {
			t.Fatalf("request %d: %v %v, want %s of 2 a day", i+1, got, err, want)
		}
	}
	if body := rlconfig(); !strings.Contains(body, "# default/eg/http: loaded since") || !strings.Contains(body, "remote_address: unit=DAY requests_per_unit=2") {
		t.Errorf("/rlconfig:\n%s", body)
	}

	// The monitoring scrapes PROMETHEUS_ADDR, under envoyproxy/ratelimit's names.
	scraped := "http://" + p.Log.Wait(t, "listening")["prometheus"].(string) + "/metrics"
	const keys = `{domain="default/eg/http",key1="httproute/default/shop/rule/0/match/0/*_httproute/default/shop/rule/0/match/0/*",key2="rule-0-match-0_rule-0-match-0"} `
	_, metrics := get(t, scraped)
	for _, want := range []string{
		"ratelimit_service_rate_limit_total_hits" + keys + "4\n", "ratelimit_service_rate_limit_within_limit" + keys + "3\n", "ratelimit_service_rate_limit_over_limit" + keys + "1\n",
		"ratelimit_service_rate_limit_near_limit" + keys + "1\n", `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} `,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} `, "ratelimit_service_config_load_success 1\n",
		"ratelimit_service_config_load_error 0\n", `ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0` + "\n", "ratelimit_redis_pool_cx_active ",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("%s does not have %s:\n%s", scraped, want, metrics)
		}
	}

	// A bad resource keeps its last good version, the others take effect, and the failure is visible.
	bad := perDay("default/eg/other", 9)
	bad.Descriptors[0].Key = ""
	g.set("2", perDay(domain, 3), bad)
	eventually(t, "the rejection", func() bool { return strings.Contains(rlconfig(), "# default/eg/other: stale") })
	if body := rlconfig(); !strings.Contains(body, "#   default/eg/other: descriptors[0]: a descriptor without a `key`") || !strings.Contains(body, "# default/eg/http: loaded") {
		t.Errorf("/rlconfig after a bad set:\n%s", body)
	}
	// they are active a moment after the page shows the rejection
	eventually(t, "the good rules of a bad set", func() bool {
		got, err := decide("10.0.0.5")
		return err == nil && got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 3
	})
	if got, err := client.ShouldRateLimit(t.Context(), askRoute("default/eg/other", "10.0.0.1")); err != nil || got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() != 9 {
		t.Errorf("the last good version of what is bad: %v %v", got, err)
	}
	if _, body := get(t, scraped); !strings.Contains(body, `ratelimitd_rule_file_state{file="default/eg/other",state="stale"} 1`) ||
		!strings.Contains(body, "ratelimitd_xds_connected 1") || strings.Contains(body, "ratelimit_service_config_load_error 0\n") {
		t.Errorf("/metrics does not show the bad set:\n%s", body)
	}

	// The corrected set takes effect, and the counters keep their hits.
	g.set("3", perDay(domain, 4))
	eventually(t, "the mended rules", func() bool {
		got, err := client.ShouldRateLimit(t.Context(), askRoute(domain, "10.0.0.2"))
		return err == nil && got.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 4
	})
	mended, err := decide("10.0.0.1")
	forgotten := mended.GetOverallCode() == ratelimitv3.RateLimitResponse_OK && mended.GetStatuses()[0].GetLimitRemaining() > 0
	if err != nil || forgotten && time.Now().UTC().YearDay() == today { // the next day is another window
		t.Errorf("after the mending the use is forgotten: %v %v", mended, err)
	}

	// The certificate is renewed. The service and its client to the gateway use the same Secret.
	presented := func() string {
		var from peer.Peer
		conn := dial(t, p.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool()})))
		if _, err := ratelimitv3.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), askRoute(domain, "10.0.0.3"), grpc.Peer(&from)); err != nil {
			t.Fatal(err)
		}
		return from.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0].Subject.CommonName
	}
	if got := presented(); got != "envoy-ratelimit" {
		t.Errorf("the certificate is %s's", got)
	}
	v.Swap(t, secret("renewed"))
	eventually(t, "the new certificate", func() bool { return presented() == "renewed" })
	if _, err := decide("10.0.0.4"); err != nil {
		t.Errorf("over a connection from before: %v", err)
	}

	// Deleting a listener leaves an empty snapshot.
	g.set("4")
	eventually(t, "no rules", func() bool {
		got, err := decide("10.0.0.1")
		return err == nil && got.GetOverallCode() == ratelimitv3.RateLimitResponse_OK && got.GetStatuses()[0].GetCurrentLimit() == nil
	})
	if code, _ := get(t, "http://"+p.HTTP+"/healthcheck"); code != http.StatusOK {
		t.Errorf("/healthcheck with an empty snapshot: %d", code)
	}

	// No client sent a trace, and all calls are sampled.
	p.Stop(t) // sends the spans that wait for a batch
	got, sender := spans.Spans()
	if len(got) < 10 || sender["service.name"] != "envoy-ratelimit" || sender["service.namespace"] != "envoy-gateway-system" || sender["service.instance.id"] != "envoy-ratelimit-7c9d" {
		t.Errorf("%d spans of %v", len(got), sender)
	}
}

// explain shows rules over xDS by asking the server that has them. If it reads files instead, it warns that such a
// server reads none.
func TestExplainOverXDS(t *testing.T) {
	g := newGateway(t, "default")
	g.set("1", perDay("shop", 3))
	p := startProcess(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": g.addr})
	p.Log.Wait(t, "active rules")
	const route = "httproute/default/shop/rule/0/match/0/*"
	request := route + "=" + route + ",rule-0-match-0=rule-0-match-0,remote_address=10.0.0.1"
	code, stdout, stderr := asks(t, "explain", "-d", "shop", "--server", p.Debug, request)
	if code != 0 || !strings.Contains(stdout, "3 per day, fixed window") || !strings.Contains(stdout, "shop: descriptors[0].descriptors[0].descriptors[0]") ||
		!strings.Contains(stdout, "rules    from the server "+p.Debug) || !strings.Contains(stderr, "the counters' state is not shown") {
		t.Errorf("%d %s\n%s", code, stderr, stdout)
	}
	root := t.TempDir()
	write(t, root, "config/rules.yaml", strings.ReplaceAll(fiveADay, "domain: d", "domain: shop"))
	t.Setenv("RUNTIME_ROOT", root)
	t.Setenv("CONFIG_TYPE", "GRPC_XDS_SOTW")
	code, stdout, stderr = asks(t, "explain", "-d", "shop", "k=v")
	if code != 0 || !strings.Contains(stdout, "rules    from the files in "+root+"/config") || !strings.Contains(stderr, "such a server reads no rule files; ask it with --server") {
		t.Errorf("%d %s\n%s", code, stderr, stdout)
	}
}

// Without FORCE_START_WITHOUT_INITIAL_CONFIG health is red until the first rules arrive. With
// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED it is red as long as there are no domains.
func TestHealthWithoutRules(t *testing.T) {
	health := func(p *servicetest.Process) int { code, _ := get(t, "http://"+p.HTTP+"/healthcheck"); return code }
	t.Run("xDS", func(t *testing.T) {
		g := newGateway(t, "default")
		p := startProcess(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": g.addr})
		if code := health(p); code != http.StatusInternalServerError {
			t.Errorf("before the first rules: %d", code)
		}
		if code, _ := get(t, "http://"+p.HTTP+"/livez"); code != http.StatusOK {
			t.Errorf("/livez before the first rules: %d", code)
		}
		g.set("1")
		eventually(t, "green health", func() bool { return health(p) == http.StatusOK })
	})
	t.Run("xDS, only bad ones", func(t *testing.T) {
		for force, before := range map[string]int{"false": http.StatusInternalServerError, "true": http.StatusOK} {
			g := newGateway(t, "default")
			p := startProcess(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": g.addr, "FORCE_START_WITHOUT_INITIAL_CONFIG": force})
			if code := health(p); code != before {
				t.Errorf("FORCE_START_WITHOUT_INITIAL_CONFIG=%s, before the first rules: %d, want %d", force, code, before)
			}
			bad := perDay("d", 1)
			bad.Descriptors[0].Key = ""
			g.set("1", bad)
			p.Log.Wait(t, "rules rejected, and no rules are active: requests are answered with UNAVAILABLE")
			eventually(t, "red health", func() bool { return health(p) == http.StatusInternalServerError })
			if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(t.Context(), askRoute("d", "10.0.0.1")); status.Code(err) != codes.Unavailable {
				t.Errorf("a request: %v", err)
			}
			g.set("2", perDay("d", 1))
			eventually(t, "green health", func() bool { return health(p) == http.StatusOK })
		}
	})
	t.Run("xDS, at least one", func(t *testing.T) {
		g := newGateway(t, "default")
		p := startProcess(t, map[string]string{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": g.addr,
			"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"})
		if code := health(p); code != http.StatusInternalServerError {
			t.Errorf("before the first rules: %d", code)
		}
		g.set("1", perDay("d", 1))
		eventually(t, "green health", func() bool { return health(p) == http.StatusOK })
		g.set("2")
		eventually(t, "red health", func() bool { return health(p) == http.StatusInternalServerError })
		if _, err := ratelimitv3.NewRateLimitServiceClient(dial(t, p.GRPC)).ShouldRateLimit(t.Context(), ask("d", "k", "v")); err != nil {
			t.Errorf("with red health: %v", err)
		}
	})
	t.Run("files, at least one", func(t *testing.T) {
		rules := t.TempDir()
		p := startProcess(t, map[string]string{"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED": "true"}, "--rules", rules)
		if code := health(p); code != http.StatusInternalServerError {
			t.Errorf("without a file: %d", code)
		}
		write(t, rules, "one.yaml", fiveADay)
		eventually(t, "green health", func() bool { return health(p) == http.StatusOK })
	})
}
