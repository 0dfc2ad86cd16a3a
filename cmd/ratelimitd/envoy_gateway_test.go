package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// A pod that Envoy Gateway starts while Redis is away: red with Envoy Gateway's environment alone; with what the example
// adds it is green, and limits by its own counters.
func TestEnvoyGatewayExampleWithoutRedis(t *testing.T) {
	text, err := os.ReadFile("../../examples/envoy-gateway/envoy-gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	added := make(map[string]string)
	for _, m := range regexp.MustCompile(`(?m)^ +- name: ([A-Z_]+)\n +value: "?([^"\n]+)"?$`).FindAllSubmatch(text, -1) {
		added[string(m[1])] = string(m[2])
	}
	if len(added) < 3 {
		t.Fatalf("the example sets only %v", added)
	}
	const domain = "default/eg/http"
	for name, c := range map[string]struct {
		added map[string]string
		code  int
	}{
		"Envoy Gateway's own": {nil, http.StatusInternalServerError},
		"the example's":       {added, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := redistest.Start(t)
			r.Kill(t)
			g := newGateway(t, "envoy-ratelimit")
			g.set("1", perHour(domain, 2))
			env := map[string]string{
				"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": g.addr, "CONFIG_GRPC_XDS_NODE_ID": "envoy-ratelimit",
				"FORCE_START_WITHOUT_INITIAL_CONFIG": "true", "USE_STATSD": "false", "REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": r.Addr,
			}
			maps.Copy(env, c.added)
			p := startProcess(t, env)
			p.log.wait(t, "Redis does not answer yet: on_error decides until it does")
			p.log.wait(t, "rule resource loaded")
			if code, body := get(t, "http://"+p.http+"/healthcheck"); code != c.code {
				t.Errorf("/healthcheck: %d %s, want %d", code, body, c.code)
			}
			if c.added == nil {
				return
			}
			client := ratelimitv3.NewRateLimitServiceClient(dial(t, p.grpc))
			var codes []ratelimitv3.RateLimitResponse_Code
			for try := 0; ; try++ { // an hour that ends meanwhile is no mistake
				codes = nil
				began := time.Now().Truncate(time.Hour)
				for range 3 {
					got, err := client.ShouldRateLimit(t.Context(), askRoute(domain, fmt.Sprintf("10.0.0.%d", try)))
					if err != nil {
						t.Fatal(err)
					}
					codes = append(codes, got.GetOverallCode())
				}
				if time.Now().Truncate(time.Hour).Equal(began) {
					break
				}
			}
			const ok, over = ratelimitv3.RateLimitResponse_OK, ratelimitv3.RateLimitResponse_OVER_LIMIT
			if !slices.Equal(codes, []ratelimitv3.RateLimitResponse_Code{ok, ok, over}) {
				t.Errorf("of 2 an hour: %v", codes)
			}
		})
	}
}
