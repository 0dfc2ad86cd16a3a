package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	// Silence is how long a node may send no byte at all while calls wait for it: then it is left alone, and the calls fail. A node that
	// is slow but answers is never left alone. Default 1 s.
	Silence time.Duration

	// Failures is how many broken connections, or answers that the node cannot serve, open the breaker: so many in a row, or
	// half of at least 20 calls in a second. A connection that is refused opens it at once. Default 5.
	Failures uint32

	OpenFor time.Duration // how long calls are answered at once before one is let through to try; default 200 ms

	// Patience is how long a call must have waited for its timeout to count: a caller with a very near deadline says nothing
	// about the node. Default 5 ms.
	Patience time.Duration

	Metrics prometheus.Registerer // nil: no metrics
	Logger  *slog.Logger          // default slog.Default()
}

// tripBuckets are finest around what a Redis nearby takes.
var tripBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .015, .025, .05, .1, .25, 1}

// errBreakerOpen is what a call gets while its node is left alone.
var errBreakerOpen = errors.New("the node did not answer lately and is left alone for a moment")

// errSilent is what a call gets that waited while its node sent nothing.
var errSilent = errors.New("the node sends nothing while calls wait for it")

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
			Help: "1 while a Redis node is left alone because it does not answer.",
		}, []string{"node"}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ratelimitd_redis_breaker_rejected_total",
			Help: "Calls to Redis that failed at once because their node is left alone.",
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

// breaker stands before one node: while the node does not answer, calls to it fail at once instead of waiting until their time is
// up. On a cluster the calls to other nodes go on.
//
// It is a hook around the node's calls, and the node's connections report each byte to it. Any byte shows that the node is
// alive, however late it comes.
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
	until   int64       // when a node that is left alone is tried again
	asked   int64       // when the first call began that is without an answer, or was when the latest byte came; 0: none
	flights []*trip     // calls under way
	look    *time.Timer // runs listen
	looks   bool        // look is set
	doubt   bool        // the node was silent for too long when listen looked the last time

	// Failures that are no timeouts.
	inRow          uint32 // without an answer between them
	began          int64  // the second in which the following are counted
	counted, among uint32 // failures, and all calls
}

type breakerState uint8

const (
	closed breakerState = iota
	leftAlone
	trying // one call is let through
)

// trip is a call that is under way.
type trip struct {
	cancel context.CancelCauseFunc
	trial  bool
}

// verdict is what the end of a call says of its node.
type verdict uint8

const (
	answered verdict = iota
	nothing          // the call ended before the node could answer
	tooLate          // the call's time was up; the silence of the node decides
	failed
	refusedConnection
)

// before puts it before the calls of a client.
func (b *breaker) before(client *goredis.Client) {
	if b != nil {
		client.AddHook(b)
	}
}

func (b *breaker) now() int64 { return int64(time.Since(b.base)) }

// heard notes that a byte came.
func (b *breaker) heard() { b.last.Store(b.now()) }

// begin lets a call through, or not.
func (b *breaker) begin(ctx context.Context) (context.Context, *trip, error) {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	t := new(trip)
	switch {
	case b.state == closed:
		if b.asked == 0 || b.last.Load() > b.asked {
			b.asked = now
		}
	case b.state == leftAlone && now >= b.until:
		b.state, b.asked, t.trial = trying, now, true
	default:
		b.rejected.Inc()
		return nil, nil, errBreakerOpen
	}
	ctx, t.cancel = context.WithCancelCause(ctx)
	b.flights = append(b.flights, t)
	if !b.looks {
		b.looks = true
		b.look.Reset(b.opts.Silence)
	}
	return ctx, t, nil
}

// end notes what a call that is over says of the node.
func (b *breaker) end(t *trip, v verdict, err error) {
	t.cancel(nil)
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.flights, t); i >= 0 {
		b.flights = slices.Delete(b.flights, i, i+1)
	}
	switch {
	case v == answered:
		b.inRow = 0
		b.count(now, 0)
		if b.state != closed {
			b.state = closed
			b.open.Set(0)
			b.opts.Logger.Info("Redis answers again", "node", b.node)
		}
	case b.state == closed:
		switch v {
		case refusedConnection:
			b.leave(now, err)
		case failed:
			b.inRow++
			if b.count(now, 1); b.inRow >= b.opts.Failures || b.among >= 20 && b.counted*2 >= b.among {
				b.leave(now, err)
			}
		case tooLate:
			if b.quiet(now) >= b.opts.Silence {
				b.silent(now)
			}
		}
	case t.trial && v == nothing:
		b.state, b.until = leftAlone, now
	case t.trial && b.state == trying:
		b.leave(now, err)
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

// quiet is for how long the node has sent nothing while it was asked. The breaker is locked.
func (b *breaker) quiet(now int64) time.Duration {
	return time.Duration(now - max(b.asked, b.last.Load()))
}

// listen leaves the node alone if it has been silent for too long, as long as calls wait for it.
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

// silent leaves the node alone, and ends the calls that wait for a connection to it. Those that wait for an answer end by themselves
// (conn.Read). The breaker is locked.
func (b *breaker) silent(now int64) {
	if b.state != leftAlone {
		b.leave(now, fmt.Errorf("%w: not a byte for %s", errSilent, b.opts.Silence))
	}
	for _, t := range b.flights {
		t.cancel(errSilent)
	}
}

// leave leaves the node alone for a moment. The breaker is locked.
func (b *breaker) leave(now int64, err error) {
	if b.state == closed {
		b.open.Set(1)
		b.opts.Logger.Warn("Redis does not answer: its counters are answered by on_error until it does", "node", b.node, "error", err)
	}
	b.state, b.until, b.asked, b.inRow = leftAlone, now+int64(b.opts.OpenFor), 0, 0
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

// verdict is what the error of a call says of the node. An error that the node itself answered with shows that it
// is well, but for the ones that say it cannot serve now.
func (b *breaker) verdict(ctx context.Context, took time.Duration, err error) verdict {
	var reply goredis.Error
	switch {
	case err == nil:
		return answered
	case errors.Is(err, errSilent):
		return tooLate
	case errors.Is(err, context.Canceled), errors.Is(ctx.Err(), context.Canceled):
		return nothing
	case isTimeout(err):
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
