package redis

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// BreakerOptions are the settings of the breakers, one per node. The zero value serves.
type BreakerOptions struct {
	Failures uint32        // so many failures in a row, or half of at least 20 calls in a second, open it; default 5
	OpenFor  time.Duration // how long calls are answered at once before one is let through to try; default 200 ms

	// Patience is how long a call must have waited for its timeout to count: a caller with a very near deadline says nothing
	// about the node. Default 5 ms.
	Patience time.Duration

	Metrics prometheus.Registerer // nil: no metrics
	Logger  *slog.Logger          // default slog.Default()
}

// tripBuckets are finest around what a Redis nearby takes, and have one at the time that a call has by default.
var tripBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .015, .025, .05, .1, .25, 1}

// errSaysNothing is what a call is counted as that ended before the node could answer: neither as a failure nor as an
// answer. Else one impatient caller would close the breaker of a node that hangs.
var errSaysNothing = errors.New("the caller did not wait")

// errBreakerOpen is what a call gets while its node is left alone.
var errBreakerOpen = errors.New("the node did not answer lately and is left alone for a moment")

// Guard puts a breaker before every node of a client: while a node does not answer, calls to it fail at once instead of
// waiting for a timeout each. On a cluster the other nodes go on. Call it once, before the client is used.
func Guard(client goredis.UniversalClient, opts BreakerOptions) {
	if opts.Failures == 0 {
		opts.Failures = 5
	}
	if opts.OpenFor <= 0 {
		opts.OpenFor = 200 * time.Millisecond
	}
	if opts.Patience <= 0 {
		opts.Patience = 5 * time.Millisecond
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "ratelimitd_redis_breaker_open",
		Help: "1 while a Redis node is left alone because it does not answer.",
	}, []string{"node"})
	rejected := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ratelimitd_redis_breaker_rejected_total",
		Help: "Calls to Redis that failed at once because their node is left alone.",
	})
	trips := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "ratelimitd_redis_trip_duration_seconds",
		Help:    "Time of a round trip to a Redis node, answered or given up, in seconds; with the wait for a connection.",
		Buckets: tripBuckets,
	}, []string{"node"})
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(open, rejected, trips)
	}
	add := func(node *goredis.Client) {
		name := node.Options().Addr
		open.WithLabelValues(name).Set(0)
		b := &breaker{rejected: rejected, trips: trips.WithLabelValues(name), patience: opts.Patience}
		b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Name:       name,
			Interval:   time.Second,
			Timeout:    opts.OpenFor,
			IsExcluded: func(err error) bool { return errors.Is(err, errSaysNothing) },
			ReadyToTrip: func(c gobreaker.Counts) bool {
				return b.inRow.Load() >= opts.Failures || c.Requests >= 20 && c.TotalFailures*2 >= c.Requests
			},
			OnStateChange: func(_ string, from, to gobreaker.State) {
				switch {
				case to == gobreaker.StateOpen && from == gobreaker.StateClosed:
					open.WithLabelValues(name).Set(1)
					opts.Logger.Warn("Redis does not answer: its counters are answered by on_error until it does", "node", name)
				case to == gobreaker.StateClosed:
					open.WithLabelValues(name).Set(0)
					opts.Logger.Info("Redis answers again", "node", name)
				}
			},
		})
		node.AddHook(b)
	}
	switch c := client.(type) {
	case *goredis.ClusterClient:
		c.OnNewNode(add)
	case *goredis.Client:
		add(c)
	}
}

// breaker is the hook of one node.
type breaker struct {
	circuit  *gobreaker.TwoStepCircuitBreaker[struct{}]
	rejected prometheus.Counter
	trips    prometheus.Observer
	patience time.Duration

	// Failures without an answer between them. The circuit's own count of them ends with each of its intervals, so that
	// few calls, or ones that wait long, would never open it.
	inRow atomic.Uint32
}

// note tells the circuit what a call says of the node.
func (b *breaker) note(done func(error), err error) {
	switch {
	case err == nil:
		if b.inRow.Load() > 0 {
			b.inRow.Store(0)
		}
	case !errors.Is(err, errSaysNothing):
		b.inRow.Add(1)
	}
	done(err)
}

// DialHook implements goredis.Hook. A failed dial fails the call that needed it, which is counted there.
func (b *breaker) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook implements goredis.Hook.
func (b *breaker) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if connects(cmd) || cmd.Name() == "ping" && isProbe(ctx) {
			return next(ctx, cmd)
		}
		done, err := b.circuit.Allow()
		if err != nil {
			b.rejected.Inc()
			cmd.SetErr(errBreakerOpen)
			return errBreakerOpen
		}
		start := time.Now()
		err = next(ctx, cmd)
		took := time.Since(start)
		b.trips.Observe(took.Seconds())
		b.note(done, b.failure(ctx, took, err))
		return err
	}
}

// ProcessPipelineHook implements goredis.Hook.
func (b *breaker) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if len(cmds) > 0 && connects(cmds[0]) {
			return next(ctx, cmds)
		}
		done, err := b.circuit.Allow()
		if err != nil {
			b.rejected.Inc()
			for _, cmd := range cmds {
				cmd.SetErr(errBreakerOpen)
			}
			return errBreakerOpen
		}
		start := time.Now()
		err = next(ctx, cmds)
		took := time.Since(start)
		b.trips.Observe(took.Seconds())
		b.note(done, b.failure(ctx, took, err))
		return err
	}
}

// connects says whether a command is one that the client sends by itself on a new connection. It is part of the call
// that needed the connection, which has been let through already.
func connects(cmd goredis.Cmder) bool {
	switch cmd.Name() {
	case "hello", "auth", "select", "client", "readonly":
		return true
	}
	return false
}

// failure is err if it says that the node is sick, errSaysNothing if nobody knows, else nil. An error that the node itself answered with shows that it
// is well, but for the ones that say it cannot serve now.
func (b *breaker) failure(ctx context.Context, took time.Duration, err error) error {
	var answered goredis.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(ctx.Err(), context.Canceled):
		return errSaysNothing
	case isTimeout(err):
		if took < b.patience {
			return errSaysNothing
		}
		return err
	case errors.As(err, &answered):
		for _, sick := range [...]string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY"} {
			if strings.HasPrefix(answered.Error(), sick) {
				return err
			}
		}
		return nil
	default:
		return err
	}
}
