package client_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// A denial is used again until the request would pass, with the times of now. Once a second the service is asked.
func TestDenialIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ends := start.Add(2500 * time.Millisecond)
		s := &service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse {
			if left := time.Until(ends); left > 0 {
				return denied(left)
			}
			return passes()
		}}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		r := limits.NewRequest("d", "k", "v")
		for range 24 { // every 100 ms
			d := must[limits.Decision](t)(c.Decide(t.Context(), r))
			if d.Allowed || d.RetryAfter != time.Until(ends) || d.Statuses[0].RetryAfter != d.RetryAfter || d.Statuses[0].Rule != "d.k" {
				t.Fatalf("after %s: %+v", time.Since(start), d)
			}
			if d.Headers[0] != (limits.Header{Name: "x-rule", Value: "k"}) || d.Err != nil {
				t.Errorf("%+v", d)
			}
			if d.Source == limits.DenialCache { // the caller may change its answer
				d.Statuses[0].Rule, d.Headers[0].Value = "changed", "changed"
			}
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual
		}
		if n := len(s.calls()); n != 3 {
			t.Errorf("%d calls in 2.4 s, want one a second", n)
		}
		time.Sleep(time.Until(ends)) //nolint:forbidigo // virtual
		if d := must[limits.Decision](t)(c.Decide(t.Context(), r)); !d.Allowed || d.Source != limits.Counted {
			t.Errorf("when its time is over: %+v", d)
		}
		if got := c.Stats(); got.Decisions[limits.Counted] != 4 || got.Decisions[limits.DenialCache] != 21 || got.RPCs != 4 || got.Requests != 4 {
			t.Errorf("%+v", got)
		}
	})
}

// Whole seconds are rounded up, as in the answers of the service.
func TestResetOfDenial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client.NewWithConn(&service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse { return denied(time.Minute) }}, client.Options{})
		defer c.Close()
		for _, want := range []time.Duration{60, 60, 60, 60, 60, 60, 60, 60, 60, 60} {
			if d, _ := c.Decide(t.Context(), limits.NewRequest("d", "k", "v")); d.Statuses[0].ResetAfter != want*time.Second {
				t.Errorf("%+v", d.Statuses)
			}
			time.Sleep(99 * time.Millisecond) //nolint:forbidigo // virtual
		}
	})
}

// Once a second one call asks the service. The others in between are denied immediately.
func TestOneCallerAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse { return denied(time.Hour) }}
		c := client.NewWithConn(s, client.Options{Timeout: 10 * time.Second})
		defer c.Close()
		r := limits.NewRequest("d", "k", "v")
		_, _ = c.Decide(t.Context(), r)
		time.Sleep(time.Second) //nolint:forbidigo // virtual
		s.takes = 900 * time.Millisecond
		s.decide = nil // an operator has raised the limit
		var asked, local atomic.Int32
		began := time.Now()
		var group sync.WaitGroup
		for range 100 {
			group.Go(func() {
				switch d, err := c.Decide(t.Context(), r); {
				case err != nil:
					t.Error(err)
				case d.Source == limits.DenialCache && time.Since(began) == 0:
					local.Add(1)
				case d.Allowed:
					asked.Add(1)
				}
			})
		}
		group.Wait()
		if asked.Load() != 1 || local.Load() != 99 {
			t.Errorf("%d asked, %d were denied at once", asked.Load(), local.Load())
		}
		if d, err := c.Decide(t.Context(), r); err != nil || !d.Allowed {
			t.Errorf("after the limit is raised: %+v %v", d, err)
		}
	})
}

// If the service does not answer, a denied request stays denied until the denial ends.
func TestDenialWithoutService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse { return denied(5 * time.Second) }}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		start := time.Now()
		r := limits.NewRequest("d", "k", "v")
		_, _ = c.Decide(t.Context(), r)
		s.takes = time.Hour
		for time.Since(start) < 4900*time.Millisecond {
			if d, err := c.Decide(t.Context(), r); err != nil || d.Allowed || d.Source != limits.DenialCache {
				t.Fatalf("after %s: %+v %v", time.Since(start), d, err)
			}
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // virtual
		}
		if n := len(s.calls()); n > 5 {
			t.Errorf("%d calls in 5 s", n)
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual
		if d, err := c.Decide(t.Context(), r); err != nil || !d.Allowed || d.Source != limits.FailOpen {
			t.Errorf("%+v %v", d, err)
		}
	})
}

// A request that no wait helps is remembered too, and asked about again.
func TestNeverIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse { return denied(-1) }}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		for range 31 {
			if d, err := c.Decide(t.Context(), limits.NewRequest("d", "k", "v")); err != nil || d.Allowed || d.RetryAfter != limits.Never || d.Statuses[0].RetryAfter != limits.Never {
				t.Fatalf("%+v %v", d, err)
			}
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual
		}
		if n := len(s.calls()); n != 4 {
			t.Errorf("%d calls in 3 s", n)
		}
	})
}

// Only denials that the counters made are remembered, and only for the same request.
func TestWhatIsNotRemembered(t *testing.T) {
	degraded := denied(time.Hour)
	degraded.Statuses[0].Degraded = true
	twice := func(t *testing.T, answer *ratelimitdv1.DecideResponse, o client.Options, first, second *limits.Request) {
		t.Helper()
		s := &service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse { return answer }}
		c := client.NewWithConn(s, o)
		defer c.Close()
		for _, r := range []*limits.Request{first, second} {
			if _, err := c.Decide(t.Context(), r); err != nil {
				t.Error(err)
			}
		}
		if n := len(s.calls()); n != 2 {
			t.Errorf("%d calls", n)
		}
	}
	r := func(hits uint64) *limits.Request {
		r := limits.NewRequest("d", "k", "v")
		r.Amount.Hits = hits
		return r
	}
	large := limits.NewRequest("d", "k", fmt.Sprintf("%01100d", 0))
	for name, test := range map[string]func(*testing.T){
		"passes":     func(t *testing.T) { twice(t, passes(), client.Options{}, r(1), r(1)) },
		"on_error":   func(t *testing.T) { twice(t, degraded, client.Options{}, r(1), r(1)) },
		"no time":    func(t *testing.T) { twice(t, denied(0), client.Options{}, r(1), r(1)) },
		"turned off": func(t *testing.T) { twice(t, denied(time.Hour), client.Options{MaxDenials: -1}, r(1), r(1)) },
		"fewer hits": func(t *testing.T) { twice(t, denied(time.Hour), client.Options{}, r(3), r(2)) },
		"large":      func(t *testing.T) { twice(t, denied(time.Hour), client.Options{}, large, large) },
		"other domain": func(t *testing.T) {
			twice(t, denied(time.Hour), client.Options{}, r(1), limits.NewRequest("e", "k", "v"))
		},
		"failure": func(t *testing.T) {
			s := &service{reject: func([]*ratelimitdv1.DecideRequest) error { return status.Error(codes.Unavailable, "gone") }}
			c := client.NewWithConn(s, client.Options{OnFailure: limits.OnFailureDeny})
			defer c.Close()
			for range 2 {
				if d, err := c.Decide(t.Context(), r(1)); err != nil || d.Source != limits.FailClosed {
					t.Errorf("%+v %v", d, err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
	}
}

// Beyond the bound a denial replaces one whose time is over sooner.
func TestDenialsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{decide: func(r *ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse {
			if value(r) == "long" {
				return denied(time.Hour)
			}
			return denied(time.Minute)
		}}
		c := client.NewWithConn(s, client.Options{MaxDenials: 4})
		defer c.Close()
		ask := func(v string) limits.Source {
			d := must[limits.Decision](t)(c.Decide(t.Context(), limits.NewRequest("d", "k", v)))
			return d.Source
		}
		ask("long")
		for i := range 1000 {
			if ask(fmt.Sprint(i)) != limits.Counted {
				t.Fatal(i)
			}
			if ask(fmt.Sprint(i)) != limits.DenialCache {
				t.Fatalf("%d is not remembered", i)
			}
		}
		if ask("long") != limits.DenialCache {
			t.Error("the longest denial was replaced")
		}
		known := 0
		for i := range 1000 {
			if i < 990 { // a denial that is not known replaces one
				continue
			}
			if s := ask(fmt.Sprint(i)); s == limits.DenialCache {
				known++
			}
		}
		if known > 3 {
			t.Errorf("%d others are known", known)
		}
	})
}

// Asking at 100 times the limit costs less than one call of the service for ten denials, regardless of the window.
func TestCallsPerDenial(t *testing.T) {
	// a token comes
	for _, every := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			next := time.Now()
			s := &service{decide: func(*ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse {
				if wait := time.Until(next); wait > 0 {
					return denied(wait)
				}
				next = time.Now().Add(every)
				return passes()
			}}
			c := client.NewWithConn(s, client.Options{})
			defer c.Close()
			denials, allowed := 0, 0
			for range 10_000 {
				if ok, err := c.Allow(t.Context(), "d", "k", "v"); err != nil {
					t.Fatal(err)
				} else if ok {
					allowed++
				} else {
					denials++
				}
				time.Sleep(every / 100) //nolint:forbidigo // virtual
			}
			if costs := len(s.calls()) - allowed; allowed != 100 || float64(costs) > 0.1*float64(denials) {
				t.Errorf("every %s: %d allowed, %d denials cost %d calls", every, allowed, denials, costs)
			}
		})
	}
}

// An observer sees every decision with its source, and errors.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: 3 * time.Millisecond, decide: func(r *ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse {
			if value(r) == "bad" {
				return &ratelimitdv1.DecideResponse{Error: &ratelimitdv1.DecideError{Code: int32(codes.InvalidArgument), Message: "bad"}}
			}
			return denied(time.Hour)
		}}
		var o observer
		c := client.NewWithConn(s, client.Options{Observer: &o})
		defer c.Close()
		for _, v := range []string{"v", "v", "bad"} {
			_, _ = c.Allow(t.Context(), "d", "k", v)
		}
		want := observer{"v counted <nil> 3ms", "v denial_cache <nil> 0s", "bad counted invalid request: bad 3ms"}
		if fmt.Sprint(o) != fmt.Sprint(want) {
			t.Errorf("%q", o)
		}
		if got := c.Stats(); got.Errors != 1 {
			t.Errorf("%+v", got)
		}
	})
}

type observer []string

// Decided implements limits.Observer.
func (o *observer) Decided(_ context.Context, r *limits.Request, d *limits.Decision, err error, took time.Duration) {
	*o = append(*o, fmt.Sprint(r.Descriptors[0].Entries[0].Value, " ", d.Source, " ", err, " ", took))
}
