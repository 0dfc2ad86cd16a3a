package regionrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/backend/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	regionv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/region/v1"
)

const (
	// clientPing is after how long without a sign of life a connection is tested. A cut connection is noticed after this and
	// clientPingTimeout.
	clientPing, clientPingTimeout = 10 * time.Second, 3 * time.Second

	// defaultTimeout is for calls without a deadline.
	defaultTimeout = 5 * time.Second

	// A message of so many bytes is full: other questions are asked in another call. The largest question fits into the rest of what a
	// server accepts.
	fullMessage = maxMessage / 2
)

// reconnects says when a connection that failed is tried again: soon, because permits run out while it does not work.
var reconnects = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// spread uses all addresses of a region in turn: any of its replicas can answer.
const spread = `{"loadBalancingConfig":[{"round_robin":{}}]}`

// Options are the settings of Peers. Addresses and TLS are required.
type Options struct {
	Addresses map[string]string // of the other regions, by name: host:port, or what gRPC accepts, such as dns:///host:port
	TLS       *tlsfiles.Files   // made with OnlyCA and SkipName: names of machines do not matter, regions do
	Metrics   metric.Registry   // nil: counted, but not registered
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

	down      atomic.Bool  // the last call failed
	answered  atomic.Int64 // when the last call was answered, in Unix nanoseconds
	durations *metric.Durations
}

// bounds of the durations of calls: of regions side by side, and on two continents.
var bounds = []time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// NewPeers prepares connections. The first call to a region makes its connection.
func NewPeers(o Options) (*Peers, error) {
	p := &Peers{log: o.Log, all: make(map[string]*peerRegion, len(o.Addresses))}
	if p.log == nil {
		p.log = slog.Default()
	}
	for name, address := range o.Addresses {
		conn, err := grpc.NewClient(address,
			grpc.WithTransportCredentials(toRegion{o.TLS, name}),
			grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPing, Timeout: clientPingTimeout, PermitWithoutStream: true}),
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
		p.all[name] = &peerRegion{name: name, address: address, conn: conn, client: regionv1.NewRegionServiceClient(conn), durations: metric.NewDurations(bounds)}
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
	label := []string{"peer"} // "region" would be taken: targets often have a label of that name
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

// find returns a region.
func (p *Peers) find(name string) (*peerRegion, error) {
	if r := p.all[name]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("region %q is not among the configured ones", name)
}

// within bounds a call without a deadline.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, defaultTimeout)
}

// done takes in what became of a call. It logs when a region stops and begins to answer.
func (p *Peers) done(ctx context.Context, r *peerRegion, began time.Time, err error) {
	if err == nil {
		r.durations.Observe(time.Since(began))
		r.answered.Store(time.Now().UnixNano())
		if r.down.Swap(false) {
			p.log.Info("a region answers again", "region", r.name)
		}
		return
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the caller gave up, or the service stops
	}
	if !r.down.Swap(true) {
		p.log.Warn("a region does not answer", "region", r.name, "address", r.address, "error", err)
	}
}

// Exchange implements regions.Peers.
func (p *Peers) Exchange(ctx context.Context, home string, epoch uint64, queries []regions.Query) ([]regions.Reply, error) {
	r, err := p.find(home)
	if err != nil {
		return nil, err
	}
	ctx, cancel := within(ctx)
	defer cancel()
	replies := make([]regions.Reply, len(queries))
	places := make([]int, 0, min(len(queries), regions.MaxQueries)) // of the questions of a call
	for next := 0; next < len(queries); {
		m, size := &regionv1.ExchangeRequest{Epoch: epoch}, 0
		places = places[:0]
		for ; next < len(queries) && len(m.Queries) < regions.MaxQueries && size < fullMessage; next++ {
			if tooLarge(&queries[next]) {
				replies[next].Refused = regions.Invalid
				continue
			}
			q := encodeQuery(&queries[next])
			size += proto.Size(q)
			m.Queries, places = append(m.Queries, q), append(places, next)
		}
		if len(m.Queries) == 0 {
			continue
		}
		began := time.Now()
		answer, err := r.client.Exchange(ctx, m)
		p.done(ctx, r, began, err)
		if err != nil {
			return nil, fmt.Errorf("ask region %s: %w", home, err)
		}
		if len(answer.GetReplies()) != len(places) {
			return nil, fmt.Errorf("ask region %s: %d answers to %d questions", home, len(answer.GetReplies()), len(places))
		}
		for i, at := range places {
			if replies[at], err = decodeReply(answer.GetReplies()[i], &queries[at]); err != nil {
				return nil, fmt.Errorf("ask region %s: %w", home, err)
			}
		}
	}
	return replies, nil
}

// Consent implements regions.Peers.
func (p *Peers) Consent(ctx context.Context, from string, e *region.Epoch) (bool, error) {
	r, err := p.find(from)
	if err != nil {
		return false, err
	}
	ctx, cancel := within(ctx)
	defer cancel()
	began := time.Now()
	answer, err := r.client.Consent(ctx, encodeEpoch(e))
	p.done(ctx, r, began, err)
	if err != nil {
		return false, fmt.Errorf("ask region %s for consent: %w", from, err)
	}
	return answer.GetConsents(), nil
}
