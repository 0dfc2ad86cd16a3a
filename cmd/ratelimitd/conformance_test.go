package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/logging"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// group is what the reference answered as one process; testdata/conformance has the recordings.
type group struct {
	Name     string
	Settings map[string]string // its environment
	Cases    []struct {
		Name  string
		Rules string // a rule file
		Steps []struct {
			Request  json.RawMessage
			Response json.RawMessage
			Error    string
			Differs  string // "headers": all but headers is compared; "answer": nothing is
		}
	}
}

// TestConformance replays what the reference was asked, over gRPC, and compares every field of every answer.
func TestConformance(t *testing.T) {
	files, err := filepath.Glob("testdata/conformance/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, backend := range []string{"memory", "redis", "redis-lyft"} {
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var g group
			if err := json.Unmarshal(raw, &g); err != nil {
				t.Fatal(err)
			}
			t.Run(backend+"/"+g.Name, func(t *testing.T) { g.test(t, backend) })
		}
	}
}

// test replays the group. The recordings have no window shorter than a minute: a run over which a minute ends may
// differ, and is run again.
func (g *group) test(t *testing.T, backend string) {
	for try := 1; ; try++ {
		start := time.Now()
		steps, failures := g.replay(t, backend)
		if len(failures) == 0 {
			t.Logf("%d steps agree", steps)
			return
		}
		if start.Truncate(time.Minute).Equal(time.Now().Truncate(time.Minute)) || try == 5 {
			t.Errorf("%d of %d steps differ:\n%s", len(failures), steps, strings.Join(failures[:min(3, len(failures))], "\n"))
			return
		}
	}
}

func (g *group) replay(t *testing.T, backend string) (steps int, failures []string) {
	t.Helper()
	rules := t.TempDir()
	for _, c := range g.Cases {
		if err := os.WriteFile(filepath.Join(rules, c.Name+".yaml"), []byte(c.Rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{}
	for k, v := range g.Settings {
		env[k] = v
	}
	if backend == "redis-lyft" { // the reference's own keys: with them too the answers are its own
		env["REDIS_KEY_FORMAT"] = "lyft"
	}
	if backend != "memory" {
		env["REDIS_URL"] = redistest.Start(t).Addr
		env["REDIS_OP_TIMEOUT"] = "5s"
	}
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, startService(t, env, "--rules", rules).server.GRPCAddr.String()))

	for _, c := range g.Cases {
		for i, s := range c.Steps {
			steps++
			var req ratelimitv3.RateLimitRequest
			if err := protojson.Unmarshal(s.Request, &req); err != nil {
				t.Fatal(err)
			}
			got, err := client.ShouldRateLimit(t.Context(), &req)
			if s.Error != "" {
				if status.Code(err) != codes.InvalidArgument {
					failures = append(failures, fmt.Sprintf("%s step %d: %v, want InvalidArgument", c.Name, i, err))
				}
				continue
			}
			if err != nil {
				failures = append(failures, fmt.Sprintf("%s step %d: %v", c.Name, i, err))
				continue
			}
			var want ratelimitv3.RateLimitResponse
			if err := protojson.Unmarshal(s.Response, &want); err != nil {
				t.Fatal(err)
			}
			if s.Differs == "answer" {
				continue
			}
			if s.Differs == "headers" {
				got.ResponseHeadersToAdd, want.ResponseHeadersToAdd = nil, nil
			}
			if problem := untimed(got); problem != "" {
				failures = append(failures, fmt.Sprintf("%s step %d: %s", c.Name, i, problem))
			}
			if diff := cmp.Diff(&want, got, protocmp.Transform()); diff != "" {
				failures = append(failures, fmt.Sprintf("%s step %d, asked %s:\n%s", c.Name, i, s.Request, diff))
			}
		}
	}
	return steps, failures
}

// untimed takes out of a response what depends on the time of day, as the recordings have it, after looking whether it
// is right.
func untimed(r *ratelimitv3.RateLimitResponse) (problem string) {
	now := time.Now()
	for i, s := range r.GetStatuses() {
		if s.GetDurationUntilReset() == nil {
			continue
		}
		_, end := descriptor.Window{Unit: descriptor.Unit(s.GetCurrentLimit().GetUnit())}.Bounds(now.UnixMicro())
		left := time.UnixMicro(end).Sub(now)
		if off := s.GetDurationUntilReset().AsDuration() - left; off < -2*time.Second || off > 2*time.Second {
			problem = fmt.Sprintf("status %d resets in %s, but its window ends in %s", i, s.GetDurationUntilReset().AsDuration(), left)
		}
		s.GetDurationUntilReset().Seconds, s.GetDurationUntilReset().Nanos = 0, 0
	}
	for _, h := range r.GetResponseHeadersToAdd() {
		if strings.Contains(strings.ToLower(h.GetKey()), "reset") {
			h.Value = ""
		}
	}
	return problem
}

// startService starts the service as its command line would, on free ports, and stops it with the test.
func startService(t *testing.T, env map[string]string, args ...string) *service {
	t.Helper()
	for k, v := range env {
		t.Setenv(k, v)
	}
	var c cli
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"serve", "--grpc-port=0", "--port=0", "--debug-port=0", "--grpc-host=127.0.0.1", "--host=127.0.0.1"}, args...)
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	svc, err := c.Serve.start(t.Context(), slog.New(slog.DiscardHandler), new(logging.Level))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("service stopped with %v", err)
		}
	})
	return svc
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
