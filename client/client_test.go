package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
	"github.com/ratelimitd/ratelimitd/internal/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
)

var built string // the folder of the service; empty: no test has needed it

// program builds the service once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "ratelimitd")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "ratelimitd")
	if out, err := exec.Command("go", "build", "-o", path, "../cmd/ratelimitd").CombinedOutput(); err != nil { //nolint:noctx // it is not part of one test
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

const rules = `
domain: api
descriptors:
  - key: customer
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: few
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: slow
    rate_limit: {unit: second, requests_per_unit: 20, algorithm: leaky_bucket, burst: 5}
  - key: steady
    rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 1}
  - key: rare
    rate_limit: {unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 1}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100}
    reservations: {ttl: 1m}
`

// service starts a service that counts in memory.
func service(t testing.TB) *servicetest.Process {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	servicetest.NotAtMidnight()
	cmd := exec.Command(path, "--rules", filepath.Dir(file), "--grpc-port", "0", "--port", "0", "--debug-port", "0") //nolint:noctx // it ends with the test
	cmd.Env = append(os.Environ(), "RATELIMITD_RESPONSE_HEADERS=ietf")
	return servicetest.Start(t, "the service", cmd)
}

// dial returns a client that is patient, unless the test says otherwise.
func dial(t testing.TB, target string, o client.Options) *client.Client {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	c, err := client.New(target, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// pause stops a process, and returns when all of it stands still.
func pause(t *testing.T, p *servicetest.Process) {
	t.Helper()
	p.Signal(t, syscall.SIGSTOP)
	redistest.Eventually(t, "the process to stand still", func(context.Context) error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Cmd.Process.Pid))
		for _, name := range threads {
			stat, readErr := os.ReadFile(name)
			if readErr == nil && !strings.Contains(string(stat), ") T ") {
				err = fmt.Errorf("%s", stat)
			}
		}
		return err
	})
}

func TestDecide(t *testing.T) {
	c := dial(t, service(t).GRPC, client.Options{OnFailure: client.ReturnError})
	r := limits.New("api", "customer", "a")
	r.Descriptors = append(r.Descriptors, limits.Descriptor{
		Entries: []limits.Entry{{Key: "few", Value: "x"}}, Amount: &limits.Amount{Hits: 2},
	}, limits.Descriptor{Entries: []limits.Entry{{Key: "unknown"}}})
	d, err := c.Decide(t.Context(), r)
	if err != nil || !d.Allowed || d.Source != limits.Counted || len(d.Statuses) != 3 || len(d.Headers) == 0 {
		t.Fatalf("%+v %v", d, err)
	}
	if s := d.Statuses[0]; !s.Allowed || s.Rule != "api.customer" || s.Limit != 1000 || s.Remaining != 999 || s.ResetAfter <= 0 {
		t.Errorf("%+v", s)
	}
	for _, source := range []limits.Source{limits.Counted, limits.DenialCache} {
		d, err = c.Decide(t.Context(), r)
		if err != nil || d.Allowed || d.Source != source || !d.Statuses[0].Allowed || d.Statuses[1].Allowed || d.RetryAfter < time.Minute || len(d.Headers) == 0 {
			t.Fatalf("%+v %v", d, err)
		}
	}
	peek := limits.New("api", "few", "x")
	peek.Amount.Peek = true
	for range 2 {
		if d, err = c.Decide(t.Context(), peek); err != nil || d.Source != limits.Counted || d.Statuses[0].Remaining != 0 {
			t.Errorf("%+v %v", d, err)
		}
	}
	large := limits.New("api", "customer", "a")
	large.Amount.Hits = 1001
	if d, err = c.Decide(t.Context(), large); err != nil || d.Allowed || d.RetryAfter != limits.Never {
		t.Errorf("%+v %v", d, err)
	}
	for _, r := range []*limits.Request{{}, {Domain: "api"}} {
		if _, err := c.Decide(t.Context(), r); !errors.Is(err, limits.ErrInvalid) {
			t.Error(err)
		}
	}
	s := c.Stats()
	if s.Decisions[limits.Counted] != 5 || s.Decisions[limits.DenialCache] != 1 || s.Errors != 2 || s.Requests != 7 || s.Calls != 7 {
		t.Errorf("%+v", s)
	}
}

func TestAllowAndWait(t *testing.T) {
	c := dial(t, service(t).GRPC, client.Options{OnFailure: client.ReturnError})
	for i := range 4 {
		if ok, err := c.Allow(t.Context(), "api", "few", "y"); err != nil || ok != (i < 2) {
			t.Errorf("%d: %v %v", i, ok, err)
		}
	}
	start := time.Now()
	for range 3 {
		if d, err := c.Wait(t.Context(), limits.New("api", "slow", "w")); err != nil || !d.Allowed {
			t.Errorf("%+v %v", d, err)
		}
	}
	for range 3 {
		if d, err := c.Wait(t.Context(), limits.New("api", "steady", "w")); err != nil || !d.Allowed {
			t.Errorf("%+v %v", d, err)
		}
	}
	if took := time.Since(start); took < 110*time.Millisecond {
		t.Errorf("three requests of one every 50 ms, and three of one every 10 ms, took %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Wait(ctx, limits.New("api", "few", "y")); !errors.Is(err, limits.ErrTooLong) {
		t.Error(err)
	}
}

func TestReserve(t *testing.T) {
	c := dial(t, service(t).GRPC, client.Options{OnFailure: client.ReturnError})
	ctx := t.Context()
	ask := func(hits uint64) *limits.Request {
		r := limits.New("api", "tokens", "a")
		r.Amount = limits.Amount{Hits: hits, Peek: hits == 0}
		return r
	}
	left := func() uint64 {
		t.Helper()
		d, err := c.Decide(ctx, ask(0))
		if err != nil {
			t.Fatal(err)
		}
		return d.Statuses[0].Remaining
	}
	first, err := c.Reserve(ctx, ask(80), limits.ReserveOptions{TTL: 30 * time.Second})
	if err != nil || !first.Decision.Allowed || first.Reserved != 80 || left() != 20 {
		t.Fatalf("%+v %v, %d left", first, err, left())
	}
	if r, err := c.Reserve(ctx, ask(30), limits.ReserveOptions{}); err != nil || r.Decision.Allowed || !r.Expires.IsZero() {
		t.Errorf("%+v %v", r, err)
	}
	part, err := c.Reserve(ctx, ask(30), limits.ReserveOptions{MinHits: 10})
	if err != nil || part.Reserved != 20 || left() != 0 {
		t.Errorf("%+v %v, %d left", part, err, left())
	}
	before := first.Expires
	if err := first.Extend(ctx, time.Minute); err != nil || !first.Expires.After(before) {
		t.Errorf("%v: %s, before %s", err, first.Expires, before)
	}
	if err := errors.Join(part.Cancel(ctx), first.Commit(ctx, limits.Amount{Hits: 5})); err != nil || left() != 95 {
		t.Errorf("%v, %d left", err, left())
	}
	if err := first.Commit(ctx); !errors.Is(err, limits.ErrUnknownReservation) {
		t.Error(err)
	}
	if _, err := c.Reserve(ctx, limits.New("api", "few", "z"), limits.ReserveOptions{}); !errors.Is(err, limits.ErrInvalid) {
		t.Error(err)
	}
}

// A limit is exact for many goroutines, whose requests share calls.
func TestBatches(t *testing.T) {
	c := dial(t, service(t).GRPC, client.Options{OnFailure: client.ReturnError, MaxDenials: -1})
	var allowed atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 50 {
				d, err := c.Decide(t.Context(), limits.New("api", "customer", "shared"))
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					allowed.Add(1)
				}
			}
			if _, err := c.Decide(t.Context(), &limits.Request{}); !errors.Is(err, limits.ErrInvalid) { // beside good ones
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	all.Wait()
	if allowed.Load() != 1000 {
		t.Errorf("%d of 3200 requests passed a limit of 1000", allowed.Load())
	}
	if s := c.Stats(); s.Requests != 64*51 || s.Calls > s.Requests/2 {
		t.Errorf("%+v", s)
	}
}

// A caller that asks a hundred times as often as its limit allows costs the service less than a tenth of a call for each refusal.
func TestDenialsCostLittle(t *testing.T) {
	c := dial(t, service(t).GRPC, client.Options{OnFailure: client.ReturnError})
	allowed, refused := uint64(0), uint64(0)
	for allowed < 3 || refused < 100*allowed {
		ok, err := c.Allow(t.Context(), "api", "rare", "loop")
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			allowed++
		} else {
			refused++
		}
	}
	s := c.Stats()
	t.Logf("%d calls; %d requests were allowed and %d refused, %d of them without a call", s.Calls, allowed, refused, s.Decisions[limits.DenialCache])
	if s.Calls*10 > refused {
		t.Errorf("%d calls for %d refusals", s.Calls, refused)
	}
}

// Without an answer in time the client answers as it was told to.
func TestNoAnswer(t *testing.T) {
	for _, how := range []string{"killed", "hangs"} {
		t.Run(how, func(t *testing.T) {
			p := service(t)
			for _, mode := range []client.OnFailure{client.FailOpen, client.FailClosed, client.ReturnError} {
				c := dial(t, p.GRPC, client.Options{OnFailure: mode})
				if ok, err := c.Allow(t.Context(), "api", "customer", "before"); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			if how == "killed" {
				p.Kill(t)
			} else {
				pause(t, p)
				defer p.Signal(t, syscall.SIGCONT)
			}
			for _, mode := range []client.OnFailure{client.FailOpen, client.FailClosed, client.ReturnError} {
				c := dial(t, p.GRPC, client.Options{OnFailure: mode, Timeout: 20 * time.Millisecond})
				var all sync.WaitGroup
				for range 16 {
					all.Go(func() {
						for range 5 {
							start := time.Now()
							d, err := c.Decide(t.Context(), limits.New("api", "customer", "a"))
							if took := time.Since(start); took > 10*time.Second {
								t.Errorf("it took %s", took)
							}
							switch {
							case mode == client.ReturnError && err != nil:
							case mode == client.FailOpen && err == nil && d.Allowed && d.Source == limits.FailOpen && d.Err != nil:
							case mode == client.FailClosed && err == nil && !d.Allowed && d.Source == limits.FailClosed && d.Err != nil:
							default:
								t.Errorf("mode %d: %+v %v", mode, d, err)
							}
							held, err := c.Reserve(t.Context(), limits.New("api", "tokens", "a"), limits.ReserveOptions{})
							if (err != nil) != (mode == client.ReturnError) || err == nil && (held.Decision.Allowed != (mode == client.FailOpen) || held.Commit(t.Context()) != nil) {
								t.Errorf("mode %d: %+v %v", mode, held, err)
							}
						}
					})
				}
				all.Wait()
			}
		})
	}
}

// No goroutine is left after Close, also not of requests without an answer.
func TestClose(t *testing.T) {
	p := service(t)
	before := runtime.NumGoroutine()
	c, err := client.New(p.GRPC, client.Options{Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := c.Allow(t.Context(), "api", "customer", "a"); !ok || err != nil {
		t.Fatal(ok, err)
	}
	pause(t, p)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if d, err := c.Decide(t.Context(), limits.New("api", "customer", "a")); err != nil || d.Source != limits.FailOpen {
				t.Errorf("%+v %v", d, err)
			}
		})
	}
	redistest.Eventually(t, "the requests", func(context.Context) error {
		if s := c.Stats(); s.Requests < 21 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	all.Wait()
	if d, err := c.Decide(t.Context(), limits.New("api", "customer", "a")); err != nil || d.Source != limits.FailOpen {
		t.Errorf("%+v %v", d, err)
	}
	p.Signal(t, syscall.SIGCONT)
	redistest.Eventually(t, "the end of goroutines", func(context.Context) error {
		if n := runtime.NumGoroutine(); n > before {
			stacks := make([]byte, 1<<20)
			return fmt.Errorf("%d goroutines, %d before:\n%s", n, before, stacks[:runtime.Stack(stacks, true)])
		}
		return nil
	})
}

// What only the service needs is not imported.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const module = "github.com/ratelimitd/ratelimitd/"
	for path := range strings.FieldsSeq(string(out)) {
		first, _, _ := strings.Cut(path, "/")
		switch {
		case !strings.Contains(first, "."), strings.HasPrefix(path, "google.golang.org/"), strings.HasPrefix(path, "golang.org/x/"):
		case path == module+"client", path == module+"limits", path == module+"proto/ratelimitd/v1":
		default:
			t.Errorf("it imports %s", path)
		}
	}
}
