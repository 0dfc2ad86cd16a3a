// Package limitsprom counts and times decisions for Prometheus. It is an Observer for the options of packages ratelimit
// and client.
//
// It measures whole requests. The metrics of single rules are the service's.
package limitsprom

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/limits"
)

// Observer implements limits.Observer. It may be used by any number of goroutines and by several limiters.
type Observer struct {
	decisions *prometheus.CounterVec
	duration  *prometheus.HistogramVec
}

// The values of the label result.
const (
	allowed = "allowed"
	denied  = "denied"
	failed  = "error"
)

// New returns an Observer with its metrics registered. Observers of one registry share them. It panics if the registry
// has other metrics with these names, as prometheus.MustRegister does.
//
//   - ratelimit_decisions_total{domain, result, source}: decisions by result (allowed, denied, error) and by
//     limits.Source
//   - ratelimit_decision_duration_seconds{domain}: how long the program waited for decisions
//
// The label domain has as many values as the program's requests have domains.
func New(r prometheus.Registerer) *Observer {
	o := &Observer{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ratelimit_decisions_total", Help: "Decisions of rate limits, by result and by what the answer is based on.",
		}, []string{"domain", "result", "source"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ratelimit_decision_duration_seconds", Help: "Time that a decision of rate limits took, in seconds.",
			Buckets: []float64{1e-6, 1e-5, 1e-4, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1},
		}, []string{"domain"}),
	}
	o.decisions, o.duration = register(r, o.decisions), register(r, o.duration)
	return o
}

// register registers a metric, or returns the one that is registered already.
func register[C prometheus.Collector](r prometheus.Registerer, c C) C {
	err := r.Register(c)
	if err == nil {
		return c
	}
	if known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := known.ExistingCollector.(C); ok {
			return same
		}
	}
	panic(err)
}

// Decided implements limits.Observer.
func (o *Observer) Decided(_ context.Context, r *limits.Request, d *limits.Decision, err error, took time.Duration) {
	result, source := denied, d.Source.String()
	switch {
	case err != nil:
		result, source = failed, ""
	case d.Allowed:
		result = allowed
	}
	o.decisions.WithLabelValues(r.Domain, result, source).Inc()
	o.duration.WithLabelValues(r.Domain).Observe(took.Seconds())
}
