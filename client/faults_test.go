package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// faulty is a service whose answers a test chooses.
type faulty struct {
	ratelimitdv1.UnimplementedDecisionServiceServer
	answer func(context.Context, *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error)
}

// DecideBatch implements ratelimitdv1.DecisionServiceServer.
func (f *faulty) DecideBatch(ctx context.Context, r *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error) {
	return f.answer(ctx, r)
}

// serve runs a faulty service until the end of the test; without one (nil) it does not implement DecideBatch.
func serve(t testing.TB, answer func(context.Context, *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error)) (addr string, s *grpc.Server) {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	s = grpc.NewServer()
	if answer != nil {
		ratelimitdv1.RegisterDecisionServiceServer(s, &faulty{answer: answer})
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().String(), s
}

// slow answers after a time, or not at all when the call ends before.
func slow(after time.Duration) func(context.Context, *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error) {
	return func(ctx context.Context, r *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error) {
		select {
		case <-time.After(after):
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		response := &ratelimitdv1.DecideBatchResponse{}
		for range r.GetRequests() {
			response.Responses = append(response.Responses, passes())
		}
		return response, nil
	}
}

// fault is a way in which the service fails. Its function returns the target to dial, and another function that starts
// the fault once the client is connected.
type fault struct {
	name  string
	begin func(t testing.TB) (target string, begin func())
}

var faults = []fault{
	{"nobody listens", func(testing.TB) (string, func()) { return "127.0.0.1:1", func() {} }},
	{"killed", func(t testing.TB) (string, func()) {
		p := start(t)
		return p.GRPC, func() { p.Kill(t) }
	}},
	{"stopped with SIGSTOP", func(t testing.TB) (string, func()) {
		p := start(t)
		t.Cleanup(func() { p.Signal(t, syscall.SIGCONT) })
		return p.GRPC, func() { stop(t, p) }
	}},
	{"slow", func(t testing.TB) (string, func()) {
		addr, _ := serve(t, slow(time.Minute))
		return addr, func() {}
	}},
	{"errors", func(t testing.TB) (string, func()) {
		addr, _ := serve(t, func(context.Context, *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error) {
			return nil, status.Error(codes.ResourceExhausted, "too many calls in flight")
		})
		return addr, func() {}
	}},
	{"accepts and says nothing", func(t testing.TB) (string, func()) {
		l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
		t.Cleanup(func() { l.Close() })
		return l.Addr().String(), func() {}
	}},
}

// stop stops a process with SIGSTOP, and returns when it no longer answers.
func stop(t testing.TB, p *servicetest.Process) {
	t.Helper()
	p.Signal(t, syscall.SIGSTOP)
	c := dial(t, p.GRPC, client.Options{Timeout: time.Second})
	for late := time.After(servicetest.Patience); ; {
		if d, _ := c.Decide(context.Background(), limits.NewRequest("shop", "free", "a")); d.Source == limits.FailOpen {
			return
		}
		select {
		case <-late:
			t.Fatal("a process that is stopped still answers")
		default:
		}
	}
}

// Every call ends near its deadline with the answer that OnFailure names, regardless of the fault.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			target, begin := f.begin(t)
			for mode, want := range map[limits.OnFailure]limits.Source{limits.OnFailureAllow: limits.FailOpen, limits.OnFailureDeny: limits.FailClosed, limits.OnFailureError: limits.Counted} {
				c := dial(t, target, client.Options{OnFailure: mode})
				_, _ = c.Allow(t.Context(), "shop", "free", "x") // has a connection, if there is one
				begin()
				begin = func() {}
				all, errs, took := together(c, 200, func(i int) (context.Context, *limits.Request) {
					return t.Context(), limits.NewRequest("shop", "free", fmt.Sprint(i))
				})
				for i, d := range all {
					if failed := errs[i] != nil; failed != (mode == limits.OnFailureError) || d.Source != want || d.Allowed != (mode == limits.OnFailureAllow) || !failed && d.Err == nil {
						t.Fatalf("%+v %v", d, errs[i])
					}
					if took[i] > 5*time.Second { // the benchmark measures it
						t.Errorf("a call took %s", took[i])
					}
				}
			}
		})
	}
}

// When a message hangs, each of its callers waits only until its deadline.
func TestOwnDeadlineOfAHungMessage(t *testing.T) {
	addr, _ := serve(t, slow(time.Minute))
	c := dial(t, addr, client.Options{Timeout: 10 * time.Second})
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() { _, _ = c.Allow(t.Context(), "d", "k", "v") }) // 10 s
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, _, _ = together(c, 50, func(int) (context.Context, *limits.Request) { return ctx, limits.NewRequest("d", "k", "v") })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("callers with a deadline of 30 ms waited for %s", took)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	group.Wait()
}

// Of two services behind one name, one restarts. No call fails during the restart, and afterwards calls use both
// services again.
func TestRollingRestart(t *testing.T) {
	r := manual.NewBuilderWithScheme("two")
	first, second := start(t), start(t)
	r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: first.GRPC}, {Addr: second.GRPC}}})
	o := patient
	o.DialOptions = []grpc.DialOption{grpc.WithResolvers(r)}
	c := dial(t, "two:///", o)
	ask := func() limits.Decision {
		t.Helper()
		return must[limits.Decision](t)(c.Decide(t.Context(), limits.NewRequest("shop", "many", "a")))
	}
	for range 50 {
		ask()
	}
	first.Stop(t) // sends GOAWAY first, so no call fails
	for range 50 {
		ask()
	}
	startAt(t, first.GRPC)
	// low recognizes answers of the new service, which counts from 0
	low := func(d limits.Decision) bool { return d.Statuses[0].Limit-d.Statuses[0].Remaining < 20 }
	for late := time.After(servicetest.Patience); !low(ask()); {
		select {
		case <-late:
			t.Fatal("the service that started again gets no call")
		default:
		}
	}
}

// startAt starts the service at an address that another one has had.
func startAt(t testing.TB, addr string) *servicetest.Process {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, "GRPC_PORT="+port)
}

// A service that comes back is used again.
func TestServiceComesBack(t *testing.T) {
	p := start(t)
	c := dial(t, p.GRPC, client.Options{Timeout: time.Second})
	ask := func() limits.Source {
		d := must[limits.Decision](t)(c.Decide(t.Context(), limits.NewRequest("shop", "free", "a")))
		return d.Source
	}
	if ask() != limits.Counted {
		t.Fatal("no answer")
	}
	stop(t, p)
	if ask() != limits.FailOpen {
		t.Error("an answer of a service that is stopped")
	}
	p.Signal(t, syscall.SIGCONT)
	for late := time.After(servicetest.Patience); ask() != limits.Counted; {
		select {
		case <-late:
			t.Fatal("the service is not used again")
		default:
		}
	}
}

// A client decides immediately if the deadline of its caller has passed.
func TestDeadlineHasPassed(t *testing.T) {
	c := dial(t, "127.0.0.1:1", client.Options{})
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if d, err := c.Decide(ctx, limits.NewRequest("d", "k", "v")); err != nil || d.Source != limits.FailOpen || !errors.Is(d.Err, context.DeadlineExceeded) {
		t.Errorf("%+v %v", d, err)
	}
}

// BenchmarkOverrun measures by how much calls exceed their deadline of 20 ms when the service fails: 100 callers, each
// with one call after the other. For comparison, "timers" has 100 goroutines that wait for 20 ms and do nothing else.
func BenchmarkOverrun(b *testing.B) {
	b.Run("timers", func(b *testing.B) {
		overruns(b, 20*time.Millisecond, func(*limits.Request) error {
			<-time.After(20 * time.Millisecond)
			return nil
		})
	})
	for _, f := range faults {
		b.Run(f.name, func(b *testing.B) {
			target, begin := f.begin(b)
			const timeout = 20 * time.Millisecond
			c := must[*client.Client](b)(client.New(target, client.Options{Timeout: timeout}))
			defer c.Close()
			_, _ = c.Allow(b.Context(), "shop", "free", "x")
			begin()
			overruns(b, timeout, decide(c))
		})
	}
	b.Run("rolling", func(b *testing.B) {
		r := manual.NewBuilderWithScheme("two")
		first, second := start(b), start(b)
		r.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: first.GRPC}, {Addr: second.GRPC}}})
		const timeout = 20 * time.Millisecond
		c := must[*client.Client](b)(client.New("two:///", client.Options{Timeout: timeout, DialOptions: []grpc.DialOption{grpc.WithResolvers(r)}}))
		defer c.Close()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			overruns(b, timeout, decide(c))
		}()
		for running := true; running; {
			first.Kill(b)
			first = startAt(b, first.GRPC)
			select {
			case <-ended:
				running = false
			case <-time.After(200 * time.Millisecond):
			}
		}
		stats := c.Stats()
		b.ReportMetric(float64(stats.Decisions[limits.FailOpen])*100/float64(stats.Decisions[limits.Counted]+stats.Decisions[limits.FailOpen]), "%failed-open")
	})
}

func decide(c *client.Client) func(*limits.Request) error {
	return func(r *limits.Request) error {
		_, err := c.Decide(context.Background(), r)
		return err
	}
}

// overruns makes b.N calls and reports how much they exceeded their deadline.
func overruns(b *testing.B, timeout time.Duration, call func(*limits.Request) error) {
	b.Helper()
	const callers = 100
	var mu sync.Mutex
	var all []time.Duration
	var group sync.WaitGroup
	b.ResetTimer()
	for i := range callers {
		group.Go(func() {
			r := limits.NewRequest("shop", "free", fmt.Sprint(i))
			var own []time.Duration
			for range b.N/callers + 1 {
				start := time.Now()
				if err := call(r); err != nil {
					b.Error(err)
					return
				}
				own = append(own, max(0, time.Since(start)-timeout))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	group.Wait()
	b.StopTimer()
	slices.Sort(all)
	for _, p := range []int{50, 99} {
		b.ReportMetric(float64(all[len(all)*p/100].Nanoseconds())/1e3, fmt.Sprintf("p%d-us-late", p))
	}
	b.ReportMetric(float64(all[len(all)*999/1000].Nanoseconds())/1e3, "p99.9-us-late")
}
