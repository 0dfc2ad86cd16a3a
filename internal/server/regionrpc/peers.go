package regionrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

const (
	// clientPing is the silence after which a connection is tested. A cut connection is noticed after this time plus
	// clientPingTimeout.
	clientPing, clientPingTimeout = 10 * time.Second, 3 * time.Second

	// fullMessage is the size at which a message is full: more queries are sent in another call. The rest of a server's
	// limit has room for the largest query.
	fullMessage = maxMessage / 2
)

// reconnects configures retries of failed connections: soon, because requests wait.
var reconnects = grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 3 * time.Second},
	MinConnectTimeout: 2 * time.Second,
}

// spread uses all addresses of a region in turn: any of its replicas can answer.
const spread = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// Options are the settings of Peers. Addresses and TLS are required.
type Options struct {
	Addresses map[string]string // address of each other region: host:port, or another gRPC target such as dns:///host:port
	TLS       *tlsfiles.Files   // created with OnlyCA and SkipName: certificates name regions, not machines
	Metrics   metric.Registry   // nil does not register the metrics
	Log       *slog.Logger      // default slog.Default()
}

// Peers asks other regions. It implements regions.Peers.
type Peers struct {
	log *slog.Logger
	all map[string]*peerRegion
}

var _ regions.Peers = (*Peers)(nil)

// peerRegion is one other region.
type peerRegion struct {
	name    string
	address string
	conn    *grpc.ClientConn
	client  regionv1.RegionServiceClient

	log       *slog.Logger
	down      atomic.Bool  // the last call failed
	answered  atomic.Int64 // when the last call was answered, in Unix nanoseconds
	durations *metric.Durations

	mu    sync.Mutex
	lines map[*line]bool
}

// bounds of call durations, from neighbouring regions to different continents.
var bounds = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// NewPeers prepares connections. The first call to a region opens its connection.
func NewPeers(o Options) (*Peers, error) {
	p := &Peers{log: o.Log, all: make(map[string]*peerRegion, len(o.Addresses))}
	if p.log == nil {
		p.log = slog.Default()
	}
	for name, address := range o.Addresses {
		r := &peerRegion{name: name, address: address, log: p.log, durations: metric.NewDurations(bounds),
			lines: make(map[*line]bool)}
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(toRegion{o.TLS, name}),
			grpc.WithContextDialer(r.dial),
			grpc.WithStatsHandler(sent{of: r}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: clientPingTimeout,
				PermitWithoutStream: true}),
			grpc.WithConnectParams(reconnects),
			grpc.WithDefaultServiceConfig(spread),
			grpc.WithDisableServiceConfig(),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
			grpc.WithUserAgent("ratelimitd"),
		)
		if err != nil {
			_ = p.Close()
			return nil, fmt.Errorf("connect to region %s at %s: %w", name, address, err)
		}
		r.conn, r.client = conn, regionv1.NewRegionServiceClient(conn)
		p.all[name] = r
	}
	metric.Register(o.Metrics, p.families()...)
	return p, nil
}

// Close closes all connections. Calls in flight fail.
func (p *Peers) Close() error {
	var errs []error
	for _, r := range p.all {
		errs = append(errs, r.conn.Close())
	}
	return errors.Join(errs...)
}

// sorted returns the regions by name.
func (p *Peers) sorted() []*peerRegion {
	all := make([]*peerRegion, 0, len(p.all))
	for _, r := range p.all {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *peerRegion) int { return strings.Compare(a.name, b.name) })
	return all
}

func (p *Peers) families() []metric.Family {
	label := []string{"peer"} // targets often already have a label "region"
	return []metric.Family{
		{Name: "ratelimitd_region_up", Help: "1 if the other region answered the last call.", Labels: label,
			Levels: func(emit metric.Emit) {
				for _, r := range p.sorted() {
					emit(metric.Bool(r.answered.Load() > 0 && !r.down.Load()), r.name)
				}
			}},
		{Name: "ratelimitd_region_rtt_seconds", Help: "Time of a call that the other region answered.", Labels: label,
			Durations: func(emit metric.EmitDurations) {
				for _, r := range p.sorted() {
					emit(r.durations, r.name)
				}
			}},
	}
}

// done records the result of a call. It logs when a region stops or resumes answering.
func (r *peerRegion) done(ctx context.Context, err error) {
	if err == nil {
		r.answered.Store(time.Now().UnixNano())
		if r.down.Swap(false) {
			r.log.Info("a region answers again", "region", r.name)
		}
		return
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the caller gave up, or the service stops
	}
	if !r.down.Swap(true) {
		r.log.Warn("a region does not answer", "region", r.name, "address", r.address, "error", err)
	}
}

// Ask implements regions.Peers.
func (p *Peers) Ask(
	ctx context.Context, region string, queries []regions.Query, heard func(regions.State),
	answered func(int, *regions.Answer),
) error {
	r := p.all[region]
	if r == nil {
		return fmt.Errorf("region %q is not among the configured ones", region)
	}
	places := make([]int, 0, len(queries)) // indexes of the queries of a call
	for next := 0; ; {
		m, size := new(regionv1.AskRequest), 0
		places = places[:0]
		for ; next < len(queries) && len(m.Queries) < regions.MaxQueries && size < fullMessage; next++ {
			if tooLarge(&queries[next]) {
				answered(next, &regions.Answer{Rejected: regions.Invalid})
				continue
			}
			q := encodeQuery(&queries[next])
			size += proto.Size(q)
			m.Queries, places = append(m.Queries, q), append(places, next)
		}
		if len(m.Queries) > 0 || len(queries) == 0 {
			if err := r.ask(ctx, m, heard, func(i int, a *regions.Answer) {
				if i < len(places) {
					answered(places[i], a)
				}
			}); err != nil {
				return err
			}
		}
		if next == len(queries) {
			return nil
		}
	}
}

// ask makes one call, and closes connections that are silent.
func (r *peerRegion) ask(
	ctx context.Context, m *regionv1.AskRequest, heard func(regions.State), answered func(int, *regions.Answer),
) error {
	began := time.Now()
	on := new(atomic.Pointer[line])
	waits, heardOf := context.WithCancel(ctx)
	defer heardOf()
	silent := time.AfterFunc(silence, func() { r.hangUp(waits, on) })
	defer silent.Stop()
	stream, err := r.client.Ask(context.WithValue(ctx, sent{}, on), m)
	for first := true; err == nil; first = false {
		var some *regionv1.AskResponse
		if some, err = stream.Recv(); err != nil {
			break
		}
		if first {
			silent.Stop()
			heardOf()
			r.durations.Observe(time.Since(began))
			heard(regions.State{
				Replica: some.GetReplica(), Sum: some.GetState(), Rules: some.GetRules(), Replicas: int(some.GetReplicas()),
			})
		}
		for _, a := range some.GetAnswers() {
			answered(int(a.GetQuery()), decodeAnswer(a))
		}
	}
	switch {
	case errors.Is(err, io.EOF):
		err = nil
	case err != nil && waits.Err() == nil && time.Since(began) >= silence:
		err = fmt.Errorf("no answer for %s: %w", silence, err)
	}
	r.done(ctx, err)
	return err
}

// silence is the time after which a connection without an answer to a call is closed: its replica may have stopped,
// while others answer.
const silence = time.Second

// hangUp closes the connection of a call that waits for its answer, as soon as the connection is silent. It also closes
// each connection without a reply to sent bytes, such as one that is being established.
func (r *peerRegion) hangUp(waits context.Context, on *atomic.Pointer[line]) {
	if waits.Err() != nil {
		return
	}
	now, its := time.Now().UnixNano(), on.Load()
	r.mu.Lock()
	var out []*line
	for c := range r.lines {
		at := c.unheard.Load()
		if at != 0 && now-at >= (silence*9/10).Nanoseconds() || c == its && now-c.heard.Load() >= (silence/2).Nanoseconds() {
			out = append(out, c)
		}
	}
	r.mu.Unlock()
	for _, c := range out {
		_ = c.Conn.Close()
	}
	if its != nil && !slices.Contains(out, its) {
		time.AfterFunc(silence/4, func() { r.hangUp(waits, on) })
	}
}

// line is a connection to a region.
type line struct {
	net.Conn
	of      *peerRegion
	heard   atomic.Int64 // when bytes were last received, in Unix nanoseconds
	unheard atomic.Int64 // when bytes were first sent without a reply since, in Unix nanoseconds; 0 without any
}

// sent stores the connection of a call in its context, under the key sent{}.
type sent struct{ of *peerRegion }

// HandleRPC implements stats.Handler.
func (s sent) HandleRPC(ctx context.Context, event stats.RPCStats) {
	header, is := event.(*stats.OutHeader)
	on, _ := ctx.Value(sent{}).(*atomic.Pointer[line])
	if !is || on == nil {
		return
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for c := range s.of.lines {
		if c.LocalAddr() == header.LocalAddr {
			on.Store(c)
		}
	}
}

// TagRPC implements stats.Handler.
func (sent) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (sent) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (sent) HandleConn(context.Context, stats.ConnStats) {}

func (r *peerRegion) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l := &line{Conn: c, of: r}
	r.mu.Lock()
	r.lines[l] = true
	r.mu.Unlock()
	return l, nil
}

// Read implements net.Conn.
func (l *line) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	if n > 0 {
		l.heard.Store(time.Now().UnixNano())
		l.unheard.Store(0)
	}
	return n, err
}

// Write implements net.Conn.
func (l *line) Write(b []byte) (int, error) {
	l.unheard.CompareAndSwap(0, time.Now().UnixNano())
	return l.Conn.Write(b)
}

// Close implements net.Conn.
func (l *line) Close() error {
	l.of.mu.Lock()
	delete(l.of.lines, l)
	l.of.mu.Unlock()
	return l.Conn.Close()
}
