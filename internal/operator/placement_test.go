package operator

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Pages and services share the admin port.
func TestServicesOnTheDebugPort(t *testing.T) {
	r := start(t, Options{Rules: Rules{Files: func() []descriptor.FileStatus { return []descriptor.FileStatus{{Name: "a.yaml"}} }}})
	list := &adminv1.ListRuleFilesRequest{}
	if resp, err := adminv1.NewAdminServiceClient(r.admin).ListRuleFiles(within(t), list); err != nil || len(resp.GetFiles()) != 1 {
		t.Errorf("on the debug listener: %v, %v", resp, err)
	}

	want := []string{"grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection", "ratelimitd.admin.v1.AdminService", "ratelimitd.admin.v1.CounterService", "ratelimitd.admin.v1.FleetService", "ratelimitd.admin.v1.OverrideService", "ratelimitd.admin.v1.UsageService"}
	stream, got := reflected(t, r.admin)
	if !slices.Equal(got, want) {
		t.Errorf("services %q", got)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if code, body := get(t, r.DebugAddr, "/"); code != 200 || !strings.Contains(body, "ratelimitd.admin.v1.AdminService") {
		t.Errorf("the index: %d %s", code, body)
	}

	// HTTP/2 that is not gRPC gets the pages too.
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://" + r.DebugAddr.String() + "/stats")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Errorf("/stats over HTTP/2: %s %s", resp.Proto, resp.Status)
	}
}

// An open stream, for example of reflection, does not prevent a stop: it is cut off like a call that takes too long.
func TestStopEndsAdminStreams(t *testing.T) {
	r := startWith(t, endpoint.Options{StopTimeout: 1}, Options{})
	stream, _ := reflected(t, r.admin)
	r.stop()
	if err := <-r.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if _, err := stream.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

// Passwords may be given as flags.
func TestDebugDoesNotShowTheCommandLine(t *testing.T) {
	r := start(t, Options{})
	if _, body := get(t, r.DebugAddr, "/debug/pprof/cmdline"); strings.Contains(body, "-test.") || body == "" {
		t.Errorf("it shows %q", body)
	}
}
