package serviceclient

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
)

// Load sets the number of requests to send, and how many may be in flight.
type Load struct {
	Count       int64 // number of requests
	Concurrency int   // most requests in flight; default 1
}

// Bounds of a load, so that a typing error does not last for days.
const (
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

	// Latencies in milliseconds, of answers and errors.
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
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

// Load sends requests until there are enough or ctx ends, waits for the answers, and returns the result.
func (c *Client) Load(ctx context.Context, r *Request, l Load) *Summary {
	x := &loadRun{
		client: c, request: r.Message(), began: time.Now(),
		took: hdrhistogram.New(1, int64(2*c.o.Timeout/time.Microsecond)+int64(time.Hour/time.Microsecond), 3),
	}
	x.sum.Errors, x.sum.Messages = make(map[string]int64), make(map[string]string)
	var left atomic.Int64
	left.Store(l.Count)
	var workers sync.WaitGroup
	for range max(l.Concurrency, 1) {
		workers.Go(func() {
			for ctx.Err() == nil && left.Add(-1) >= 0 {
				x.send(ctx)
			}
		})
	}
	workers.Wait()
	return x.summary()
}

// send sends a request.
func (x *loadRun) send(ctx context.Context) {
	sent := time.Now()
	within, cancel := x.client.within(ctx)
	got, err := ratelimitv3.NewRateLimitServiceClient(x.client.conn).ShouldRateLimit(within, x.request)
	cancel()
	took := time.Since(sent)

	x.mu.Lock()
	defer x.mu.Unlock()
	x.sum.Sent++
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

// summary is the result when all requests are answered.
func (x *loadRun) summary() *Summary {
	s := &x.sum
	s.Seconds = time.Since(x.began).Seconds()
	s.Rate = float64(s.Sent) / max(s.Seconds, 1e-9)
	millis := func(micros int64) float64 { return float64(micros) / 1000 }
	s.P50, s.P90, s.P99 = millis(x.took.ValueAtQuantile(50)), millis(x.took.ValueAtQuantile(90)),
		millis(x.took.ValueAtQuantile(99))
	s.Max = millis(x.took.Max())
	return s
}
