package matrix

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/server/regionrpc"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
)

// elsewhere returns stores of region us, whose limits region eu counts. The regions are connected as in production:
// over TLS. Denials are not remembered, because a counter would stay denied until the next answer.
func elsewhere(t *testing.T, leased bool) func(*testing.T, string) stores {
	ca := tlstest.NewAuthority(t, "regions")
	files := func(region string) *tlsfiles.Files {
		pair := ca.Issue(t, "spiffe://example.org/region/"+region)
		v := tlstest.NewVolume(t, map[string][]byte{"cert": pair.Cert, "key": pair.Key, "ca": ca.PEM})
		f, err := tlsfiles.Load(tlsfiles.Options{
			Use: "regions", Cert: v.Path("cert"), Key: v.Path("key"), CA: v.Path("ca"), OnlyCA: true, SkipName: true, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	eu, us := files("eu"), files("us")
	return func(t *testing.T, _ string) stores {
		at := new(dated)
		at.now.Store(&start)
		o := regions.Options{
			Store: memory.New(memory.Options{}), Region: "eu", Regions: []string{"eu", "us"}, Denials: -1, Now: func() time.Time { return *at.now.Load() },
			Timeout: answered, Logger: slog.New(slog.DiscardHandler),
		}
		home, err := regions.New(o)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server, err := regionrpc.NewServer(regionrpc.ServerOptions{Listener: listener, TLS: eu, Region: "eu", Regions: o.Regions, Store: home, Log: o.Logger})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- server.Run(ctx) }()
		peers, err := regionrpc.NewPeers(regionrpc.Options{Addresses: map[string]string{"eu": listener.Addr().String()}, TLS: us, Log: o.Logger})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = peers.Close()
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		o.Store, o.Region, o.Peers = memory.New(memory.Options{}), "us", peers
		far, err := regions.New(o)
		if err != nil {
			t.Fatal(err)
		}
		at.Store = far
		all := one(at)
		all.rules = func(r regions.Resolver) { home.SetResolver(r) }
		all.did = func() bool { return far.Status().Waited > 0 && (!leased || far.Status().Leased > 0) }
		return all
	}
}

// dated is a store that tells another one the time of its requests.
type dated struct {
	backend.Store

	now atomic.Pointer[time.Time]
}

func (d *dated) Start(ctx context.Context, now time.Time, b *backend.Batch, r *backend.Request, done func(error)) (bool, error) {
	d.now.Store(&now)
	return d.Store.Start(ctx, now, b, r, done)
}

func (d *dated) Peek(ctx context.Context, now time.Time, r *backend.Request) error {
	d.now.Store(&now)
	return d.Store.Peek(ctx, now, r)
}
