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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// group holds recorded answers of one reference process. The recordings are in testdata/conformance.
type group struct {
	Name     string
	Settings map[string]string // its environment
	Cases    []recording
}

type recording struct {
	Name  string
	Rules string // a rule file
	Steps []struct {
		Request  json.RawMessage
		Response json.RawMessage
		Error    string
		Differs  string // "headers": the headers are not compared; "answer": nothing is compared
	}
}

// units returns the units of the limits in the reference's answers.
func (r *recording) units(t *testing.T) map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool {
	t.Helper()
	all := make(map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool)
	for _, s := range r.Steps {
		var answer ratelimitv3.RateLimitResponse
		if s.Error != "" {
			continue
		}
		if err := protojson.Unmarshal(s.Response, &answer); err != nil {
			t.Fatal(err)
		}
		for _, status := range answer.GetStatuses() {
			if status.GetCurrentLimit() != nil {
				all[status.GetCurrentLimit().GetUnit()] = true
			}
		}
	}
	return all
}

// moments are the times at which the recordings are replayed in memory: midday, and a moment at which windows of all units
// except month and year begin.
var moments = map[string]time.Time{
	"midday":            time.Date(2027, time.March, 9, 12, 42, 17, 250_000_000, time.UTC),
	"a week's midnight": time.Date(2027, time.March, 11, 0, 0, 0, 250_000_000, time.UTC),
}

// TestConformance replays the requests recorded from the reference over gRPC, and compares every field of every answer.
func TestConformance(t *testing.T) {
	racetest.Sequential(t)
	files, err := filepath.Glob("testdata/conformance/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var g group
		if err := json.Unmarshal(raw, &g); err != nil {
			t.Fatal(err)
		}
		for name, at := range moments {
			t.Run("memory/"+g.Name+"/"+name, func(t *testing.T) {
				steps, failures := g.replay(t, "memory", at)
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
// a minute may differ, so it is repeated.
func (g *group) now(t *testing.T, backend string) {
	for try := 1; ; try++ {
		start := time.Now()
		steps, failures := g.replay(t, backend, time.Time{})
		if len(failures) == 0 || start.Truncate(time.Minute).Equal(time.Now().Truncate(time.Minute)) || try == 5 {
			compared(t, steps, failures)
			return
		}
	}
}

// collide reports whether the windows of two of these units begin at the same moment. The reference's key holds that moment
// and no unit, so such windows share a counter: an hour and a day in the first hour of a day, a day and a week on a Thursday.
func collide(units map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool, at time.Time) bool {
	starts := make(map[int64]bool)
	for unit := range units {
		start, _ := descriptor.Window{Unit: descriptor.Unit(unit)}.Bounds(at.UnixMicro())
		if starts[start] {
			return true
		}
		starts[start] = true
	}
	return false
}

func TestCollide(t *testing.T) {
	const minute, hour, day, week = ratelimitv3.RateLimitResponse_RateLimit_MINUTE, ratelimitv3.RateLimitResponse_RateLimit_HOUR, ratelimitv3.RateLimitResponse_RateLimit_DAY, ratelimitv3.RateLimitResponse_RateLimit_WEEK
	for _, c := range []struct {
		at    string
		units []ratelimitv3.RateLimitResponse_RateLimit_Unit
		want  bool
	}{
		{"2027-03-09T12:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{minute, hour, day, week}, false},
		{"2027-03-09T00:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{hour, day}, true},
		{"2027-03-09T00:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{minute, day, week}, false},
		{"2027-03-09T12:00:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{minute, hour}, true},
		{"2027-03-11T12:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{hour, day, week}, true},
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		units := make(map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool)
		for _, unit := range c.units {
			units[unit] = true
		}
		if got := collide(units, at); got != c.want {
			t.Errorf("%s, %v: %t", c.at, c.units, got)
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
func (g *group) replay(t *testing.T, backend string, at time.Time) (steps int, failures []string) {
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
	if backend == "redis-lyft" { // the reference's keys: the answers must be the reference's with them too
		env["REDIS_KEY_FORMAT"] = "lyft"
	}
	if backend != "memory" {
		env["REDIS_URL"] = redistest.Start(t).Addr
		env["REDIS_OP_TIMEOUT"] = "5s"
	}
	svc := startService(t, env, "--rules", rules)
	addr := svc.server.GRPCAddr.String()
	if backend != "memory" {
		// When a process is connected it forgets the refusals that it has learnt before.
		await(t, "it hears of other processes' resets", func() bool {
			_, metrics := get(t, "http://"+svc.server.HTTPAddr.String()+"/metrics")
			return strings.Contains(metrics, "\nratelimitd_invalidations_connected 1\n")
		})
	}
	clock := time.Now
	if !at.IsZero() {
		addr = serveDecider(t, stopped{svc.limiter, at})
		clock = func() time.Time { return at }
	}
	client := ratelimitv3.NewRateLimitServiceClient(dial(t, addr))
	began := clock()

	for _, c := range g.Cases {
		merged := backend == "redis-lyft" && collide(c.units(t), began)
		for i, s := range c.Steps {
			steps++
			var req ratelimitv3.RateLimitRequest
			if err := protojson.Unmarshal(s.Request, &req); err != nil {
				t.Fatal(err)
			}
			asked := clock()
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
			if s.Differs == "answer" || merged {
				continue
			}
			if s.Differs == "headers" {
				got.ResponseHeadersToAdd, want.ResponseHeadersToAdd = nil, nil
			}
			if problem := untimed(got, asked, clock()); problem != "" {
				failures = append(failures, fmt.Sprintf("%s step %d: %s", c.Name, i, problem))
			}
			if diff := cmp.Diff(&want, got, protocmp.Transform()); diff != "" {
				failures = append(failures, fmt.Sprintf("%s step %d, asked %s:\n%s", c.Name, i, s.Request, diff))
			}
		}
	}
	return steps, failures
}

// untimed removes what depends on the time of day from a response, as the recordings do. First it checks that these values
// are right for an answer given between from and to.
func untimed(r *ratelimitv3.RateLimitResponse, from, to time.Time) (problem string) {
	const rounded = time.Second
	for i, s := range r.GetStatuses() {
		if s.GetDurationUntilReset() == nil {
			continue
		}
		_, micros := descriptor.Window{Unit: descriptor.Unit(s.GetCurrentLimit().GetUnit())}.Bounds(from.UnixMicro())
		end, left := time.UnixMicro(micros), s.GetDurationUntilReset().AsDuration()
		if from.Add(left).After(end.Add(rounded)) || to.Add(left).Before(end.Add(-rounded)) {
			problem = fmt.Sprintf("status %d resets in %s, but its window ends %s after the request was sent", i, left, end.Sub(from))
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

// startService starts the service on free ports, as its command line does, and stops it at the end of the test.
func startService(t *testing.T, env map[string]string, args ...string) *service {
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
	svc, err := c.Serve.start(t.Context(), slog.New(slog.DiscardHandler), new(logging.Level))
	if err != nil {
		t.Fatal(err)
	}
	servicetest.Serve(t, svc.run)
	return svc
}
