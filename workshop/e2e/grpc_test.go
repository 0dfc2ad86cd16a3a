package e2e

import (
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Clients of a gRPC upstream get a status that they understand, together with our headers.
func TestGRPCClients(t *testing.T) {
	f := startFleet(t, `
domain: e2e
headers: [x-ratelimit, retry-after]
descriptors:
  - {key: method, rate_limit: {unit: day, requests_per_unit: 2}}
`)
	routes := func(of string) string {
		return `
- match: {prefix: /}
  route:
    cluster: upstream
    rate_limits:
    - actions: [{generic_key: {descriptor_key: method, descriptor_value: ` + of + `}}]
`
	}
	e := startEnvoy(t, bootstrap{
		Clusters: []cluster{{Name: "upstream", HTTP2: true, Endpoints: []string{startGRPCUpstream(t)}}, rls(f.services...)},
		Listeners: []listener{
			{Name: "exhausted", Routes: routes("exhausted"), Filter: "rate_limited_as_resource_exhausted: true"},
			{Name: "unavailable", Routes: routes("unavailable")},
		},
	})
	for listener, want := range map[string]codes.Code{"exhausted": codes.ResourceExhausted, "unavailable": codes.Unavailable} {
		t.Run(listener, func(t *testing.T) {
			conn, err := grpc.NewClient(e.ports[listener], grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			client := healthv1.NewHealthClient(conn)
			var got []codes.Code
			var headers, denied metadata.MD
			for range 3 {
				headers, denied = nil, nil
				_, err := client.Check(t.Context(), new(healthv1.HealthCheckRequest), grpc.Header(&headers), grpc.Trailer(&denied))
				got = append(got, status.Code(err))
				if err == nil && len(headers.Get("x-ratelimit-remaining")) != 1 {
					t.Errorf("an answer has the headers %v", headers)
				}
			}
			if !slices.Equal(got, []codes.Code{codes.OK, codes.OK, want}) {
				t.Errorf("got %v", got)
			}
			if !slices.Equal(denied.Get("x-ratelimit-remaining"), []string{"0"}) || len(denied.Get("retry-after")) != 1 {
				t.Errorf("the denial has %v", denied)
			}
		})
	}
	f.agree(t, []*envoy{e}, "exhausted", "unavailable")
}
