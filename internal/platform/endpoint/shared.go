package endpoint

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// Options are the common settings of all ports of a process. All are optional.
type Options struct {
	StopTimeout time.Duration  // time for requests in flight after the drain delay, before they are cut off; default 10 s
	Budget      *intake.Budget // memory for peers on all ports together; default 128 MiB

	Metrics prometheus.Registerer // nil does not register the metrics
	Log     *slog.Logger          // default slog.Default()
}

const defaultMaxBytes = 128 << 20

// Shared is the common part of all ports of a process. Use New to create it.
type Shared struct {
	Connections *intake.Metrics // connections by listener, and rejected calls
	Budget      *intake.Budget  // memory for peers
	Places      *intake.Class   // the part of the budget for open connections
	Metrics     prometheus.Registerer
	Log         *slog.Logger

	stopTimeout time.Duration
	panics      prometheus.Counter
}

// New registers the metrics that the ports share.
func New(o Options) (*Shared, error) {
	s := &Shared{
		Metrics:     o.Metrics,
		Budget:      o.Budget,
		Log:         o.Log,
		stopTimeout: o.StopTimeout,
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ratelimitd_panics_total",
			Help: "Requests whose handling panicked.",
		}),
	}
	if s.Log == nil {
		s.Log = slog.Default()
	}
	if s.stopTimeout == 0 {
		s.stopTimeout = 10 * time.Second
	}
	if s.Budget == nil {
		s.Budget = intake.NewBudget(defaultMaxBytes)
	}
	s.Places = s.Budget.Class("connections", s.Budget.Total()/8)
	var err error
	if s.Connections, err = intake.NewMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if o.Metrics != nil {
		for _, c := range []prometheus.Collector{s.panics, s.Budget} {
			if err := o.Metrics.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	return s, nil
}
