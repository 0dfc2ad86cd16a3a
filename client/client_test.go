package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/redisstore"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// patient are options for tests of answers, which must not fail on a busy machine.
var patient = client.Options{Timeout: servicetest.Patience, OnFailure: limits.OnFailureError}

// dial returns a client that is closed at the end of the test.
func dial(t testing.TB, target string, o client.Options) *client.Client {
	t.Helper()
	c := must[*client.Client](t)(client.New(target, o))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// The real service decides, with all that a decision has.
func TestDecide(t *testing.T) {
	servicetest.NotAtMidnight()
	c := dial(t, start(t, "LIMIT_RESPONSE_HEADERS_ENABLED=true").GRPC, patient)
	r := &limits.Request{Domain: "shop", Descriptors: []limits.Descriptor{
		{Entries: []limits.Entry{{Key: "customer", Value: "ann"}}},
		{Entries: []limits.Entry{{Key: "hundred", Value: "ann"}}, Amount: &limits.Amount{Hits: 7}},
		{Entries: []limits.Entry{{Key: "unknown"}}},
	}}
	d := must[limits.Decision](t)(c.Decide(t.Context(), r))
	if !d.Allowed || d.Source != limits.Counted || d.RetryAfter != 0 || d.Err != nil || len(d.Headers) == 0 || len(d.Statuses) != 3 {
		t.Fatalf("%+v", d)
	}
	if s := d.Statuses[0]; !s.Allowed || s.Rule != "shop.customer" || s.Limit != 2 || s.Remaining != 1 || s.ResetAfter <= 0 || s.Degraded {
		t.Errorf("%+v", s)
	}
	if s := d.Statuses[1]; s.Rule != "shop.hundred" || s.Limit != 100 || s.Remaining != 93 {
		t.Errorf("%+v", s)
	}
	if s := d.Statuses[2]; !s.Allowed || s.Rule != "" || s.Limit != 0 {
		t.Errorf("%+v", s)
	}
	_, _ = c.Decide(t.Context(), r)
	d = must[limits.Decision](t)(c.Decide(t.Context(), r))
	if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter != d.Statuses[0].RetryAfter || d.Statuses[0].Allowed || !d.Statuses[1].Allowed {
		t.Errorf("over the limit: %+v", d)
	}
	if d = must[limits.Decision](t)(c.Decide(t.Context(), r)); d.Allowed || d.Source != limits.DenialCache {
		t.Errorf("again: %+v", d)
	}
	r = limits.NewRequest("shop", "hundred", "bob")
	r.Amount.Hits = 101
	if d = must[limits.Decision](t)(c.Decide(t.Context(), r)); d.Allowed || d.RetryAfter != limits.Never {
		t.Errorf("more than the limit: %+v", d)
	}
	r = limits.NewRequest("shop", "hundred", "eve")
	r.Amount = limits.Amount{Peek: true}
	if d = must[limits.Decision](t)(c.Decide(t.Context(), r)); !d.Allowed || d.Statuses[0].Remaining != 100 {
		t.Errorf("peek: %+v", d)
	}
	r.Amount = limits.Amount{Hits: 1, Units: map[string]uint64{"input": 30, "output": 9}}
	if d = must[limits.Decision](t)(c.Decide(t.Context(), r)); !d.Allowed || d.Statuses[0].Remaining != 60 {
		t.Errorf("units: %+v", d)
	}
}

// A request that cannot be decided is an error under every OnFailure.
func TestInvalid(t *testing.T) {
	service := start(t)
	for _, mode := range []limits.OnFailure{limits.OnFailureAllow, limits.OnFailureDeny, limits.OnFailureError} {
		c := dial(t, service.GRPC, client.Options{Timeout: servicetest.Patience, OnFailure: mode})
		for name, r := range map[string]*limits.Request{
			"no domain":      limits.NewRequest("", "k", "v"),
			"no descriptor":  {Domain: "shop"},
			"not UTF-8":      limits.NewRequest("shop", "k", "\xff"),
			"no value":       limits.NewRequest("shop", "model", "a", "more"),
			"too long":       limits.NewRequest("shop", "k", strings.Repeat("x", 70_000)),
			"much too long":  limits.NewRequest("shop", "k", strings.Repeat("x", 5<<20)),
			"many entries":   limits.NewRequest("shop", make([]string, 2000)...),
			"many descripts": {Domain: "shop", Descriptors: make([]limits.Descriptor, 1000)},
		} {
			d, err := c.Decide(t.Context(), r)
			if !errors.Is(err, limits.ErrInvalid) || d.Allowed {
				t.Errorf("%s: %+v %v", name, d, err)
			}
			if held, err := c.Reserve(t.Context(), r, limits.ReserveOptions{}); !errors.Is(err, limits.ErrInvalid) || held != nil {
				t.Errorf("%s, reserved: %+v %v", name, held, err)
			}
		}
	}
}

// Requests of many concurrent callers are counted once each.
func TestManyCallers(t *testing.T) {
	c := dial(t, start(t).GRPC, patient)
	var allowed atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for i := range 20 {
				d, err := c.Decide(t.Context(), limits.NewRequest("shop", "hundred", fmt.Sprint(i%10)))
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	group.Wait()
	if stats := c.Stats(); allowed.Load() != 1000 || stats.RPCs >= stats.Requests {
		t.Errorf("%d allowed, want 10 times 100; %+v", allowed.Load(), stats)
	}
}

// A program that loops far above its limit is denied by its client, which calls the service rarely.
func TestLoopAboveTheLimit(t *testing.T) {
	service := start(t)
	c := dial(t, service.GRPC, patient)
	denials, allowed := 0, 0
	for began := time.Now(); time.Since(began) < time.Second && denials < 100_000; {
		if ok, err := c.Allow(t.Context(), "shop", "ten", "a"); err != nil {
			t.Fatal(err)
		} else if ok {
			allowed++
		} else {
			denials++
		}
	}
	_, page := servicetest.Get(t, "http://"+service.HTTP+"/metrics")
	asked := 0
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, "ratelimitd_decisions_total{"); ok {
			n := 0
			_, _ = fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &n)
			asked += n
		}
	}
	if asked < allowed || float64(asked-allowed) > 0.1*float64(denials) {
		t.Errorf("the service decided %d requests for %d allowed and %d denied", asked, allowed, denials)
	}
}

// Allow and Wait wait as the service says.
func TestDelays(t *testing.T) {
	c := dial(t, start(t).GRPC, patient)
	began := time.Now()
	for range 11 { // one every 10 ms, up to 50 wait
		if ok, err := c.Allow(t.Context(), "shop", "mail", "a"); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	if took := time.Since(began); took < 90*time.Millisecond {
		t.Errorf("11 leaks of a bucket that leaks 100 a second took %s", took)
	}
	began = time.Now()
	for range 13 { // ten immediately, then one every 100 ms
		if _, err := c.Wait(t.Context(), limits.NewRequest("shop", "ten", "w")); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 250*time.Millisecond {
		t.Errorf("13 requests of a bucket of 10 took %s", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), servicetest.Patience)
	defer cancel()
	_, _ = c.Allow(ctx, "shop", "customer", "w")
	_, _ = c.Allow(ctx, "shop", "customer", "w")
	if time.Now().YearDay() < 365 { // the limit is one of a year
		if _, err := c.Wait(ctx, limits.NewRequest("shop", "customer", "w")); !errors.Is(err, limits.ErrTooLong) {
			t.Error(err)
		}
	}
}

// Reserved hits stay in use until the reservation is committed or cancelled.
func TestReserve(t *testing.T) {
	c := dial(t, start(t).GRPC, patient)
	ctx := t.Context()
	ask := func(hits uint64) *limits.Request {
		r := limits.NewRequest("shop", "model", "a")
		r.Amount.Hits = hits
		return r
	}
	left := func() uint64 {
		t.Helper()
		r := ask(0)
		r.Amount.Peek = true
		return must[limits.Decision](t)(c.Decide(ctx, r)).Statuses[0].Remaining
	}
	held := must[*limits.Reservation](t)(c.Reserve(ctx, ask(800), limits.ReserveOptions{TTL: time.Minute}))
	if !held.Decision.Allowed || held.Reserved != 800 || time.Until(held.Expires) > 2*time.Minute || held.Decision.Statuses[0].Rule != "shop.model" || left() != 200 {
		t.Fatalf("%+v, %d left", held, left())
	}
	other := must[*limits.Reservation](t)(c.Reserve(ctx, ask(300), limits.ReserveOptions{}))
	if other.Decision.Allowed || other.Decision.RetryAfter <= 0 || !other.Expires.IsZero() {
		t.Errorf("%+v", other)
	}
	other = must[*limits.Reservation](t)(c.Reserve(ctx, ask(300), limits.ReserveOptions{MinHits: 100}))
	if !other.Decision.Allowed || other.Reserved != 200 || left() != 0 {
		t.Errorf("%+v, %d left", other, left())
	}
	if err := other.Cancel(ctx); err != nil || left() != 200 {
		t.Errorf("%v, %d left", err, left())
	}
	if before := held.Expires; held.Extend(ctx, 2*time.Minute) != nil || !held.Expires.After(before) {
		t.Errorf("expires %s, then %s", before, held.Expires)
	}
	if err := held.Commit(ctx, limits.Amount{Hits: 50, Units: map[string]uint64{"output": 70}}); err != nil || left() != 880 {
		t.Errorf("%v, %d left", err, left())
	}
	if err := held.Commit(ctx); !errors.Is(err, limits.ErrUnknownReservation) {
		t.Error(err)
	}
	if err := held.Extend(ctx, time.Minute); !errors.Is(err, limits.ErrUnknownReservation) {
		t.Error(err)
	}
	if _, err := c.Reserve(ctx, limits.NewRequest("shop", "customer", "a"), limits.ReserveOptions{}); !errors.Is(err, limits.ErrInvalid) {
		t.Errorf("a rule without reservations: %v", err)
	}
	free := must[*limits.Reservation](t)(c.Reserve(ctx, limits.NewRequest("shop", "unknown", "a"), limits.ReserveOptions{}))
	if !free.Decision.Allowed || free.Commit(ctx) != nil || free.Cancel(ctx) != nil {
		t.Errorf("without a limit: %+v", free)
	}
	if got := c.Stats(); got.Errors != 1 || got.Decisions[limits.Counted] < 6 {
		t.Errorf("%+v", got)
	}
}

// seen is an Observer that keeps the decisions reported to it.
type seen []limits.Decision

// Decided implements limits.Observer.
func (s *seen) Decided(_ context.Context, _ *limits.Request, d *limits.Decision, err error, _ time.Duration) {
	if err != nil {
		d = &limits.Decision{Err: err}
	}
	*s = append(*s, *d)
}

// Whether a client or package ratelimit decides makes no difference: for decisions, for reservations, and for
// observers.
func TestDecidersAgree(t *testing.T) {
	servicetest.NotAtMidnight()
	const text = "headers: [ietf]\n" + rules
	for name, down := range map[string]bool{"memory": false, "Redis does not answer": true} {
		t.Run(name, func(t *testing.T) {
			directory := servicetest.RulesOf(t, text)
			ofClient, ofLibrary := new(seen), new(seen)
			o := ratelimit.Options{Dir: rulefiles.Dir(directory), Observer: ofLibrary, Logger: slog.New(slog.DiscardHandler)}
			var env []string
			if nowhere := filepath.Join(directory, "nowhere"); down {
				o.Store, o.OnFailure = redisstore.New(redisstore.Options{URL: nowhere}), limits.OnFailureDeny
				env = []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + nowhere, "RATELIMITD_ON_ERROR=deny", "RATELIMITD_RESERVATION_KEY=0123456789abcdef"}
			}
			l := must[*ratelimit.Limiter](t)(ratelimit.Open(t.Context(), o))
			t.Cleanup(func() { _ = l.Close() })
			p := patient
			p.Observer, p.MaxDenials = ofClient, -1
			cmd := exec.Command(ratelimitd, "--rules", directory) //nolint:noctx // it ends with the test
			cmd.Env = env
			c := dial(t, servicetest.Start(t, "the service", cmd).GRPC, p)
			for _, d := range []interface {
				limits.Decider
				limits.Reserver
			}{c, l} {
				ask := func(key string, hits uint64) *limits.Request {
					r := limits.NewRequest("shop", key, "a", "with", "two")
					r.Descriptors = append(limits.NewRequest("shop", key, "a").Descriptors, r.Descriptors...)
					r.Amount.Hits = hits
					return r
				}
				for _, hits := range []uint64{0, 1, 1, 2000} {
					_, _ = d.Decide(t.Context(), ask("hundred", hits))
					_, _ = d.Decide(t.Context(), ask("free", hits))
					_, _ = d.Reserve(t.Context(), ask("model", hits), limits.ReserveOptions{})
				}
				_, _ = d.Reserve(t.Context(), limits.NewRequest("shop", "customer", "a"), limits.ReserveOptions{})
			}
			if len(*ofClient) != 13 || len(*ofLibrary) != 13 {
				t.Fatalf("observers saw %d and %d", len(*ofClient), len(*ofLibrary))
			}
			for i, got := range *ofClient {
				if want := (*ofLibrary)[i]; !same(got, want) {
					t.Errorf("%d: the client %+v\nthe library %+v", i, got, want)
				}
				if down && i < 12 && i%3 != 1 && (got.Allowed || got.Source != limits.OnError || !got.Statuses[0].Degraded) {
					t.Errorf("%d: on_error: %+v", i, got)
				}
				if !down && i < 12 && i%3 != 1 && len(got.Headers) == 0 {
					t.Errorf("%d: no headers: %+v", i, got)
				}
			}
		})
	}
}

var number = regexp.MustCompile("t=[0-9]+|^[0-9]+$")

// same reports whether two decisions differ at most in how long their times are.
func same(a, b limits.Decision) bool {
	some := func(d time.Duration) time.Duration { return max(-1, min(d, 1)) }
	for _, d := range []*limits.Decision{&a, &b} {
		d.RetryAfter = some(d.RetryAfter)
		for i := range d.Statuses {
			s := &d.Statuses[i]
			s.ResetAfter, s.RetryAfter = some(s.ResetAfter), some(s.RetryAfter)
		}
		for i := range d.Headers {
			d.Headers[i].Value = number.ReplaceAllString(d.Headers[i].Value, "N")
		}
		if d.Err != nil && !errors.Is(d.Err, limits.ErrInvalid) {
			return false
		}
	}
	bothFail := (a.Err != nil) == (b.Err != nil)
	a.Err, b.Err = nil, nil // the text is of grpc, or of the engine
	return bothFail && fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b)
}

// Nothing is held without a service, and the reservation gives the reason.
func TestReserveWithoutService(t *testing.T) {
	for mode, want := range map[limits.OnFailure]limits.Source{limits.OnFailureAllow: limits.FailOpen, limits.OnFailureDeny: limits.FailClosed} {
		c := dial(t, "unix:"+filepath.Join(t.TempDir(), "nobody"), client.Options{OnFailure: mode})
		held, err := c.Reserve(t.Context(), limits.NewRequest("shop", "model", "a"), limits.ReserveOptions{})
		if err != nil || held.Decision.Source != want || held.Decision.Allowed != (mode == limits.OnFailureAllow) || held.Decision.Err == nil || held.Commit(t.Context()) != nil {
			t.Errorf("%+v %v", held, err)
		}
	}
	c := dial(t, "unix:"+filepath.Join(t.TempDir(), "nobody"), client.Options{OnFailure: limits.OnFailureError})
	if held, err := c.Reserve(t.Context(), limits.NewRequest("shop", "model", "a"), limits.ReserveOptions{}); err == nil || held != nil {
		t.Errorf("%+v %v", held, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Reserve(ctx, limits.NewRequest("shop", "model", "a"), limits.ReserveOptions{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A service over a unix socket, and one whose answers an interceptor sees: DialOptions are used.
func TestDialOptions(t *testing.T) {
	seen := 0
	o := patient
	o.DialOptions = []grpc.DialOption{grpc.WithUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == ratelimitdv1.DecisionService_DecideBatch_FullMethodName {
				seen++
			}
			return next(ctx, method, req, reply, conn, opts...)
		})}
	c := dial(t, start(t).GRPC, o)
	if ok, err := c.Allow(t.Context(), "shop", "customer", "a"); err != nil || !ok || seen != 1 {
		t.Error(ok, err, seen)
	}
	if _, err := client.New("", client.Options{}); err == nil {
		t.Error("a client without a target")
	}
	if _, err := client.New("dns:///\x00", client.Options{}); err == nil {
		t.Error("a client of a name that is none")
	}
}

// A service without DecideBatch is a failure with a reason.
func TestOtherService(t *testing.T) {
	addr, _ := serve(t, nil)
	c := dial(t, addr, client.Options{Timeout: servicetest.Patience})
	if d, err := c.Decide(t.Context(), limits.NewRequest("d", "k", "v")); err != nil || d.Source != limits.FailOpen || status.Code(d.Err) != codes.Unimplemented {
		t.Errorf("%+v %v", d, err)
	}
}

// No goroutine of a client runs after Close, whichever call was in flight.
func TestNoGoroutineIsLeft(t *testing.T) {
	service := start(t)
	hung, _ := serve(t, func(ctx context.Context, _ *ratelimitdv1.DecideBatchRequest) (*ratelimitdv1.DecideBatchResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	before := goleak.IgnoreCurrent()
	for _, target := range []string{service.GRPC, hung, "127.0.0.1:1"} {
		c := must[*client.Client](t)(client.New(target, client.Options{Timeout: time.Minute}))
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() {
				for range 3 {
					_, _ = c.Decide(t.Context(), limits.NewRequest("shop", "free", fmt.Sprint(i)))
				}
			})
		}
		for c.Stats().RPCs < 4 {
			runtime.Gosched()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		group.Wait()
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
