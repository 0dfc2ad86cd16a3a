package serviceclient

import (
	"context"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
)

// Load says how many requests are sent, and when.
type Load struct {
	// Rate is how many are sent per second, however long the answers take. 0: a request is sent when the one before is
	// answered.
	Rate float64

	For         time.Duration // how long requests are sent; 0: no bound
	Count       int64         // how many are sent; 0: no bound. One of the two bounds is required
	Concurrency int           // most requests in flight; default 64 with a rate, else 1

	Progress func(*Summary) // called every second from one goroutine; may be nil
}

// Bounds of a load, so that a typing error does not last for days.
const (
	MaxRate        = 1e6
	MaxFor         = 24 * time.Hour
	MaxCount       = 1e9
	MaxConcurrency = 10_000
)

// Summary is the result of many requests.
type Summary struct {
	Sent      int64 `json:"sent"`
	OK        int64 `json:"ok"`
	OverLimit int64 `json:"over_limit"`
	Failed    int64 `json:"errors"`

	// Errors counts the failures by code; Messages has the first message of each code.
	Errors   map[string]int64  `json:"errors_by_code,omitempty"`
	Messages map[string]string `json:"error_messages,omitempty"`

	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"answers_per_second"`

	// Latencies in milliseconds, of answers and errors. With a rate they are measured from when a request was due, so that a
	// server that stalls does not look faster than it is.
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`

	// Late is how many requests were sent more than a tenth of a second after they were due, because Concurrency requests
	// were waiting for answers.
	Late int64 `json:"late"`
}

// loadRun is a load in progress.
type loadRun struct {
	client  *Client
	request *ratelimitv3.RateLimitRequest
	began   time.Time

	mu   sync.Mutex
	sum  Summary
	took *hdrhistogram.Histogram // microseconds
}

const late = 100 * time.Millisecond

// Load sends requests until a bound is reached or ctx ends, waits for the answers, and returns the result.
func (c *Client) Load(ctx context.Context, r *Request, l Load) *Summary {
	if l.Concurrency <= 0 {
		if l.Concurrency = 1; l.Rate > 0 {
			l.Concurrency = 64
		}
	}
	x := &loadRun{
		client: c, request: r.message(), began: time.Now(),
		took: hdrhistogram.New(1, int64(2*c.o.Timeout/time.Microsecond)+int64(time.Hour/time.Microsecond), 3),
	}
	x.sum.Errors, x.sum.Messages = make(map[string]int64), make(map[string]string)
	due := make(chan time.Time)
	var workers sync.WaitGroup
	for range l.Concurrency {
		workers.Go(func() {
			for at := range due {
				x.send(ctx, at)
			}
		})
	}
	reported, stop := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reported)
		x.report(l.Progress, stop)
	}()
	x.schedule(ctx, &l, due)
	close(due)
	workers.Wait()
	close(stop)
	<-reported
	return x.summary(time.Now())
}

// schedule hands the times at which requests are due to the workers. When all workers are busy it waits, and requests that
// become due meanwhile are sent as soon as a worker is free.
func (x *loadRun) schedule(ctx context.Context, l *Load, due chan<- time.Time) {
	bounded, cancel := ctx, context.CancelFunc(func() {})
	if l.For > 0 {
		bounded, cancel = context.WithDeadline(ctx, x.began.Add(l.For))
	}
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for n := int64(0); l.Count <= 0 || n < l.Count; n++ {
		at := time.Time{}
		if l.Rate > 0 {
			offset := time.Duration(float64(n) / l.Rate * float64(time.Second))
			if l.For > 0 && offset >= l.For {
				return
			}
			at = x.began.Add(offset)
			if wait := time.Until(at); wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-bounded.Done():
					return
				}
			}
		}
		if bounded.Err() != nil {
			return
		}
		select {
		case due <- at:
		case <-bounded.Done():
			return
		}
	}
}

// send sends a request that is due at a time; the zero time means now.
func (x *loadRun) send(ctx context.Context, due time.Time) {
	sent := time.Now()
	if due.IsZero() {
		due = sent
	}
	within, cancel := x.client.within(ctx)
	got, err := ratelimitv3.NewRateLimitServiceClient(x.client.conn).ShouldRateLimit(within, x.request)
	cancel()
	took := time.Since(due)

	x.mu.Lock()
	defer x.mu.Unlock()
	x.sum.Sent++
	if sent.Sub(due) > late {
		x.sum.Late++
	}
	_ = x.took.RecordValue(min(max(took.Microseconds(), 1), x.took.HighestTrackableValue()))
	switch {
	case err != nil:
		code := codeName(status.Code(err))
		x.sum.Failed++
		if x.sum.Errors[code]++; x.sum.Errors[code] == 1 {
			x.sum.Messages[code] = status.Convert(err).Message()
		}
	case got.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT:
		x.sum.OverLimit++
	default:
		x.sum.OK++
	}
}

// summary is the result so far.
func (x *loadRun) summary(now time.Time) *Summary {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.sum
	s.Errors, s.Messages = make(map[string]int64), make(map[string]string)
	for code, n := range x.sum.Errors {
		s.Errors[code], s.Messages[code] = n, x.sum.Messages[code]
	}
	s.Seconds = now.Sub(x.began).Seconds()
	s.Rate = float64(s.Sent) / max(s.Seconds, 1e-9)
	millis := func(micros int64) float64 { return float64(micros) / 1000 }
	s.P50, s.P90, s.P99 = millis(x.took.ValueAtQuantile(50)), millis(x.took.ValueAtQuantile(90)), millis(x.took.ValueAtQuantile(99))
	s.Max = millis(x.took.Max())
	return &s
}

// report calls progress every second until it is stopped.
func (x *loadRun) report(progress func(*Summary), stop <-chan struct{}) {
	if progress == nil {
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			progress(x.summary(now))
		}
	}
}
