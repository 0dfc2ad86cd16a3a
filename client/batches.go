package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/limits"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

const (
	gather     = 100 * time.Microsecond // how long requests wait for others while a call is in flight
	maxPerCall = 100                    // requests; the service takes no more

)

// batches sends requests that come together in one call. A request that finds no call in flight is sent at once, alone: a lone caller
// does not wait for others. While a call is in flight, requests gather until it ends, until 100 us have passed, or until there are
// 100.
type batches struct {
	service ratelimitdv1.DecisionServiceClient

	mu       sync.Mutex
	inFlight int
	waiting  []*asked
	timer    *time.Timer // sends what waits
	sending  sync.WaitGroup

	calls, requests atomic.Uint64
}

// asked is a request that waits for its answer.
type asked struct {
	request *ratelimitdv1.DecideRequest
	until   time.Time
	answer  chan answered // has room for one
}

type answered struct {
	response *ratelimitdv1.DecideResponse
	err      error
}

func newBatches(service ratelimitdv1.DecisionServiceClient) *batches {
	b := &batches{service: service}
	b.timer = time.AfterFunc(time.Hour, b.flush)
	b.timer.Stop()
	return b
}

// ask sends a request and returns its answer, or an error when ctx ends; it has a deadline.
func (b *batches) ask(ctx context.Context, r *ratelimitdv1.DecideRequest) (*ratelimitdv1.DecideResponse, error) {
	b.mu.Lock()
	if b.inFlight == 0 {
		b.inFlight++
		b.mu.Unlock()
		all, err := b.call(metadata.NewOutgoingContext(ctx, nil), []*ratelimitdv1.DecideRequest{r})
		b.ended()
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	until, _ := ctx.Deadline()
	a := &asked{request: r, until: until, answer: make(chan answered, 1)}
	b.waiting = append(b.waiting, a)
	switch len(b.waiting) {
	case 1:
		b.timer.Reset(gather)
	case maxPerCall:
		b.send()
	}
	b.mu.Unlock()
	select {
	case got := <-a.answer:
		return got.response, got.err
	case <-ctx.Done():
		return nil, fmt.Errorf("ratelimitd client: no answer in time: %w", ctx.Err())
	}
}

// flush sends what waits.
func (b *batches) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.send()
}

// ended is called when a call has ended. What waits for it need not wait any longer.
func (b *batches) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inFlight--; b.inFlight == 0 {
		b.send()
	}
}

// send sends what waits, in a goroutine of its own. The caller holds mu.
func (b *batches) send() {
	all := b.waiting
	if len(all) == 0 {
		return
	}
	b.timer.Stop()
	b.waiting = nil
	b.inFlight++
	b.sending.Go(func() {
		var last time.Time
		requests := make([]*ratelimitdv1.DecideRequest, len(all))
		for i, a := range all {
			requests[i] = a.request
			if a.until.After(last) {
				last = a.until
			}
		}
		ctx, cancel := context.WithDeadline(context.Background(), last) // some callers may have gone; the others wait
		defer cancel()
		responses, err := b.call(ctx, requests)
		for i, a := range all {
			if err != nil {
				a.answer <- answered{err: err}
				continue
			}
			a.answer <- answered{response: responses[i]}
		}
		b.ended()
	})
}

// call makes one call to the service.
func (b *batches) call(ctx context.Context, requests []*ratelimitdv1.DecideRequest) ([]*ratelimitdv1.DecideResponse, error) {
	b.calls.Add(1)
	b.requests.Add(uint64(len(requests)))
	all, err := b.service.DecideBatch(ctx, &ratelimitdv1.DecideBatchRequest{Requests: requests})
	if err != nil {
		return nil, failure(err)
	}
	if n := len(all.GetResponses()); n != len(requests) {
		return nil, fmt.Errorf("ratelimitd client: the service answered %d of %d requests", n, len(requests))
	}
	return all.GetResponses(), nil
}

// wait waits for the calls in flight. Nothing is sent afterwards but what fails at once, because the connection is closed.
func (b *batches) wait() {
	b.flush()
	b.sending.Wait()
}

// failure is the error of a call, for callers.
func failure(err error) error {
	s := status.Convert(err)
	if s.Code() == codes.Unimplemented {
		return errors.New("ratelimitd client: the service has no ratelimitd.v1.DecisionService: it is not ratelimitd, or an older one")
	}
	return failureOf(s.Code(), s.Message(), err)
}

// failureOf returns the error for a status of gRPC.
func failureOf(code codes.Code, message string, cause error) error {
	switch {
	case code == codes.InvalidArgument, code == codes.FailedPrecondition:
		return fmt.Errorf("%w: %s", limits.ErrInvalid, message)
	case cause != nil:
		return fmt.Errorf("ratelimitd client: %w", cause)
	default:
		return fmt.Errorf("ratelimitd client: %s: %s", code, message)
	}
}
