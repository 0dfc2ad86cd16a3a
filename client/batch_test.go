package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// together makes n calls at the same time, and returns the decision, the error and the duration of each.
func together(c *client.Client, n int, request func(i int) (context.Context, *limits.Request)) (all []limits.Decision, errs []error, took []time.Duration) {
	all, errs, took = make([]limits.Decision, n), make([]error, n), make([]time.Duration, n)
	start := time.Now()
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			ctx, r := request(i)
			all[i], errs[i] = c.Decide(ctx, r)
			took[i] = time.Since(start)
		})
	}
	group.Wait()
	return all, errs, took
}

// The first calls are sent immediately. Calls made while they are in flight wait for at most 100 us and share a
// message.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Millisecond}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		start := time.Now()
		all, errs, took := together(c, 350, func(i int) (context.Context, *limits.Request) {
			return t.Context(), limits.NewRequest("d", "k", fmt.Sprint(i))
		})
		for i, d := range all {
			if !d.Allowed || errs[i] != nil || d.Source != limits.Counted || took[i] > 1100*time.Microsecond {
				t.Errorf("%d: %+v %v after %s", i, d, errs[i], took[i])
			}
		}
		sizes := s.sizes()
		slices.Sort(sizes)
		if fmt.Sprint(sizes) != "[1 1 1 1 46 100 100 100]" {
			t.Errorf("batches of %d", sizes)
		}
		seen := make(map[string]bool)
		for _, b := range s.calls() {
			if late := b.at.Sub(start); late > 100*time.Microsecond || len(b.requests) == 1 && late > 0 {
				t.Errorf("a batch of %d after %s", len(b.requests), late)
			}
			for _, r := range b.requests {
				seen[value(r)] = true
			}
		}
		if got := c.Stats(); len(seen) != 350 || got.RPCs != 8 || got.Requests != 350 {
			t.Errorf("%d requests, %+v", len(seen), got)
		}
	})
}

// When a message is answered, the calls that have waited for its answer are sent.
func TestNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: 60 * time.Microsecond}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		_, _, took := together(c, 10, func(i int) (context.Context, *limits.Request) {
			return t.Context(), limits.NewRequest("d", "k", fmt.Sprint(i))
		})
		slices.Sort(took)
		if sizes := s.sizes(); fmt.Sprint(sizes) != "[1 1 1 1 6]" || took[9] != 120*time.Microsecond {
			t.Errorf("batches of %d, %s", sizes, took)
		}
	})
}

// Every caller gets the answer to its own request.
func TestAnswersAreNotMixedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Millisecond, decide: func(r *ratelimitdv1.DecideRequest) *ratelimitdv1.DecideResponse {
			switch v := value(r); {
			case strings.HasPrefix(v, "bad"):
				return &ratelimitdv1.DecideResponse{Error: &ratelimitdv1.DecideError{Code: int32(codes.InvalidArgument), Message: v}}
			case strings.HasPrefix(v, "down"):
				return &ratelimitdv1.DecideResponse{Error: &ratelimitdv1.DecideError{Code: int32(codes.Unavailable), Message: v}}
			default:
				answer := passes()
				answer.Statuses[0].Rule = v
				return answer
			}
		}}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		kind := func(i int) string { return []string{"good", "bad", "down"}[i%3] + fmt.Sprint(i) }
		all, errs, _ := together(c, 300, func(i int) (context.Context, *limits.Request) {
			return t.Context(), limits.NewRequest("d", "k", kind(i))
		})
		for i, d := range all {
			switch i % 3 {
			case 0:
				if errs[i] != nil || d.Source != limits.Counted || d.Statuses[0].Rule != kind(i) {
					t.Errorf("%d: %+v %v", i, d, errs[i])
				}
			case 1:
				if !errors.Is(errs[i], limits.ErrInvalid) || !strings.HasSuffix(errs[i].Error(), kind(i)) || d.Allowed {
					t.Errorf("%d: %+v %v", i, d, errs[i])
				}
			default:
				if errs[i] != nil || d.Source != limits.FailOpen || !strings.HasSuffix(d.Err.Error(), kind(i)) || status.Code(d.Err) != codes.Unavailable {
					t.Errorf("%d: %+v %v", i, d, errs[i])
				}
			}
		}
	})
}

// Each caller stops waiting shortly before its deadline: 1 ms, or a tenth of its time, before. The deadline of the batch
// is the latest one.
func TestDeadlinesInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Hour}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		own := func(i int) time.Duration { return time.Duration(i%40+1) * time.Millisecond }
		all, errs, took := together(c, 80, func(i int) (context.Context, *limits.Request) {
			ctx, cancel := context.WithTimeout(context.Background(), own(i))
			context.AfterFunc(t.Context(), cancel)
			return ctx, limits.NewRequest("d", "k", "v")
		})
		for i, d := range all {
			want := min(own(i), 20*time.Millisecond)
			if want -= min(want/10, time.Millisecond); took[i] != want || errs[i] != nil || d.Source != limits.FailOpen || !errors.Is(d.Err, context.DeadlineExceeded) {
				t.Errorf("%d: %+v %v after %s, want %s", i, d, errs[i], took[i], want)
			}
		}
		for _, b := range s.calls() {
			if deadline, ok := b.ctx.Deadline(); !ok || len(b.requests) > 1 && time.Until(deadline) > 0 {
				t.Errorf("a batch of %d has the deadline %s", len(b.requests), deadline)
			}
		}
	})
}

// A caller that cancels gets its error immediately; the others get their answers.
func TestCanceledCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client.NewWithConn(&service{takes: 10 * time.Millisecond}, client.Options{OnFailure: limits.OnFailureDeny})
		defer c.Close()
		all, errs, took := together(c, 20, func(i int) (context.Context, *limits.Request) {
			ctx, cancel := context.WithCancel(t.Context())
			if i%2 == 0 {
				time.AfterFunc(3*time.Millisecond, cancel)
			} else {
				context.AfterFunc(t.Context(), cancel)
			}
			return ctx, limits.NewRequest("d", "k", "v")
		})
		for i, d := range all {
			if gone := i%2 == 0; gone != errors.Is(errs[i], context.Canceled) || gone == d.Allowed || gone && took[i] != 3*time.Millisecond {
				t.Errorf("%d: %+v %v after %s", i, d, errs[i], took[i])
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if d, err := c.Decide(ctx, limits.NewRequest("d", "k", "v")); !errors.Is(err, context.Canceled) || d.Allowed {
			t.Errorf("%+v %v", d, err)
		}
	})
}

// A message has the metadata of its first caller.
func TestMetadataOfABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Millisecond}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		together(c, 50, func(i int) (context.Context, *limits.Request) {
			return metadata.AppendToOutgoingContext(t.Context(), "n", fmt.Sprint(i)), limits.NewRequest("d", "k", fmt.Sprint(i))
		})
		for _, b := range s.calls() {
			if md, _ := metadata.FromOutgoingContext(b.ctx); md.Get("n")[0] != value(b.requests[0]) {
				t.Errorf("%v for %s", md, value(b.requests[0]))
			}
		}
	})
}

// A service whose bound is lower than 100 requests, or one request that fails the call as a whole, does not fail the
// others.
func TestBatchIsSplit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Millisecond, reject: func(batch []*ratelimitdv1.DecideRequest) error {
			for _, r := range batch {
				if value(r) == "17" {
					return status.Error(codes.InvalidArgument, "17")
				}
			}
			if len(batch) > 10 {
				return status.Error(codes.InvalidArgument, "too many")
			}
			return nil
		}}
		c := client.NewWithConn(s, client.Options{Timeout: time.Second})
		defer c.Close()
		all, errs, _ := together(c, 60, func(i int) (context.Context, *limits.Request) {
			return t.Context(), limits.NewRequest("d", "k", fmt.Sprint(i))
		})
		for i, d := range all {
			if bad := i == 17; bad != errors.Is(errs[i], limits.ErrInvalid) || d.Allowed == bad {
				t.Errorf("%d: %+v %v", i, d, errs[i])
			}
		}
	})
}

// A large request is sent alone. Other messages stay below 64 KiB.
func TestLargeRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: time.Millisecond}
		c := client.NewWithConn(s, client.Options{})
		defer c.Close()
		_, errs, _ := together(c, 40, func(i int) (context.Context, *limits.Request) {
			return t.Context(), limits.NewRequest("d", "k", strings.Repeat("x", 10_000*(1+i%8)))
		})
		if err := errors.Join(errs...); err != nil {
			t.Error(err)
		}
		for _, b := range s.calls() {
			n := 0
			for _, r := range b.requests {
				n += len(value(r))
			}
			if n > 64<<10 && len(b.requests) > 1 {
				t.Errorf("%d requests of %d bytes", len(b.requests), n)
			}
		}
	})
}

// Answers that do not fit the requests are a failure of the service.
func TestAnswersAreMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{answer: func(r *ratelimitdv1.DecideBatchResponse) *ratelimitdv1.DecideBatchResponse {
			return &ratelimitdv1.DecideBatchResponse{Responses: r.GetResponses()[1:]}
		}}
		c := client.NewWithConn(s, client.Options{OnFailure: limits.OnFailureError})
		defer c.Close()
		if d, err := c.Decide(t.Context(), limits.NewRequest("d", "k", "v")); err == nil || d.Allowed || !strings.Contains(err.Error(), "answered 0 requests of 1") {
			t.Errorf("%+v %v", d, err)
		}
	})
}

// Close ends calls that wait for others, and waits for its goroutines. Later calls are failures.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{takes: 5 * time.Millisecond}
		c := client.NewWithConn(s, client.Options{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			all, errs, _ := together(c, 20, func(i int) (context.Context, *limits.Request) {
				return t.Context(), limits.NewRequest("d", "k", fmt.Sprint(i))
			})
			open := 0
			for i, d := range all {
				if errs[i] != nil || !d.Allowed {
					t.Errorf("%+v %v", d, errs[i])
				}
				if d.Source == limits.FailOpen {
					open++
				}
			}
			if open != 16 {
				t.Errorf("%d calls have failed, want those that were not sent", open)
			}
		}()
		synctest.Wait()
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			t.Error(err)
		}
		<-done
		if d, err := c.Decide(t.Context(), limits.NewRequest("d", "k", "v")); err != nil || d.Source != limits.FailOpen || !strings.Contains(d.Err.Error(), "closed") {
			t.Errorf("%+v %v", d, err)
		}
	})
}
