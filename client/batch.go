package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

const (
	// gather is the longest time that a call waits for others to share its message. Timers may be late by as much as
	// maxMargin. A call does not wait while fewer than atOnce requests are in flight.
	gather = 100 * time.Microsecond
	// maxBatch is the service's limit on requests per message.
	maxBatch = 100
	// maxBatchBytes bounds the size of a message with several requests. A larger request is sent alone.
	maxBatchBytes = 64 << 10
)

// atOnce is the number of requests in flight from which on new calls wait to be sent together. A caller alone never
// waits.
//
// Measured with the service in another process on a machine with 2 cores: with 4, one caller gets its answer after 83
// µs (median), 2 callers after 92 µs and 4 callers after 123 µs. 64 callers together get 212,000 answers a second, in
// messages of 27. With 1, 2 callers wait for 175 µs. With 8, all numbers are within 5% of those with 4. When every
// call is sent immediately, 64 callers get 82,000 answers a second. BenchmarkDecide measures this.
const atOnce = 4

var errClosed = errors.New("the client is closed")

// call is one request on its way to the service. It is reused, unless its caller stopped waiting before the answer
// came.
type call struct {
	ctx      context.Context
	deadline time.Time
	wire     []byte // ratelimitd.v1.DecideRequest

	response *ratelimitdv1.DecideResponse
	err      error
	done     chan struct{} // has one value when response or err is set
	timer    *time.Timer
}

func newCall() *call {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &call{done: make(chan struct{}, 1), timer: t}
}

// release keeps a call for later, unless its buffer is large.
func (c *Client) release(call *call) {
	if cap(call.wire) <= maxBatchBytes {
		call.ctx, call.response, call.err = nil, nil, nil
		c.calls.Put(call)
	}
}

// batch is calls that share a message.
type batch struct {
	calls []*call
	size  int
}

func (b *batch) fits(c *call) bool {
	return len(b.calls) < maxBatch && b.size+len(c.wire) <= maxBatchBytes
}

func (b *batch) add(c *call) {
	b.calls = append(b.calls, c)
	b.size += len(c.wire)
}

// queue makes batches of calls.
//
// A call is sent immediately, by its caller's goroutine, if few others are in flight. Otherwise it waits until the
// calls in flight are answered, but no longer than gather. The calls that wait are sent together.
type queue struct {
	service ratelimitdv1.DecisionServiceClient
	stats   *counts
	flights sync.WaitGroup // goroutines that wait for the service

	mu       sync.Mutex
	closed   bool
	inFlight int    // requests
	waiting  *batch // nil if no call waits
	timer    *time.Timer
}

func newQueue(service ratelimitdv1.DecisionServiceClient, stats *counts) *queue {
	q := &queue{service: service, stats: stats}
	q.timer = time.AfterFunc(time.Hour, q.late)
	q.timer.Stop()
	return q
}

// close rejects new calls, and ends the calls that wait to be sent together.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.timer.Stop()
	if q.waiting != nil {
		answer(q.waiting.calls, nil, errClosed)
		q.waiting = nil
	}
}

// ask sends a call and waits for its answer until its deadline. If answered is false, a goroutine may still write the
// answer to the call.
func (q *queue) ask(c *call) (answered bool, err error) {
	if err := c.ctx.Err(); err != nil {
		return true, err
	}
	alone, err := q.add(c)
	if err != nil {
		return true, err
	}
	if alone {
		ctx, cancel := context.WithDeadline(c.ctx, c.deadline)
		q.send(ctx, []*call{c})
		cancel()
		if next := q.landed(1); next != nil {
			go q.fly(next)
		}
		<-c.done
		if c.err != nil && errors.Is(c.ctx.Err(), context.Canceled) {
			return true, context.Canceled
		}
		return true, c.err
	}
	c.timer.Reset(time.Until(c.deadline))
	defer c.timer.Stop()
	select {
	case <-c.done:
		return true, c.err
	case <-c.timer.C:
		return false, context.DeadlineExceeded
	case <-c.ctx.Done():
		return false, c.ctx.Err()
	}
}

// add puts a call into a batch. If alone is true, the call shares no batch, and the caller must send it.
func (q *queue) add(c *call) (alone bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false, errClosed
	}
	if q.waiting != nil && !q.waiting.fits(c) {
		go q.fly(q.take())
	}
	if q.waiting == nil {
		if q.inFlight < atOnce {
			q.inFlight++
			return true, nil
		}
		q.waiting = new(batch)
		q.timer.Reset(gather)
	}
	q.waiting.add(c)
	if len(q.waiting.calls) == maxBatch {
		go q.fly(q.take())
	}
	return false, nil
}

// take removes the batch that waits, for a goroutine that will send it. The caller holds the lock.
func (q *queue) take() *batch {
	b := q.waiting
	q.waiting = nil
	q.timer.Stop()
	q.inFlight += len(b.calls)
	q.flights.Add(1)
	return b
}

// late sends the batch that has waited for long enough.
func (q *queue) late() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting != nil && !q.closed {
		go q.fly(q.take())
	}
}

// landed ends a message of n requests, and returns a batch that has waited for it.
func (q *queue) landed(n int) *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inFlight -= n
	if q.waiting == nil || q.inFlight >= atOnce || q.closed {
		return nil
	}
	return q.take()
}

// fly sends a batch, and then each batch of calls that has waited for an answer.
func (q *queue) fly(b *batch) {
	for b != nil {
		latest := b.calls[0].deadline
		for _, c := range b.calls[1:] {
			if c.deadline.After(latest) {
				latest = c.deadline
			}
		}
		ctx, cancel := context.WithDeadline(context.WithoutCancel(b.calls[0].ctx), latest)
		q.send(ctx, b.calls)
		cancel()
		b = q.landed(len(b.calls))
		q.flights.Done()
	}
}

// send sends calls in one message and gives each its answer.
func (q *queue) send(ctx context.Context, calls []*call) {
	size := 0
	for _, c := range calls {
		size += len(c.wire) + 5
	}
	raw := make([]byte, 0, size)
	for _, c := range calls {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, 1, protowire.BytesType), c.wire)
	}
	var request ratelimitdv1.DecideBatchRequest
	request.ProtoReflect().SetUnknown(raw) // it is encoded already: grpc sends it as it is
	q.stats.rpcs.Add(1)
	q.stats.requests.Add(uint64(len(calls)))
	response, err := q.service.DecideBatch(ctx, &request)
	if n := len(calls); n > 1 && status.Code(err) == codes.InvalidArgument {
		// The service counted nothing. Its bound on the entries of a message is lower than usual, or one request is malformed
		// in a way that the client does not know: the others must not fail with it.
		q.send(ctx, calls[:n/2])
		q.send(ctx, calls[n/2:])
		return
	}
	if err == nil && len(response.GetResponses()) != len(calls) {
		err = fmt.Errorf("the service answered %d requests of %d", len(response.GetResponses()), len(calls))
	}
	answer(calls, response.GetResponses(), errorOf(err))
}

// answer gives each call its answer, or all of them an error.
func answer(calls []*call, responses []*ratelimitdv1.DecideResponse, err error) {
	for i, c := range calls {
		if c.err = err; err == nil {
			c.response = responses[i]
		}
		c.done <- struct{}{}
	}
}
