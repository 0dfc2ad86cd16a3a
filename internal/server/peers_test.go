package server

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotav3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// hostile returns a message for each method for clients, with the largest possible answer for its size. A method
// without one fails TestHostilePeers.
func hostile() map[string]proto.Message {
	long := strings.Repeat("x", 4000)
	batch := &ratelimitdv1.DecideBatchRequest{}
	for range 100 {
		batch.Requests = append(batch.Requests, &ratelimitdv1.DecideRequest{
			Domain: "d", Descriptors: slices.Repeat([]*ratelimitdv1.Descriptor{{Entries: []*ratelimitdv1.Entry{{Key: "k", Value: "v"}}}}, 16),
		})
	}
	decide := &ratelimitv3.RateLimitRequest{Domain: "d", Descriptors: manyDescriptors(256)}
	ask := &reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "envoy.service.ratelimit.v3.RateLimitService"},
	}
	return map[string]proto.Message{
		"envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit":                   decide,
		"ratelimitd.v1.DecisionService/DecideBatch":                                     batch,
		"ratelimitd.v1.ReservationService/Reserve":                                      &ratelimitdv1.ReserveRequest{Domain: "d", Descriptors: []*ratelimitdv1.Descriptor{{Entries: []*ratelimitdv1.Entry{{Key: "k", Value: long}}}}},
		"ratelimitd.v1.ReservationService/Commit":                                       &ratelimitdv1.CommitRequest{Id: long},
		"ratelimitd.v1.ReservationService/Extend":                                       &ratelimitdv1.ExtendRequest{Id: long},
		"kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit":                 decide,
		"kuadrant.service.ratelimit.v1.RateLimitService/Report":                         decide,
		"ratelimitd.v1.ReservationService/Cancel":                                       &ratelimitdv1.CancelRequest{Id: long},
		"kuadrant.service.ratelimit.v1.RateLimitService/Reserve":                        decide,
		"kuadrant.service.ratelimit.v1.RateLimitService/Commit":                         decide,
		"envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas": &quotav3.RateLimitQuotaUsageReports{Domain: "d"},
		"grpc.health.v1.Health/Check":                                                   &healthv1.HealthCheckRequest{Service: "ratelimit"},
		"grpc.health.v1.Health/List":                                                    &healthv1.HealthListRequest{},
		"grpc.health.v1.Health/Watch":                                                   &healthv1.HealthCheckRequest{Service: "ratelimit"},
		"grpc.reflection.v1.ServerReflection/ServerReflectionInfo":                      ask,
		"grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo":                 ask,
	}
}

// manyDescriptors returns descriptors of one entry each.
func manyDescriptors(n int) (all []*descriptorv3.RateLimitDescriptor) {
	for range n {
		all = append(all, smallRequest().GetDescriptors()[0])
	}
	return all
}

// A peer calls a method with a thousand streams on each of several connections, without opening a window for the
// answers and without reading. The memory that the process keeps for it is bounded, and other clients are answered.
func TestHostilePeers(t *testing.T) {
	const connections, streams = 3, 1000
	const most = 160 << 20 // heap size, including the test's own connections
	messagesOf := hostile()
	r := start(t, Options{Reflection: true, Quota: &shares{}})
	var methods []string
	messages := make(map[string]int) // messages on each stream
	for name, service := range r.services.GetServiceInfo() {
		for _, m := range service.Methods {
			methods = append(methods, name+"/"+m.Name)
			if m.IsClientStream {
				messages[name+"/"+m.Name] = 4
			}
		}
	}
	slices.Sort(methods)
	for _, method := range methods {
		message, ok := messagesOf[method]
		if !ok {
			t.Errorf("%s has no row in this test: what can a peer make the process keep with it?", method)
			continue
		}
		t.Run(method, func(t *testing.T) {
			encoded := encode(t, message)
			before := liveHeap()
			var conns []*rawClient
			for range connections {
				c := rawDial(t, r.GRPCAddr)
				conns = append(conns, c)
				_ = c.SetWriteDeadline(time.Now().Add(3 * time.Second)) // the server may stop reading, or close the connection
				if c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) != nil {
					continue
				}
				flood(c, "/"+method, encoded, streams, messages[method])
			}
			for range 20 {
				if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
					t.Fatal("another caller:", err)
				}
			}
			if grown := liveHeap() - before; grown > most {
				t.Errorf("the heap has %d MB more", grown>>20)
			}
			for _, c := range conns {
				_ = c.Close()
			}
			soon(t, "the peer's calls end with its connections", func() bool { return r.calls.InFlight() == 0 && r.long.Open() == 0 })
		})
	}
}

// flood opens streams and sends messages on each, until the server accepts no more: a single message that ends the
// request, or several without an end.
func flood(c *rawClient, path string, message []byte, streams, messages int) {
	for range streams {
		if c.open(path) != nil {
			return
		}
		for range max(messages, 1) {
			if c.send(len(message), message, messages == 0) != nil {
				return
			}
		}
	}
}

func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
