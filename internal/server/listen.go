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

// clientBytes bounds what is held for the clients of each listener.
type clientBytes struct {
	grpc, http *intake.Bytes
}

// callSize is about how many bytes a call in flight takes besides a long message.
const callSize = 3 << 10

// newClientBytes makes the classes of what is held for clients. A part of the budget is reserved for each, so that an attack over HTTP
// closes no connection of gRPC.
func newClientBytes(o *Options, calls *intake.Calls) *clientBytes {
	budget := o.Shared.Budget
	budget.Counted("calls", min(callSize*int64(o.Calls.Max), budget.Total()/8), func() int64 { return callSize * calls.InFlight() })
	return &clientBytes{
		grpc: intake.NewBytes(o.Connections.MaxBytes, budget.Class("grpc", budget.Total()/4)),
		http: intake.NewBytes(o.Connections.MaxBytes, budget.Class("http", budget.Total()/8)),
	}
}

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
