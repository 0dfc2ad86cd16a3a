package server

import (
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

var allNames = []string{"", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"}

func TestHealthAgreesEverywhere(t *testing.T) {
	r := start(t, Options{})
	client := healthv1.NewHealthClient(r.conn)
	for _, serving := range []bool{true, false, true} {
		r.SetServing(serving)
		wantStatus, wantHealth, wantBody, wantReady := healthv1.HealthCheckResponse_SERVING, 200, "OK", 200
		if !serving {
			wantStatus, wantHealth, wantBody, wantReady = healthv1.HealthCheckResponse_NOT_SERVING, 500, "not ready: starting", 503
		}
		for _, name := range allNames {
			resp, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: name})
			if err != nil || resp.GetStatus() != wantStatus {
				t.Errorf("serving %v, service %q: %v, %v", serving, name, resp.GetStatus(), err)
			}
		}
		if code, body := get(t, r.HTTPAddr, "/healthcheck"); code != wantHealth || body != wantBody {
			t.Errorf("serving %v, /healthcheck: %d %q", serving, code, body)
		}
		if code, _ := get(t, r.HTTPAddr, "/readyz"); code != wantReady {
			t.Errorf("serving %v, /readyz: %d", serving, code)
		}
		if code, _ := get(t, r.HTTPAddr, "/livez"); code != http.StatusOK {
			t.Errorf("serving %v, /livez: %d", serving, code)
		}
	}
	if _, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown service: %v", err)
	}
}

// If health is red, its text lists all missing conditions.
func TestHealthSaysWhatIsMissing(t *testing.T) {
	r := start(t, Options{})
	r.SetMissing("no rules", true)
	r.SetMissing("no answer from Redis", true)
	for path, want := range map[string]int{"/healthcheck": 500, "/readyz": 503} {
		if code, body := get(t, r.HTTPAddr, path); code != want || body != "not ready: no rules; no answer from Redis" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
}

// While a condition is missing, health is red everywhere. It is green when none is missing and requests are wanted.
func TestHealthOfWhatIsMissing(t *testing.T) {
	r := start(t, Options{})
	client := healthv1.NewHealthClient(r.conn)
	r.SetServing(true)
	for i, step := range []struct {
		do    func()
		green bool
	}{
		{func() {}, true},
		{func() { r.SetMissing("redis", true) }, false},
		{func() { r.SetMissing("redis", true) }, false},
		{func() { r.SetServing(true) }, false},
		{func() { r.SetMissing("rules", true) }, false},
		{func() { r.SetMissing("redis", false) }, false},
		{func() { r.SetMissing("rules", false) }, true},
		{func() { r.SetServing(false) }, false},
		{func() { r.SetMissing("redis", false) }, false},
		{func() { r.SetServing(true) }, true},
	} {
		step.do()
		code, _ := get(t, r.HTTPAddr, "/healthcheck")
		ready, _ := get(t, r.HTTPAddr, "/readyz")
		if (code == 200) != step.green || (ready == 200) != step.green {
			t.Errorf("step %d: /healthcheck %d, /readyz %d, green is %v", i, code, ready, step.green)
		}
		for _, name := range allNames {
			resp, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: name})
			if err != nil || (resp.GetStatus() == healthv1.HealthCheckResponse_SERVING) != step.green {
				t.Errorf("step %d, service %q: %v %v, green is %v", i, name, resp.GetStatus(), err, step.green)
			}
		}
		if code, _ := get(t, r.HTTPAddr, "/livez"); code != 200 {
			t.Errorf("step %d: /livez %d", i, code)
		}
	}
}

func TestHealthIsRedUntilServing(t *testing.T) {
	s, err := New(Options{Decider: decider(passAll), Listen: anyPorts})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range allNames {
		resp, err := s.readiness.grpc.Check(within(t), &healthv1.HealthCheckRequest{Service: name})
		if err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("service %q: %v, %v", name, resp.GetStatus(), err)
		}
	}
	if s.readiness.red() == "" {
		t.Error("HTTP health is green")
	}
}

func TestHealthWatch(t *testing.T) {
	r := startWith(t, endpoint.Options{StopTimeout: 3 * patience}, Options{})
	watch, err := healthv1.NewHealthClient(r.conn).Watch(within(t), &healthv1.HealthCheckRequest{Service: "ratelimit"})
	if err != nil {
		t.Fatal(err)
	}
	for _, serving := range []bool{true, false, true} {
		r.SetServing(serving)
		want := healthv1.HealthCheckResponse_NOT_SERVING
		if serving {
			want = healthv1.HealthCheckResponse_SERVING
		}
		if m, err := watch.Recv(); err != nil || m.GetStatus() != want {
			t.Fatalf("serving %v: %v, %v", serving, m.GetStatus(), err)
		}
	}
	r.stop()
	if _, err := watch.Recv(); err != nil && status.Code(err) != codes.Canceled {
		t.Errorf("Watch ended with %v", err)
	}
	select {
	case err := <-r.done:
		if err != nil {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a watcher holds the stop up")
	}
}

// The name in a watch may be as long as a message, and a few bytes if compressed. It is not kept.
func TestHealthWatchOfLongName(t *testing.T) {
	registry := prometheus.NewRegistry()
	r := startWith(t, endpoint.Options{Metrics: registry, Budget: intake.NewBudget(64 << 20)}, Options{Connections: Connections{MaxBytes: 8 << 20}})
	if st := checkHealth(t, r.conn, strings.Repeat("a", 5<<20)); st.Code() != codes.ResourceExhausted || !strings.Contains(st.Message(), "larger than max") {
		t.Error("a name that is too long:", st)
	}
	if st := checkHealth(t, r.conn, strings.Repeat("a", 3<<20)); st.Code() != codes.NotFound {
		t.Error("an unknown name:", st)
	}
	name := strings.Repeat("a", 3<<20)
	watch := func() error {
		stream, err := healthv1.NewHealthClient(r.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: name}, grpc.UseCompressor(gzip.Name))
		if err != nil {
			return err
		}
		m, err := stream.Recv()
		if err == nil && m.GetStatus() != healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Error(m)
		}
		return err
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 2 {
		if err := watch(); err != nil {
			t.Fatal(i, err)
		}
	}
	for i := range 8 {
		if err := watch(); err != nil {
			t.Fatal(i, err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 10<<20 {
		t.Errorf("%d bytes are kept for ten watches", kept)
	}
	if n := gathered(t, registry)[`ratelimitd_client_bytes{class=grpc}`]; n > 1<<20 {
		t.Errorf("%v bytes count as held", n)
	}
}

func checkHealth(t *testing.T, conn *grpc.ClientConn, service string) *status.Status {
	t.Helper()
	_, err := healthv1.NewHealthClient(conn).Check(within(t), &healthv1.HealthCheckRequest{Service: service}, grpc.UseCompressor(gzip.Name))
	return status.Convert(err)
}

// reflected is a stream on which a server is asked for its services.
type reflected struct {
	t      *testing.T
	stream reflectionv1.ServerReflection_ServerReflectionInfoClient
}

func reflect(t *testing.T, conn *grpc.ClientConn) *reflected {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return &reflected{t, stream}
}

func (r *reflected) ask(req *reflectionv1.ServerReflectionRequest) *reflectionv1.ServerReflectionResponse {
	r.t.Helper()
	if err := r.stream.Send(req); err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

func (r *reflected) services() []string {
	r.t.Helper()
	var listed []string
	for _, s := range r.ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}).GetListServicesResponse().GetService() {
		listed = append(listed, s.GetName())
	}
	slices.Sort(listed)
	return listed
}

// describes asks for the file of a symbol.
func (r *reflected) describes(symbol string) {
	r.t.Helper()
	files := r.ask(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: symbol},
	}).GetFileDescriptorResponse().GetFileDescriptorProto()
	if len(files) == 0 {
		r.t.Errorf("no file has %s", symbol)
		return
	}
	var file descriptorpb.FileDescriptorProto
	if err := proto.Unmarshal(files[0], &file); err != nil || len(file.GetService()) != 1 {
		r.t.Errorf("the file of %s: %v, %v", symbol, file.GetName(), err)
	}
}

func (r *reflected) close() {
	r.t.Helper()
	if err := r.stream.CloseSend(); err != nil {
		r.t.Fatal(err)
	}
}

var services = []string{
	"envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health",
	"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection",
	"kuadrant.service.ratelimit.v1.RateLimitService", "ratelimitd.v1.DecisionService", "ratelimitd.v1.ReservationService",
}

func TestReflection(t *testing.T) {
	r := start(t, Options{Reflection: true})
	asked := reflect(t, r.conn)
	if got := asked.services(); !slices.Equal(got, services) {
		t.Errorf("services %q", got)
	}
	asked.describes("envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit")
	asked.describes("ratelimitd.v1.DecisionService.DecideBatch")
	asked.describes("ratelimitd.v1.ReservationService.Extend")
	asked.describes("kuadrant.service.ratelimit.v1.RateLimitService.Commit")
	asked.close()

	alpha, err := reflectionv1alpha.NewServerReflectionClient(r.conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	//nolint:staticcheck // deprecated, but older clients use it
	if err := alpha.Send(&reflectionv1alpha.ServerReflectionRequest{MessageRequest: &reflectionv1alpha.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	//nolint:staticcheck // likewise
	if resp, err := alpha.Recv(); err != nil || len(resp.GetListServicesResponse().GetService()) != len(services) {
		t.Errorf("v1alpha: %v, %v", resp, err)
	}
	if err := alpha.CloseSend(); err != nil {
		t.Fatal(err)
	}
}
