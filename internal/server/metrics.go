package server

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// metrics counts answers and measures their durations. The handles for the hot path are resolved once.
type metrics struct {
	grpc, json answers
}

// answers counts the answers of one transport.
type answers struct {
	duration prometheus.Observer
	byCode   [codes.Unauthenticated + 1]prometheus.Counter // nil for codes that are not expected
	others   *prometheus.CounterVec                        // answers with other codes, by code

	unexpected atomic.Uint64 // answers without a counter in byCode

	extraObserver prometheus.Observer // receives the durations too, in seconds; may be nil
}

// expected are the codes of this server's answers. Their series exist from the start, so that the first failure shows
// as an increase.
var expected = []codes.Code{codes.OK, codes.Canceled, codes.InvalidArgument, codes.DeadlineExceeded,
	codes.ResourceExhausted, codes.Internal, codes.Unavailable}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "ratelimitd_request_duration_seconds",
		Help: "Time from a request's arrival to its answer.",
		Buckets: []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 250e-3, 1,
			5},
	}, []string{"transport"})
	counts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ratelimitd_requests_total",
		Help: "Requests answered over grpc or json, by gRPC code.",
	}, []string{"transport", "code"})
	m := &metrics{}
	for _, a := range []struct {
		of        *answers
		transport string
	}{{&m.grpc, "grpc"}, {&m.json, "json"}} {
		a.of.duration = durations.WithLabelValues(a.transport)
		a.of.others = counts.MustCurryWith(prometheus.Labels{"transport": a.transport})
		for _, code := range expected {
			a.of.byCode[code] = a.of.others.WithLabelValues(code.String())
		}
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{durations, counts} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// The kinds of streams in metrics.
const (
	quotaKind = "quota"
	watchKind = "watch"
)

// Reasons to reject a stream, in addition to those of package intake.
const (
	overBytes       intake.Rejection = "bytes"      // a quota stream without memory for it
	overReflections intake.Rejection = "reflection" // a reflection stream beyond maxReflections
)

// newStreamMetrics returns a counter of rejected streams, by kind and reason. It registers the counter, and gauges of
// the open streams.
func newStreamMetrics(registry prometheus.Registerer, quota, watches *intake.Streams) (*prometheus.CounterVec, error) {
	rejected := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ratelimitd_streams_rejected_total",
		Help: "Streams rejected, because too many were open.",
	}, []string{"kind", "reason"})
	for _, why := range []intake.Rejection{intake.OverAll, intake.OverPeer, intake.OverConnection} {
		rejected.WithLabelValues(quotaKind, string(why))
		rejected.WithLabelValues(watchKind, string(why))
	}
	rejected.WithLabelValues(quotaKind, string(overBytes))
	rejected.WithLabelValues(watchKind, string(overReflections))
	if registry == nil {
		return rejected, nil
	}
	open := func(kind string, of *intake.Streams) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "ratelimitd_streams",
			Help:        "Open streams: quota (RLQS), watch (health and reflection).",
			ConstLabels: prometheus.Labels{"kind": kind},
		}, func() float64 { return float64(of.Open()) })
	}
	return rejected, errors.Join(registry.Register(rejected), registry.Register(open(quotaKind, quota)),
		registry.Register(open(watchKind, watches)))
}

// observe counts an answer to a request that arrived at start. A zero start means that its message never arrived.
func (a *answers) observe(start time.Time, code codes.Code) {
	if !start.IsZero() {
		took := time.Since(start).Seconds()
		a.duration.Observe(took)
		if a.extraObserver != nil {
			a.extraObserver.Observe(took)
		}
	}
	if int(code) >= len(a.byCode) {
		code = codes.Unknown
	}
	if counter := a.byCode[code]; counter != nil {
		counter.Inc()
		return
	}
	a.unexpected.Add(1)
	a.others.WithLabelValues(code.String()).Inc()
}

// total returns the number of answers. It adds up the counters of the metrics, so that it costs calls nothing.
func (a *answers) total() uint64 {
	n := a.unexpected.Load()
	for _, counter := range a.byCode {
		if counter == nil {
			continue
		}
		var m dto.Metric
		if err := counter.Write(&m); err == nil {
			n += uint64(m.GetCounter().GetValue())
		}
	}
	return n
}
