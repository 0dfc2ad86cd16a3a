package tracing

import (
	"context"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// queue bounds the spans that wait for the collector, and counts the spans that the collector never gets. The SDK
// bounds its own queue too, but does not report dropped spans. queue lets through only as many spans as fit there, so
// only queue drops spans.
type queue struct {
	sdktrace.SpanProcessor       // SDK processor that collects spans into batches
	max                    int64 // largest number of spans that have ended and are neither sent nor dropped
	waiting                atomic.Int64
	dropped                atomic.Uint64
}

// newQueue returns a queue that sends spans with an exporter. Its bound is OTEL_BSP_MAX_QUEUE_SIZE.
func newQueue(to sdktrace.SpanExporter, metrics prometheus.Registerer) *queue {
	size, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE"))
	if err != nil || size <= 0 {
		size = sdktrace.DefaultMaxQueueSize // the SDK logs the error in the variable
	}
	q := &queue{max: int64(size)}
	q.SpanProcessor = sdktrace.NewBatchSpanProcessor(export{to, q}, sdktrace.WithMaxQueueSize(size))
	if metrics != nil {
		metrics.MustRegister(
			prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "ratelimitd_spans_dropped_total",
				Help: "Spans not sent."},
				func() float64 { return float64(q.dropped.Load()) }))
	}
	return q
}

// OnEnd queues a span, or drops it if the queue is full. It never waits.
func (q *queue) OnEnd(span sdktrace.ReadOnlySpan) {
	if q.waiting.Add(1) > q.max {
		q.waiting.Add(-1)
		q.dropped.Add(1)
		return
	}
	q.SpanProcessor.OnEnd(span)
}

// export sends batches, and takes them off the count of its queue.
type export struct {
	sdktrace.SpanExporter
	of *queue
}

func (e export) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.of.waiting.Add(-int64(len(spans)))
	if err != nil {
		e.of.dropped.Add(uint64(len(spans)))
	}
	return err //nolint:wrapcheck // the SDK passes it to the handler of errors, as it would without export
}
