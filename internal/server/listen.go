package server

import (
	"net"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// listeners are open before anything is served, so that a port that is taken is an error at start.
type listeners struct {
	grpc, http net.Listener
}

// clientBytes bounds what is held for clients. Headers over HTTP/1 have a bound of their own, so that an attack with them closes no
// connection of gRPC.
type clientBytes struct {
	grpc, http *intake.Bytes
}

func newClientBytes(o *Connections) *clientBytes {
	return &clientBytes{intake.NewBytes(o.MaxBytes, o.MaxBytesOfAll), intake.NewBytes(o.MaxBytes, o.MaxBytesOfAll/4)}
}

// held returns approximately how many bytes are held.
func (b *clientBytes) held() int64 { return b.grpc.Held() + b.http.Held() }

func listen(opts *Options, bytes *clientBytes) (_ listeners, err error) {
	var l listeners
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if opts.Listen.Socket != "" {
		l.grpc, err = endpoint.ListenSocket(opts.Listen.Socket, opts.Listen.SocketMode)
	} else {
		l.grpc, err = opts.Shared.Listen("gRPC", opts.Listen.GRPC, pingTimeout)
	}
	if err != nil {
		return l, err
	}
	if l.http, err = opts.Shared.Listen("HTTP", opts.Listen.HTTP, 0); err != nil {
		return l, err
	}
	c, m, log := &opts.Connections, opts.Shared.Connections, opts.Shared.Log
	l.grpc = intake.Listen(l.grpc, intake.Options{
		Name: "grpc", MaxConnections: c.Max, PeerShare: c.PeerShare, Bytes: bytes.grpc, Metrics: m, Log: log,
		FirstCall: c.FirstCallTimeout, Message: c.MessageTimeout, Write: c.WriteTimeout,
	})
	l.http = intake.Listen(l.http, intake.Options{
		Name: "http", MaxConnections: c.Max, PeerShare: c.PeerShare, ReadsAreCalls: true, Bytes: bytes.http, Metrics: m, Log: log,
	})
	return l, nil
}

func (l *listeners) close() {
	for _, open := range []net.Listener{l.grpc, l.http} {
		if open != nil {
			_ = open.Close()
		}
	}
}
