package gate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/middleware/internal/gate"
)

func TestValue(t *testing.T) {
	long := strings.Repeat("a", gate.MaxValue)
	for _, same := range []string{"", "ann", "ünï", long} {
		if got := gate.Value(same); got != same {
			t.Errorf("%q became %q", same, got)
		}
	}
	seen := make(map[string]bool)
	for _, v := range []string{long + "a", long + "b", "\xff", "a\xff"} {
		got := gate.Value(v)
		if len(got) != len("sha256:")+24 || seen[got] {
			t.Errorf("%q became %q", v, got)
		}
		seen[got] = true
	}
}

func TestHeaders(t *testing.T) {
	one := []limits.Status{{Allowed: true, Limit: 10, Remaining: 4, ResetAfter: 1500 * time.Millisecond}}
	for _, c := range []struct {
		name string
		d    limits.Decision
		made bool
		want string
	}{
		{"allowed", limits.Decision{Allowed: true, Statuses: one}, false, "[]"},
		{"allowed, made", limits.Decision{Allowed: true, Statuses: one}, true, "[{RateLimit-Limit 10} {RateLimit-Remaining 4} {RateLimit-Reset 2}]"},
		{"a bucket that holds more than its limit", limits.Decision{Allowed: true, Statuses: []limits.Status{{Allowed: true, Limit: 10, Remaining: 99}}},
			true, "[{RateLimit-Limit 10} {RateLimit-Remaining 10} {RateLimit-Reset 0}]"},
		{"no limit", limits.Decision{Allowed: true, Statuses: []limits.Status{{Allowed: true}}}, true, "[]"},
		{"the least left", limits.Decision{Allowed: true, Statuses: []limits.Status{{Allowed: true}, {Allowed: true, Limit: 9, Remaining: 3}, {Allowed: true, Limit: 8, Remaining: 2}, {Allowed: true, Limit: 7, Remaining: 2}}},
			true, "[{RateLimit-Limit 8} {RateLimit-Remaining 2} {RateLimit-Reset 0}]"},
		{"denied", limits.Decision{RetryAfter: time.Second + 1, Statuses: []limits.Status{{Limit: 5, Remaining: 1, ResetAfter: time.Minute}, {Allowed: true, Limit: 9}}},
			true, "[{RateLimit-Limit 5} {RateLimit-Remaining 1} {RateLimit-Reset 60} {Retry-After 2}]"},
		{"less than a second", limits.Decision{RetryAfter: time.Millisecond}, false, "[{Retry-After 1}]"},
		{"never", limits.Decision{RetryAfter: limits.Never}, true, "[]"},
		{"not known", limits.Decision{Source: limits.FailClosed}, true, "[]"},
		{"of the rules", limits.Decision{RetryAfter: time.Second, Statuses: one, Headers: []limits.Header{{Name: "x-left", Value: "4"}}},
			true, "[{x-left 4} {Retry-After 1}]"},
		{"of the rules, with retry-after", limits.Decision{RetryAfter: time.Second, Headers: []limits.Header{{Name: "retry-after", Value: "7"}}}, true, "[{retry-after 7}]"},
		{"a delay, which is over", limits.Decision{Allowed: true, Headers: []limits.Header{{Name: "x-ratelimit-delay-ms", Value: "40"}}}, false, "[]"},
	} {
		if got := fmt.Sprint(gate.Headers(&c.d, c.made)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Waits last for at least the server's time, and differ.
func TestWaits(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 100 {
		w := gate.Waits{Attempts: 2, Left: time.Minute}
		first, ok := w.Next(t.Context(), time.Second)
		if !ok || first < time.Second || first >= time.Second+250*time.Millisecond {
			t.Fatalf("the first wait is %s %v", first, ok)
		}
		second, ok := w.Next(t.Context(), 0)
		if !ok || second >= 500*time.Millisecond {
			t.Fatalf("the second wait is %s %v", second, ok)
		}
		if third, ok := w.Next(t.Context(), 0); ok {
			t.Fatalf("there is a third wait of %s", third)
		}
		if w.Left != time.Minute-first-second {
			t.Fatalf("%s are left", w.Left)
		}
		seen[first] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d of 100 waits differ", len(seen))
	}
}

func TestWaitsAreBounded(t *testing.T) {
	w := gate.Waits{Attempts: 100, Left: 10 * time.Second}
	if wait, ok := w.Next(t.Context(), 10*time.Second); ok {
		t.Errorf("waits %s", wait)
	}
	if wait, ok := w.Next(t.Context(), 10*time.Second-1); !ok || wait != 10*time.Second-1 {
		t.Errorf("waits %s %v", wait, ok)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w := gate.Waits{Attempts: 1000, Left: time.Hour}
		if wait, ok := w.Next(ctx, 1001*time.Millisecond); ok {
			t.Errorf("waits %s, beyond the deadline", wait)
		}
		for range 100 {
			if wait, ok := w.Next(ctx, 900*time.Millisecond); !ok || wait > 950*time.Millisecond {
				t.Fatalf("waits %s %v although there is time", wait, ok)
			}
		}
	})
}

// decider returns its fields as the answer.
type decider struct {
	answer limits.Decision
	err    error
}

func (d *decider) Decide(context.Context, *limits.Request) (limits.Decision, error) {
	return d.answer, d.err
}

func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		g := &gate.Gate{Decider: &decider{answer: limits.Decision{Allowed: true, Delay: 3 * time.Second}}}
		if held, err := g.Ask(t.Context(), limits.NewRequest("d")); err != nil || !held.Decision.Allowed || time.Since(start) != 3*time.Second {
			t.Errorf("%+v %v after %s", held, err, time.Since(start))
		}
		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		held, err := g.Ask(ctx, limits.NewRequest("d"))
		if err != nil || held.Decision.Allowed || held.Decision.RetryAfter != 3*time.Second || time.Since(start) != 0 {
			t.Errorf("a turn after the deadline: %+v %v after %s", held, err, time.Since(start))
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := g.Ask(ctx, limits.NewRequest("d")); !errors.Is(err, context.Canceled) {
			t.Errorf("the client went away: %v", err)
		}
	})
}

func TestNoDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		g := &gate.Gate{Decider: &decider{err: errors.New("no Redis")}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		for range 5 {
			held, err := g.Ask(t.Context(), limits.NewRequest("d"))
			if err != nil || !held.Decision.Allowed || held.Decision.Source != limits.FailOpen || held.Decision.Err == nil {
				t.Fatalf("%+v %v", held, err)
			}
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines for 5 failures in one second:\n%s", n, log.String())
		}
		_ = limits.Sleep(t.Context(), time.Second)
		g.OnFailure = limits.OnFailureDeny
		held, err := g.Ask(t.Context(), limits.NewRequest("d"))
		if err != nil || held.Decision.Allowed || held.Decision.Source != limits.FailClosed {
			t.Errorf("%+v %v", held, err)
		}
		if !strings.Contains(log.String(), "unlogged=4") || !strings.Contains(log.String(), "no Redis") {
			t.Errorf("log:\n%s", log.String())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.Ask(ctx, limits.NewRequest("d")); !errors.Is(err, context.Canceled) {
			t.Errorf("the client has gone: %v", err)
		}
	})
}

func TestWait(t *testing.T) {
	g := &gate.Gate{Decider: &decider{err: errors.New("no Redis")}, Logger: slog.New(slog.DiscardHandler)}
	if err := g.Wait(t.Context(), limits.NewRequest("d")); err != nil {
		t.Error(err)
	}
	g.OnFailure = limits.OnFailureDeny
	if err := g.Wait(t.Context(), limits.NewRequest("d")); err == nil {
		t.Error("no error without a decision")
	}
	g.Decider = &decider{answer: limits.Decision{RetryAfter: limits.Never}}
	if err := g.Wait(t.Context(), limits.NewRequest("d")); !errors.Is(err, limits.ErrNever) {
		t.Error(err)
	}
}

// reserver reserves with a delay, and keeps how reservations ended.
type reserver struct {
	decider
	ended []string
}

func (r *reserver) Reserve(context.Context, *limits.Request, limits.ReserveOptions) (*limits.Reservation, error) {
	return limits.NewReservation(r.answer, 1, time.Now().Add(time.Minute), r), nil
}

func (r *reserver) end(ctx context.Context, how string) error {
	if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
		how += fmt.Sprintf(" with a context that is bounded: %v, and has ended: %v", bounded, ctx.Err())
	}
	r.ended = append(r.ended, how)
	return nil
}

func (r *reserver) Commit(ctx context.Context, used []limits.Amount) error {
	return r.end(ctx, fmt.Sprint("charged ", used[0].Hits))
}
func (r *reserver) Cancel(ctx context.Context) error { return r.end(ctx, "cancelled") }
func (r *reserver) Extend(context.Context, time.Duration) (time.Time, error) {
	return time.Time{}, nil
}

// A reservation ends also if its request has ended before, and is cancelled if its turn would come too late.
func TestReservationsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reserver{decider: decider{answer: limits.Decision{Allowed: true, Delay: 3 * time.Second}}}
		g := &gate.Gate{Decider: r, Reserver: r}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		held, err := g.Ask(ctx, limits.NewRequest("d"))
		if err != nil || held.Decision.Allowed {
			t.Errorf("%+v %v", held, err)
		}
		cancel()
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := g.Ask(ctx, limits.NewRequest("d")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if held, err = g.Ask(t.Context(), limits.NewRequest("d")); err != nil || !held.Decision.Allowed {
			t.Fatalf("%+v %v", held, err)
		}
		g.Commit(ctx, held, limits.Amount{Hits: 7}) // the client has gone by now
		if got := strings.Join(r.ended, ", "); got != "cancelled, cancelled, charged 7" {
			t.Error(got)
		}
	})
}
