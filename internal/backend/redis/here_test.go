package redis_test

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/backend/scripts"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// storeWithLanes returns a store that has detected one server, and whose lanes are connected.
func storeWithLanes(t *testing.T, r *redistest.Server, o redis.Options) *redis.Store {
	t.Helper()
	o.Client = connect(t, redisconn.Options{URL: r.Addr, Breaker: &redisconn.BreakerOptions{Silence: longest}})
	s := redis.New(o)
	t.Cleanup(func() { _ = s.Close() })
	r.Client(t).ScriptLoad(t.Context(), scripts.One(scripts.Fixed).Text)
	redistest.Eventually(t, "the layout and the lanes", func(ctx context.Context) error {
		if err := s.Ping(ctx); err != nil {
			return err
		}
		if took, err := s.TakeHere(ctx, time.Now(), take("ready", limit(1_000_000, descriptor.Year), 1)); !took || err != nil {
			return errors.Join(errors.New("not here"), err)
		}
		return nil
	})
	return s
}

// A lane sends the same bytes as the client: keys, arguments and their order.
func TestCommandsOfLanes(t *testing.T) {
	l := limit(10, descriptor.Year)
	two := take("a", l, 1)
	two.Takes = append(two.Takes, take("b{x}\r\n", l, 2).Takes[0])
	two.Outcomes = make([]backend.Outcome, 2)
	for name, r := range map[string]*backend.Request{
		"one": take("k", l, 1), "two": two, "an empty key": take("", l, 1), "a penalty": penalised("k", l, 1, time.Hour),
		"a reservation": {Takes: []backend.Take{{Key: []byte("k"), Limit: l, Hits: 1, Reservation: reserve("a")}}, Outcomes: make([]backend.Outcome, 1)},
	} {
		for _, routed := range []bool{false, true} {
			got, args, err := redis.Commands(t.Context(), routed, r)
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf("*%d\r\n", len(args))
			for _, a := range args {
				word := fmt.Sprint(a)
				switch a := a.(type) {
				case *string:
					word = *a
				case encoding.BinaryMarshaler:
					b, _ := a.MarshalBinary()
					word = string(b)
				}
				want += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
			}
			if got != want {
				t.Errorf("%s, routed %v: %q, want %q", name, routed, got, want)
			}
		}
	}
}

// A caller that waits, and finds nothing in flight, sends its request itself: no worker is started.
func TestCallersSendThemselves(t *testing.T) {
	t.Parallel()
	r := redistest.Start(t)
	s := storeWithLanes(t, r, redis.Options{Timeout: longest})
	for i := range 100 {
		req := take("k", limit(50, descriptor.Year), 1)
		if err := backend.Await(t.Context(), s, time.Now(), req); err != nil || req.Outcomes[0].Allowed != (i < 50) {
			t.Fatalf("%d: %+v, %v", i, req.Outcomes[0], err)
		}
	}
	if s.Working() {
		t.Error("a request was sent by a worker")
	}
	if err := r.Client(t).ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	req := take("k", limit(51, descriptor.Year), 1) // Redis does not have the script, so a worker sends it again
	if err := backend.Await(t.Context(), s, time.Now(), req); err != nil || !req.Outcomes[0].Allowed || req.Outcomes[0].Used != 51 {
		t.Errorf("after SCRIPT FLUSH: %+v, %v", req.Outcomes[0], err)
	}
}

// Callers that meet count exactly, no matter which goroutine sends their requests.
func TestCallersThatMeet(t *testing.T) {
	t.Parallel()
	s := storeWithLanes(t, redistest.Start(t), redis.Options{Timeout: longest})
	var mu sync.Mutex
	allowed := 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				req := take("k", limit(1000, descriptor.Year), 1)
				if err := backend.Await(t.Context(), s, time.Now(), req); err != nil {
					t.Error(err)
				}
				if req.Outcomes[0].Allowed {
					mu.Lock()
					allowed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if allowed != 1000 {
		t.Errorf("%d of 1600 requests were allowed under a limit of 1000", allowed)
	}
}

// A caller leaves a moment before its deadline, or when it is cancelled, although it reads the answer itself. The
// callers after it get their answers, and for a second no caller sends its request itself.
func TestCallersLeave(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]struct {
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want error
	}{
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 50*time.Millisecond)
		}, context.DeadlineExceeded},
		"cancelled": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled},
		"timeout": {func(ctx context.Context) (context.Context, context.CancelFunc) { return ctx, func() {} }, backend.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := redistest.Start(t)
			s := storeWithLanes(t, r, redis.Options{Timeout: 200 * time.Millisecond})
			r.Pause(t)
			ctx, cancel := leave.ctx(t.Context())
			defer cancel()
			err := backend.Await(ctx, s, time.Now(), take("other", limit(10, descriptor.Year), 7))
			r.Continue(t)
			if !errors.Is(err, leave.want) {
				t.Errorf("%v, want %v", err, leave.want)
			}
			if here, _ := s.TakeHere(t.Context(), time.Now(), take("k", limit(10, descriptor.Year), 1)); here {
				t.Error("the next caller sends its request itself")
			}
			redistest.Eventually(t, "an answer", func(ctx context.Context) error {
				req := take("k", limit(10, descriptor.Year), 1)
				err := backend.Await(ctx, s, time.Now(), req)
				if err == nil && req.Outcomes[0].Used > 7 {
					t.Fatalf("another request's answer: %+v", req.Outcomes[0])
				}
				return err
			})
		})
	}
}
