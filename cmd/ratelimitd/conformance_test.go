package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/authoring/conform"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// group is a setup of the conformance suite.
type group conform.Setup

// moments are the times at which the recordings are replayed in memory: midday, and a moment at which windows of all units
// except month and year begin.
var moments = map[string]time.Time{
	"midday":            time.Date(2027, time.March, 9, 12, 42, 17, 250_000_000, time.UTC),
	"a week's midnight": time.Date(2027, time.March, 11, 0, 0, 0, 250_000_000, time.UTC),
}

// TestConformance replays the requests recorded from envoyproxy/ratelimit over gRPC, and compares every field of every answer.
func TestConformance(t *testing.T) {
	racetest.Sequential(t)
	setups, err := conform.Setups()
	if err != nil {
		t.Fatal(err)
	}
	for i := range setups {
		g := group(setups[i])
		for name, at := range moments {
			t.Run("memory/"+g.Name+"/"+name, func(t *testing.T) {
				steps, failures, _ := g.replay(t, "memory", at)
				compared(t, steps, failures)
			})
		}
		for _, backend := range []string{"redis", "redis-lyft"} {
			t.Run(backend+"/"+g.Name, func(t *testing.T) { g.now(t, backend) })
		}
	}
}

func compared(t *testing.T, steps int, failures []string) {
	t.Helper()
	if len(failures) > 0 {
		t.Errorf("%d of %d steps differ:\n%s", len(failures), steps, strings.Join(failures[:min(3, len(failures))], "\n"))
		return
	}
	t.Logf("%d steps agree", steps)
}

// now replays the group by Redis' clock. The recordings have no window shorter than a minute. A run that crosses the end of
// a minute may differ, so it is repeated. So is one in which the denial cache was emptied.
func (g *group) now(t *testing.T, backend string) {
	for try := 1; ; try++ {
		start := time.Now()
		steps, failures, forgot := g.replay(t, backend, time.Time{})
		if len(failures) == 0 || !forgot && start.Truncate(time.Minute).Equal(time.Now().Truncate(time.Minute)) || try == 5 {
			compared(t, steps, failures)
			return
		}
	}
}

// stopped decides every request at one fixed time.
type stopped struct {
	*limiter.Limiter
	at time.Time
}

func (s stopped) Start(ctx context.Context, _ time.Time, b *limiter.Batch, req *limiter.Request, d *limiter.Decision, done func(error)) (decided bool, err error) {
	return s.Limiter.Start(ctx, s.at, b, req, d, done)
}

// serveDecider serves this decider over gRPC and returns the address.
func serveDecider(t *testing.T, decider server.Decider) string {
	t.Helper()
	s, err := server.New(server.Options{Decider: decider, Listen: server.Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s.GRPCAddr.String()
}

// replay sends the recorded requests to a service, which decides all of them at one time; the zero time means now. Where
// counters collide, the requests are sent but the answers are not compared: the recordings were made at another time.
// forgot reports whether the denial cache was emptied meanwhile: a replica does that when Redis has not answered for seconds.
func (g *group) replay(t *testing.T, backend string, at time.Time) (steps int, failures []string, forgot bool) {
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
	if backend == "redis-lyft" { // envoyproxy/ratelimit's keys: the answers must be envoyproxy/ratelimit's with them too
		env["REDIS_KEY_FORMAT"] = "lyft"
	}
	if backend != "memory" {
		env["REDIS_URL"] = redistest.Start(t).Addr
		env["REDIS_OP_TIMEOUT"] = "5s"
	}
	svc := startService(t, env, "--rules", rules)
	addr := svc.Server.GRPCAddr.String()
	metric := func(name string) string {
		_, metrics := get(t, "http://"+svc.Server.HTTPAddr.String()+"/metrics")
		_, rest, _ := strings.Cut(metrics, "\n"+name+" ")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	const emptied = `ratelimitd_invalidations_total{event="forgot_all"}`
	if backend != "memory" {
		// When a replica is connected it forgets the denials that it has learnt before.
		await(t, "it hears of other replicas' resets", func() bool { return metric("ratelimitd_invalidations_connected") == "1" })
	}
	before := metric(emptied)
	clock := time.Now
	if !at.IsZero() {
		addr = serveDecider(t, stopped{svc.Limiter, at})
		clock = func() time.Time { return at }
	}
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, addr))
	began := clock()

	for _, c := range g.Cases {
		merged := backend == "redis-lyft" && c.Level == conform.Recorded && c.Collides(began)
		for i := range c.Steps {
			s := &c.Steps[i]
			steps++
			req, err := s.Message()
			if err != nil {
				t.Fatal(err)
			}
			asked := clock()
			got, err := client.ShouldRateLimit(t.Context(), req)
			if s.Error != "" && status.Code(err) != codes.InvalidArgument {
				failures = append(failures, fmt.Sprintf("%s step %d: %v, want InvalidArgument", c.Name, i, err))
			}
			if merged {
				continue
			}
			if difference := s.Difference(got, err, asked, clock()); difference != "" {
				failures = append(failures, fmt.Sprintf("%s step %d, asked %s:\n%s", c.Name, i, s.Request, difference))
			}
		}
	}
	return steps, failures, metric(emptied) != before
}

// startService starts the service on free ports, as its command line does, and stops it at the end of the test.
func startService(t *testing.T, env map[string]string, args ...string) *service.Service {
	t.Helper()
	servicetest.NotAtMidnight()
	for k, v := range env {
		t.Setenv(k, v)
	}
	var c cli
	parser, err := kong.New(&c, packageDefaults)
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"serve", "--grpc-port=0", "--port=0", "--debug-port=0", "--grpc-host=127.0.0.1", "--host=127.0.0.1"}, args...)
	if _, err := parser.Parse(args); err != nil {
		t.Fatal(err)
	}
	svc, err := c.Serve.start(t.Context(), slog.New(slog.DiscardHandler), new(logging.Level), intake.NewBudget(c.Serve.Listen.MaxClientBytes))
	if err != nil {
		t.Fatal(err)
	}
	servicetest.Serve(t, svc.Run)
	return svc
}
