package redisconn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// BreakerOptions are the settings of the breakers, one per node. The zero value serves.
type BreakerOptions struct {
	// Silence is how long a node may send nothing while calls wait for it. Then the breaker opens and the calls fail. A
	// slow node that sends anything keeps the breaker closed. Default 1 s.
	Silence time.Duration

	OpenFor time.Duration // how long an open breaker fails calls before it lets one through as a trial; default 200 ms

	// Patience is how long a call must have waited for its timeout to count. A call with a very near deadline proves
	// nothing about the node. Default 5 ms.
	Patience time.Duration

	Opened *OpenBreakers // set of nodes with open breakers, filled by the breakers; may be nil

	Metrics metric.Registry // nil disables metrics
	Logger  *slog.Logger    // default slog.Default()

	explain func(error) error // adds advice to the error that opens a breaker
}

// OpenBreakers are the nodes whose breakers are open. The zero value is ready.
type OpenBreakers struct {
	mu    sync.Mutex
	nodes map[string]struct{}
}

// Open returns the addresses of these nodes in order.
func (o *OpenBreakers) Open() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(maps.Keys(o.nodes))
}

func (o *OpenBreakers) set(node string, open bool) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !open {
		delete(o.nodes, node)
		return
	}
	if o.nodes == nil {
		o.nodes = make(map[string]struct{})
	}
	o.nodes[node] = struct{}{}
}

// tripBuckets are finest around the round trip of a Redis nearby.
var tripBuckets = []time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond,
	5 * time.Millisecond, 10 * time.Millisecond,
	15 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
	time.Second,
}

// breakers makes the breakers of one client's nodes. Each node has separate metrics until it leaves its cluster.
type breakers struct {
	opts     BreakerOptions
	rejected atomic.Uint64

	mu       sync.Mutex
	measured map[*breaker]struct{}   // the breakers whose nodes have metrics
	nodes    map[string]*nodeMetrics // the metrics, by the addresses of the nodes
}

// nodeMetrics are the metrics of a node. A client may make several breakers for one node; they share its metrics.
type nodeMetrics struct {
	open  atomic.Bool
	trips *metric.Durations
}

// newBreakers returns nil if no breaker is wanted.
func newBreakers(wanted *BreakerOptions, log *slog.Logger, explain func(error) error) *breakers {
	if wanted == nil {
		return nil
	}
	opts := *wanted
	opts.explain = explain
	if opts.Silence <= 0 {
		opts.Silence = time.Second
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
	all := &breakers{opts: opts, measured: make(map[*breaker]struct{}), nodes: make(map[string]*nodeMetrics)}
	metric.Register(opts.Metrics,
		metric.Family{
			Name: "ratelimitd_redis_breaker_open",
			Help: "1 while calls fail immediately, because the node does not answer.", Labels: []string{"node"},
			Levels: func(emit metric.Emit) {
				for addr, n := range all.shown() {
					emit(metric.Bool(n.open.Load()), addr)
				}
			},
		},
		metric.Counter("ratelimitd_redis_breaker_rejected_total",
			"Calls that failed immediately.", all.rejected.Load),
		metric.Family{
			Name:   "ratelimitd_redis_trip_duration_seconds",
			Help:   "Time of a round trip, with the wait for a connection.",
			Labels: []string{"node"},
			Durations: func(emit metric.EmitDurations) {
				for addr, n := range all.shown() {
					emit(n.trips, addr)
				}
			},
		})
	return all
}

// shown returns the metrics of the nodes by address.
func (all *breakers) shown() map[string]*nodeMetrics {
	all.mu.Lock()
	defer all.mu.Unlock()
	return maps.Clone(all.nodes)
}

// newBreaker returns the breaker of a node, or nil if none is wanted.
func (all *breakers) newBreaker(node string) *breaker {
	if all == nil {
		return nil
	}
	b := &breaker{all: all, opts: &all.opts, node: node, base: time.Now()}
	b.measure()
	b.timer = time.AfterFunc(time.Hour, b.checkSilence)
	b.timer.Stop()
	return b
}

// keep removes the metrics of nodes that a cluster's topology does not list. Otherwise the breaker of a node that has
// failed and comes back under another address would be open until this replica ends. A node gets its metrics back with
// its next call.
func (all *breakers) keep(topology []goredis.ClusterSlot) {
	if all == nil {
		return
	}
	listed := make(map[string]bool)
	for i := range topology {
		for j := range topology[i].Nodes {
			listed[topology[i].Nodes[j].Addr] = true
		}
	}
	all.mu.Lock()
	measured := slices.Collect(maps.Keys(all.measured))
	all.mu.Unlock()
	for _, b := range measured {
		if !isListed(listed, b.node) {
			b.leave()
		}
	}
}

// isListed reports whether a topology lists a node. The client replaces loopback addresses and port 0 in it by the
// address and port of the node that it asked, so either stands for any.
func isListed(listed map[string]bool, node string) bool {
	if listed[node] {
		return true
	}
	host, port, _ := net.SplitHostPort(node)
	for addr := range listed {
		h, p, err := net.SplitHostPort(addr)
		ip := net.ParseIP(h)
		anyHost := h == "" || ip != nil && ip.IsLoopback()
		if err != nil || (h == host || anyHost) && (p == port || p == "0") {
			return true
		}
	}
	return false
}

// breaker is the circuit breaker of one node. While it is open, calls to the node fail immediately instead of waiting
// for their deadlines. Calls to other nodes of a cluster continue.
//
// It hooks into the node's calls, and the node's connections report to it when bytes arrive. Any byte shows that the
// node is alive, however late it comes.
type breaker struct {
	all  *breakers
	opts *BreakerOptions
	node string

	base     time.Time    // times below are nanoseconds after it
	lastByte atomic.Int64 // time of the node's latest byte

	mu           sync.Mutex
	metrics      *nodeMetrics // nil after the node has left its cluster
	state        breakerState
	until        int64          // when an open breaker lets a trial through
	waitingSince int64          // start of the first call since the latest byte; 0 if no call waits
	inFlight     []*breakerCall // unordered
	timer        *time.Timer    // runs checkSilence
	checking     bool           // timer is set
	suspect      bool           // checkSilence found the node silent for too long, and checks once more

	// Failures that are not timeouts.
	consecutive    uint32
	windowStart    int64 // the start of the second in which the following are counted
	windowFailures uint32
	windowCalls    uint32
}

type breakerState uint8

const (
	breakerClosed   breakerState = iota
	breakerOpen                  // calls fail immediately
	breakerHalfOpen              // one trial is in flight, other calls fail immediately
)

// breakerCall is a call in flight.
type breakerCall struct {
	cancel context.CancelCauseFunc // nil if the call already has a connection
	trips  *metric.Durations
	trial  bool
	index  int // index in breaker.inFlight
}

// maxFailures is how many calls in a row open the breaker because their connection broke or the node cannot serve. Half
// of at least 20 calls in a second do too. A refused connection opens it immediately.
const maxFailures = 5

// evidence is the result of a finished call for the state of its node.
type evidence uint8

const (
	nodeAnswered evidence = iota
	noEvidence            // the call ended before the node could answer
	timedOut              // whether the breaker opens depends on how long the node has been silent
	nodeFailed
	connRefused
)

// install adds the breaker's hook to a client.
func (b *breaker) install(client *goredis.Client) {
	if b != nil {
		client.AddHook(b)
	}
}

func (b *breaker) now() int64 { return int64(time.Since(b.base)) }

// received records that a byte arrived.
func (b *breaker) received() { b.lastByte.Store(b.now()) }

// measure makes the metrics of the node. The breaker is locked, or new.
func (b *breaker) measure() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	b.metrics = b.all.nodes[b.node]
	if b.metrics == nil {
		b.metrics = &nodeMetrics{trips: metric.NewDurations(tripBuckets)}
		b.all.nodes[b.node] = b.metrics
	}
	b.all.measured[b] = struct{}{}
	b.showState()
}

// leave removes the metrics of the node.
func (b *breaker) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.metrics == nil {
		return
	}
	if b.state != breakerClosed {
		b.opts.Logger.Info("a node of Redis that did not answer has left the cluster", "node", b.node)
	}
	b.metrics = nil
	b.opts.Opened.set(b.node, false)
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	delete(b.all.measured, b)
	delete(b.all.nodes, b.node)
}

// showState shows the state of the breaker, which is locked.
func (b *breaker) showState() {
	open := b.metrics != nil && b.state != breakerClosed
	b.opts.Opened.set(b.node, open)
	if b.metrics != nil {
		b.metrics.open.Store(open)
	}
}

// begin starts a call that may have to wait for a connection, or returns ErrBreakerOpen.
func (b *breaker) begin(ctx context.Context) (context.Context, *breakerCall, error) {
	c := new(breakerCall)
	ctx, c.cancel = context.WithCancelCause(ctx)
	if err := b.admit(c); err != nil {
		c.cancel(nil)
		return nil, nil, err
	}
	return ctx, c, nil
}

// admit starts a call, or returns ErrBreakerOpen.
func (b *breaker) admit(c *breakerCall) error {
	if b == nil {
		return nil
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.metrics == nil {
		b.measure()
	}
	c.trips, c.trial = b.metrics.trips, false
	switch {
	case b.state == breakerClosed:
		if b.waitingSince == 0 || b.lastByte.Load() > b.waitingSince {
			b.waitingSince = now
		}
	case b.state == breakerOpen && now >= b.until:
		b.state, b.waitingSince, c.trial = breakerHalfOpen, now, true
	default:
		b.all.rejected.Add(1)
		return ErrBreakerOpen
	}
	c.index = len(b.inFlight)
	b.inFlight = append(b.inFlight, c)
	if !b.checking {
		b.checking = true
		b.timer.Reset(b.opts.Silence)
	}
	return nil
}

// end records the evidence of a finished call.
func (b *breaker) end(c *breakerCall, e evidence, err error) {
	if c.cancel != nil {
		c.cancel(nil)
	}
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	last := len(b.inFlight) - 1
	moved := b.inFlight[last]
	b.inFlight[c.index], moved.index = moved, c.index
	b.inFlight[last] = nil
	b.inFlight = b.inFlight[:last]
	switch {
	case e == nodeAnswered:
		b.consecutive = 0
		b.count(now, 0)
		if b.state != breakerClosed {
			b.state = breakerClosed
			b.showState()
			b.opts.Logger.Info("Redis answers again", "node", b.node)
		}
	case b.state == breakerClosed:
		switch e {
		case connRefused:
			b.trip(now, err)
		case nodeFailed:
			b.consecutive++
			if b.count(now, 1); b.consecutive >= maxFailures || b.windowCalls >= 20 && b.windowFailures*2 >= b.windowCalls {
				b.trip(now, err)
			}
		case timedOut:
			if b.silentFor(now) >= b.opts.Silence {
				b.tripSilent(now)
			}
		}
	case c.trial && e == noEvidence:
		b.state, b.until = breakerOpen, now
	case c.trial && b.state == breakerHalfOpen:
		b.trip(now, err)
	}
}

// count adds a call to this second's counts. The breaker is locked.
func (b *breaker) count(now int64, failures uint32) {
	if now-b.windowStart >= int64(time.Second) {
		b.windowStart, b.windowFailures, b.windowCalls = now, 0, 0
	}
	b.windowFailures += failures
	b.windowCalls++
}

// silentFor returns how long the node has sent nothing while calls waited for it. The breaker is locked.
func (b *breaker) silentFor(now int64) time.Duration {
	return time.Duration(now - max(b.waitingSince, b.lastByte.Load()))
}

// checkSilence opens the breaker if calls wait and the node has been silent for too long. It runs again while calls
// wait.
func (b *breaker) checkSilence() {
	now := b.now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.checking = len(b.inFlight) > 0; !b.checking {
		return
	}
	left := b.opts.Silence - b.silentFor(now)
	switch {
	case left > 0:
		b.suspect = false
	case !b.suspect: // bytes may have arrived while this process had no CPU to read them
		b.suspect, left = true, b.opts.Silence/10
	default:
		b.tripSilent(now)
		b.suspect, left = false, b.opts.Silence
	}
	b.timer.Reset(left)
}

// tripSilent opens the breaker and ends the calls that wait for a connection to the node. Calls that wait for an answer
// end on their own (conn.Read). The breaker is locked.
func (b *breaker) tripSilent(now int64) {
	if b.state != breakerOpen {
		b.trip(now, fmt.Errorf("%w: not a byte for %s", errSilent, b.opts.Silence))
	}
	for _, c := range b.inFlight {
		if c.cancel != nil {
			c.cancel(errSilent)
		}
	}
}

// trip opens the breaker for OpenFor. The breaker is locked.
func (b *breaker) trip(now int64, err error) {
	if b.state == breakerClosed {
		about := []any{"node", b.node, "error", err}
		if known, ok := errors.AsType[*advisedError](b.opts.explain(err)); ok {
			about = append(about, "advice", known.advice)
		}
		b.opts.Logger.Warn("Redis does not answer: its counters are answered by on_error until it does", about...)
	}
	b.state, b.until, b.waitingSince, b.consecutive = breakerOpen, now+int64(b.opts.OpenFor), 0, 0
	b.showState()
	b.windowStart, b.windowFailures, b.windowCalls = now, 0, 0
}

// DialHook implements goredis.Hook. A failed dial fails the call that needed it, which is counted there.
func (b *breaker) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook implements goredis.Hook.
func (b *breaker) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() == "ping" && isProbe(ctx) {
			return next(ctx, cmd)
		}
		within, c, err := b.begin(ctx)
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		start := time.Now()
		err = next(within, cmd)
		if err = b.after(ctx, within, c, start, err); errors.Is(err, errSilent) {
			cmd.SetErr(err)
		}
		return err
	}
}

// ProcessPipelineHook implements goredis.Hook.
func (b *breaker) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		within, c, err := b.begin(ctx)
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		start := time.Now()
		err = next(within, cmds)
		if err = b.after(ctx, within, c, start, err); errors.Is(err, errSilent) {
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
func (b *breaker) after(ctx, within context.Context, c *breakerCall, start time.Time, err error) error {
	took := time.Since(start)
	c.trips.Observe(took)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(within), errSilent) {
		err = errSilent
	}
	b.end(c, b.evidence(ctx, took, err), err)
	return err
}

// evidence returns the evidence in the error of a call. An error reply shows that the node works, unless it says that
// the node cannot serve at present.
func (b *breaker) evidence(ctx context.Context, took time.Duration, err error) evidence {
	var reply goredis.Error
	switch {
	case err == nil:
		return nodeAnswered
	case errors.Is(err, errSilent):
		return timedOut
	case errors.Is(err, context.Canceled), errors.Is(ctx.Err(), context.Canceled):
		return noEvidence
	case IsTimeout(err):
		if took < b.opts.Patience {
			return noEvidence
		}
		return timedOut
	case errors.As(err, &reply):
		for _, prefix := range [...]string{"LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY"} {
			if strings.HasPrefix(reply.Error(), prefix) {
				return nodeFailed
			}
		}
		return nodeAnswered
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT): // ENOENT: a unix socket that is gone
		return connRefused
	default:
		return nodeFailed
	}
}
