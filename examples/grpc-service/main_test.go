package main

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
)

// The service asks a real ratelimitd. A client without interceptors is denied, and this one waits.
func TestService(t *testing.T) {
	program := filepath.Join(t.TempDir(), "ratelimitd")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../cmd/ratelimitd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program, "--rules", "rules", "--grpc-port", "0", "--port", "0", "--debug-port", "0") //nolint:noctx // it ends with the test
	ratelimitd := servicetest.Start(t, "ratelimitd", cmd)

	limiter, err := client.New(ratelimitd.GRPC, client.Options{Timeout: 20 * time.Second, OnFailure: limits.OnFailureError})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newServer(limiter)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	plain := healthpb.NewHealthClient(servicetest.Dial(t, listener.Addr().String()))
	ctx := metadata.AppendToOutgoingContext(servicetest.Within(t), "x-api-key", "bob")
	denied := 0
	for range 50 { // much faster than 5 a second
		switch _, err := plain.Check(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) {
		case codes.OK:
		case codes.ResourceExhausted:
			denied++
		default:
			t.Fatal(err)
		}
	}
	if denied == 0 {
		t.Error("50 calls at once passed a limit of 5 a second")
	}

	start := time.Now()
	if err := call(t.Context(), listener.Addr().String(), 10); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took < 900*time.Millisecond { // 5 immediately, then one every 200 ms
		t.Errorf("10 calls took %s", took)
	}
}

// The service ends when it is asked to, and passes calls while ratelimitd does not answer.
func TestServe(t *testing.T) {
	listen := redistest.FreeAddr(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, listen, "127.0.0.1:1") }()
	service := healthpb.NewHealthClient(servicetest.Dial(t, listen))
	if _, err := service.Check(servicetest.Within(t), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
