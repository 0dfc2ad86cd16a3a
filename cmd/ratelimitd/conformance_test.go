package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
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

// moments returns the times at which the recordings are replayed: midday on each day of a week, and a moment at which
// windows of all units except month and year start. The recordings have no window shorter than a minute.
func moments() map[string]time.Time {
	all := map[string]time.Time{"a week's midnight": time.Date(2027, time.March, 11, 0, 0, 0, 250_000_000, time.UTC)}
	for day := range 7 {
		at := time.Date(2027, time.March, 7+day, 12, 42, 17, 250_000_000, time.UTC)
		all[at.Weekday().String()] = at
	}
	return all
}

// TestConformance replays the requests recorded from envoyproxy/ratelimit over gRPC, and compares every field of every
// answer. On Thursdays a day and a week start at the same moment, which the keys of envoyproxy/ratelimit cannot tell
// apart.
func TestConformance(t *testing.T) {
	racetest.Sequential(t)
	setups, err := conform.Setups()
	if err != nil {
		t.Fatal(err)
	}
	store, setClock := redistest.StartWithStoppedClock(t, time.Now())
	for name, at := range moments() {
		for i := range setups {
			g := group(setups[i])
			t.Run("memory/"+g.Name+"/"+name, func(t *testing.T) { g.compare(t, at, nil) })
			if at.Weekday() != time.Thursday {
				continue
			}
			setClock(at)
			// envoyproxy/ratelimit's keys: the answers must be its too
			for backend, keys := range map[string]string{"redis": "", "redis-lyft": "lyft"} {
				t.Run(backend+"/"+g.Name+"/"+name, func(t *testing.T) {
					if err := store.Client(t).FlushAll(t.Context()).Err(); err != nil {
						t.Fatal(err)
					}
					g.compare(t, at, map[string]string{"REDIS_URL": store.Addr, "REDIS_OP_TIMEOUT": "5s", "REDIS_KEY_FORMAT": keys})
				})
			}
		}
	}
}

// compare replays the group. A run in which the denial cache was emptied may differ, so it is repeated.
func (g *group) compare(t *testing.T, at time.Time, env map[string]string) {
	for try := 1; ; try++ {
		failures, forgot := g.replay(t, at, env)
		switch {
		case len(failures) == 0:
			return
		case !forgot || try == 5:
			t.Errorf("%d of %d cases differ:\n%s", len(failures), len(g.Cases), strings.Join(failures[:min(3, len(failures))], "\n"))
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

// replay sends the recorded requests to a service, which decides all of them at one time. forgot reports whether the
// denial cache was emptied in between: a replica does that when Redis has not answered for seconds.
func (g *group) replay(t *testing.T, at time.Time, env map[string]string) (failures []string, forgot bool) {
	t.Helper()
	rules := t.TempDir()
	for _, c := range g.Cases {
		if err := os.WriteFile(filepath.Join(rules, c.Name+".yaml"), []byte(c.Rules), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all := maps.Clone(g.Settings)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, env)
	svc := startService(t, all, "--rules", rules)
	metric := func(name string) string {
		_, metrics := get(t, "http://"+svc.Server.HTTPAddr.String()+"/metrics")
		_, rest, _ := strings.Cut(metrics, "\n"+name+" ")
		value, _, _ := strings.Cut(rest, "\n")
		return value
	}
	const emptied = `ratelimitd_invalidations_total{event="forgot_all"}`
	if env != nil {
		// A replica drops its denials when it connects.
		await(t, "it hears of other replicas' resets", func() bool { return metric("ratelimitd_invalidations_connected") == "1" })
	}
	before := metric(emptied)
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, serveDecider(t, stopped{svc.Limiter, at})))
	ask := func(ctx context.Context, request *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		answer, err := client.ShouldRateLimit(ctx, request)
		if err != nil && status.Code(err) != codes.InvalidArgument {
			failures = append(failures, fmt.Sprintf("%v, want InvalidArgument", err))
		}
		return answer, err
	}
	for i := range g.Cases {
		r := g.Cases[i].Replay(t.Context(), ask, func() time.Time { return at })
		if r.Failure != "" {
			failures = append(failures, fmt.Sprintf("%s step %d, asked %s:\n%s", g.Cases[i].Name, r.Step, r.Request, r.Failure))
		}
	}
	return failures, metric(emptied) != before
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
