package redisconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
)

// BreakerOptions are the settings of the breakers, one per node. The zero value serves.
type BreakerOptions struct {
	// Silence is how long a node may send no byte while calls wait for it. Then the breaker opens and the calls fail. A slow
	// node that sends anything keeps the breaker closed. Default 1 s.
	Silence time.Duration

	// Failures is how many calls in a row open the breaker because their connection broke or the node cannot serve. Half of
	// at least 20 calls in a second do too. A refused connection opens it at once. Default 5.
	Failures uint32

	OpenFor time.Duration // how long an open breaker fails calls before it lets one through as a trial; default 200 ms

	// Patience is how long a call must have waited before its timeout counts. A caller whose deadline is very near proves
	// nothing about the node. Default 5 ms.
	Patience time.Duration

	Metrics prometheus.Registerer // nil: no metrics
	Logger  *slog.Logger          // default slog.Default()
}

// tripBuckets are finest around what a Redis nearby takes.
var tripBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .015, .025, .05, .1, .25, 1}

// breakers makes the breakers of one client's nodes.
type breakers struct {
	opts     BreakerOptions
	open     *prometheus.GaugeVec
	rejected prometheus.Counter
	trips    *prometheus.HistogramVec
}

// newBreakers returns nil if no breaker is wanted.
func newBreakers(wanted *BreakerOptions, log *slog.Logger) *breakers {
	if wanted == nil {
		return nil
	}
	opts := *wanted
	if opts.Silence <= 0 {
		opts.Silence = time.Second
	}
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
		opts.Logger = log
	}
	all := &breakers{
		opts: opts,
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ratelimitd_redis_breaker_open",
			Help: "1 while the breaker of a Redis node is open because the node does not answer.",
		}, []string{"node"}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ratelimitd_redis_breaker_rejected_total",
			Help: "Calls to Redis that failed at once because the breaker of their node is open.",
		}),
		trips: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ratelimitd_redis_trip_duration_seconds",
			Help:    "Time of a round trip to a Redis node, answered or given up, in seconds; with the wait for a connection.",
			Buckets: tripBuckets,
		}, []string{"node"}),
	}
	if opts.Metrics != nil {
		opts.Metrics.MustRegister(all.open, all.rejected, all.trips)
	}
	return all
}

// guard returns the breaker of a node, or nil if none is wanted.
func (s *breakers) guard(node string) *breaker {
	if s == nil {
		return nil
	}
	b := &breaker{
		opts: &s.opts, node: node, base: time.Now(),
		open: s.open.WithLabelValues(node), rejected: s.rejected, trips: s.trips.WithLabelValues(node),
	}
	b.open.Set(0)
	b.look = time.AfterFunc(time.Hour, b.listen)
	b.look.Stop()
	return b
}

// breaker is the circuit breaker of one node. While it is open, calls to the node fail at once instead of waiting for their
// deadlines. Calls to other nodes of a cluster go on.
//
// It hooks into the node's calls, and the node's connections report to it when bytes arrive. Any byte shows that the node
// is alive, however late it comes.
type breaker struct {
	opts     *BreakerOptions
	node     string
	open     prometheus.Gauge
	rejected prometheus.Counter
	trips    prometheus.Observer

	base time.Time    // times below are nanoseconds after it
	last atomic.Int64 // when the node's latest byte came

	mu      sync.Mutex
	state   breakerState
	until   int64       // when an open breaker lets a trial through
	asked   int64       // when the wait began: the first call since the latest byte; 0: nothing waits
	flights []*trip     // calls under way, in no order
	look    *time.Timer // runs listen
	looks   bool        // look is set
	doubt   bool        // listen found the node silent for too long, and looks once more

	// Failures that are no timeouts.
	inRow          uint32 // without an answer between them
	began          int64  // the second in which the following are counted
	counted, among uint32 // failures, and all calls
}

type breakerState uint8

const (
	breakerClosed   breakerState = iota
	breakerOpen                  // calls fail at once
	breakerHalfOpen              // one trial is under way, other calls fail at once
)

// trip is a call that is under way.
type trip struct {
	cancel context.CancelCauseFunc
	trial  bool
	place  int // in breaker.flights
}

// verdict is what a finished call shows about its node.
type verdict uint8

const (
	answered verdict = iota
	nothing          // nothing: the call ended before the node could answer
	tooLate          // the call timed out: whether the breaker opens depends on how long the node has been silent
	failed
	refusedConnection
)

// before adds the breaker's hook to a client.
func (b *breaker) before(client *goredis.Client) {
	if b != nil {
		client.AddHook(b)
	}
}

func (b *breaker) now() int64 { return int64(time.Since(b.base)) }

// heard records that a byte arrived.
func (b *breaker) heard() { b.last.Store(b.now()) }

// begin admits a call, or returns ErrBreakerOpen.
func (b *breaker) begin(ctx context.Context) (context.Context, *trip, error) {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	t := new(trip)
	switch {
	case b.state == breakerClosed:
		if b.asked == 0 || b.last.Load() > b.asked {
			b.asked = now
		}
	case b.state == breakerOpen && now >= b.until:
		b.state, b.asked, t.trial = breakerHalfOpen, now, true
	default:
		b.rejected.Inc()
		return nil, nil, ErrBreakerOpen
	}
	ctx, t.cancel = context.WithCancelCause(ctx)
	t.place = len(b.flights)
	b.flights = append(b.flights, t)
	if !b.looks {
		b.looks = true
		b.look.Reset(b.opts.Silence)
	}
	return ctx, t, nil
}

// end records what a finished call shows about the node.
func (b *breaker) end(t *trip, v verdict, err error) {
	t.cancel(nil)
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.flights) - 1
	moved := b.flights[last]
	b.flights[t.place], moved.place = moved, t.place
	b.flights[last] = nil
	b.flights = b.flights[:last]
	switch {
	case v == answered:
		b.inRow = 0
		b.count(now, 0)
		if b.state != breakerClosed {
			b.state = breakerClosed
			b.open.Set(0)
			b.opts.Logger.Info("Redis answers again", "node", b.node)
		}
	case b.state == breakerClosed:
		switch v {
		case refusedConnection:
			b.trip(now, err)
		case failed:
			b.inRow++
			if b.count(now, 1); b.inRow >= b.opts.Failures || b.among >= 20 && b.counted*2 >= b.among {
				b.trip(now, err)
			}
		case tooLate:
			if b.quiet(now) >= b.opts.Silence {
				b.silent(now)
			}
		}
	case t.trial && v == nothing:
		b.state, b.until = breakerOpen, now
	case t.trial && b.state == breakerHalfOpen:
		b.trip(now, err)
	}
}

// count notes a call among those of this second. The breaker is locked.
func (b *breaker) count(now int64, failures uint32) {
	if now-b.began >= int64(time.Second) {
		b.began, b.counted, b.among = now, 0, 0
	}
	b.counted += failures
	b.among++
}

// quiet returns how long the node has sent nothing while calls waited for it. The breaker is locked.
func (b *breaker) quiet(now int64) time.Duration {
	return time.Duration(now - max(b.asked, b.last.Load()))
}

// listen opens the breaker if calls wait and the node has been silent for too long. It runs again while calls wait.
func (b *breaker) listen() {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.looks = len(b.flights) > 0; !b.looks {
		return
	}
	left := b.opts.Silence - b.quiet(now)
	switch {
	case left > 0:
		b.doubt = false
	case !b.doubt: // bytes may have come while this process had no CPU to read them
		b.doubt, left = true, b.opts.Silence/10
	default:
		b.silent(now)
		b.doubt, left = false, b.opts.Silence
	}
	b.look.Reset(left)
}

// silent opens the breaker and ends the calls that wait for a connection to the node. Calls that wait for an answer end by
// themselves (conn.Read). The breaker is locked.
func (b *breaker) silent(now int64) {
	if b.state != breakerOpen {
		b.trip(now, fmt.Errorf("%w: not a byte for %s", errSilent, b.opts.Silence))
	}
	for _, t := range b.flights {
		t.cancel(errSilent)
	}
}

// trip opens the breaker for OpenFor. The breaker is locked.
func (b *breaker) trip(now int64, err error) {
	if b.state == breakerClosed {
		b.open.Set(1)
		b.opts.Logger.Warn("Redis does not answer: its counters are answered by on_error until it does", "node", b.node, "error", err)
	}
	b.state, b.until, b.asked, b.inRow = breakerOpen, now+int64(b.opts.OpenFor), 0, 0
	b.began, b.counted, b.among = now, 0, 0
}

// DialHook implements goredis.Hook. A failed dial fails the call that needed it, which is counted there.
func (b *breaker) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook implements goredis.Hook.
func (b *breaker) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if connects(cmd) || cmd.Name() == "ping" && isProbe(ctx) {
			return next(ctx, cmd)
		}
		within, t, err := b.begin(ctx)
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		start := time.Now()
		err = next(within, cmd)
		if err = b.after(ctx, within, t, start, err); errors.Is(err, errSilent) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook implements goredis.Hook.
func (b *breaker) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if len(cmds) > 0 && connects(cmds[0]) {
			return next(ctx, cmds)
		}
		within, t, err := b.begin(ctx)
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		start := time.Now()
		err = next(within, cmds)
		if err = b.after(ctx, within, t, start, err); errors.Is(err, errSilent) {
			for _, cmd := range cmds {
				if cmd.Err() != nil {
					cmd.SetErr(err)
				}
			}
		}
		return err
	}
}

// after ends a call, and returns its error.
func (b *breaker) after(ctx, within context.Context, t *trip, start time.Time, err error) error {
	took := time.Since(start)
	b.trips.Observe(took.Seconds())
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(within), errSilent) {
		err = errSilent
	}
	b.end(t, b.verdict(ctx, took, err), err)
	return err
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

// verdict returns what the error of a call shows about the node. An error in the node's own answer shows that it works,
// except for the errors that mean it cannot serve at present.
func (b *breaker) verdict(ctx context.Context, took time.Duration, err error) verdict {
	var reply goredis.Error
	switch {
	case err == nil:
		return answered
	case errors.Is(err, errSilent):
		return tooLate
	case errors.Is(err, context.Canceled), errors.Is(ctx.Err(), context.Canceled):
		return nothing
	case IsTimeout(err):
		if took < b.opts.Patience {
			return nothing
		}
		return tooLate
	case errors.As(err, &reply):
		for _, sick := range [...]string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY"} {
			if strings.HasPrefix(reply.Error(), sick) {
				return failed
			}
		}
		return answered
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT): // the latter: a unix socket that is gone
		return refusedConnection
	default:
		return failed
	}
}
