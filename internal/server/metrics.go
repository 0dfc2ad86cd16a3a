package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics count answers and how long they took. The handles are resolved once: a call looks nothing up.
type metrics struct {
	grpc, json answers
	panics     prometheus.Counter
}

// answers are those that were given over one transport.
type answers struct {
	duration prometheus.Observer
	byCode   [codes.Unauthenticated + 1]prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "ratelimitd_request_duration_seconds",
		Help:    "Time from a request's arrival to its answer.",
		Buckets: []float64{25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 250e-3, 1, 5},
	}, []string{"transport"})
	counts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "ratelimitd_requests_total",
		Help: "Requests answered, by gRPC code.",
	}, []string{"transport", "code"})
	m := &metrics{panics: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ratelimitd_panics_total",
		Help: "Requests whose handling panicked.",
	})}
	for _, a := range []struct {
		of        *answers
		transport string
	}{{&m.grpc, "grpc"}, {&m.json, "json"}} {
		a.of.duration = durations.WithLabelValues(a.transport)
		for code := range a.of.byCode {
			a.of.byCode[code] = counts.WithLabelValues(a.transport, codes.Code(code).String())
		}
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{durations, counts, m.panics} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// observe counts an answer to a request that arrived at start; the zero time is one whose message never arrived.
func (a *answers) observe(start time.Time, code codes.Code) {
	if !start.IsZero() {
		a.duration.Observe(time.Since(start).Seconds())
	}
	a.byCode[min(int(code), len(a.byCode)-1)].Inc()
}
