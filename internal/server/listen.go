package server

import (
	"net"

	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// listeners are opened before serving starts, so that a taken port is an error at startup.
type listeners struct {
	grpc, http net.Listener
}

// clientBytes bounds the memory for the clients of each listener.
type clientBytes struct {
	grpc, http *intake.Bytes
	json       *intake.Class // bodies of /json
}

// newClientBytes creates the memory classes for clients. Each has a reserved part of the budget, so that an attack over
// HTTP does not close gRPC connections.
func newClientBytes(o *Options, calls *intake.Calls) *clientBytes {
	budget := o.Shared.Budget
	budget.Counted("calls", min(callSize*int64(o.Calls.Max), budget.Total()/8),
		func() int64 { return callSize * calls.InFlight() })
	http := budget.Class("http", budget.Total()/16)
	return &clientBytes{
		grpc: intake.NewBytes(o.Connections.MaxBytes, budget.Class("grpc", budget.Total()/8)),
		http: intake.NewBytes(o.Connections.MaxBytes, http),
		json: http,
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
	size, encrypted := int64(endpoint.GRPCSize), opts.Listen.Credentials != nil
	if encrypted {
		size += endpoint.TLSSize
	}
	c, m, log := &opts.Connections, opts.Shared.Connections, opts.Shared.Log
	l.grpc = intake.Listen(l.grpc, intake.Options{
		Name: "grpc", MaxConnections: c.Max, PeerShare: c.PeerShare, Bytes: bytes.grpc, Metrics: m, Log: log,
		Places: opts.Shared.Places, Size: size, Encrypted: encrypted,
		FirstCall: c.FirstCallTimeout, Message: c.MessageTimeout, Write: c.WriteTimeout,
	})
	l.http = intake.Listen(l.http, intake.Options{
		Name: "http", MaxConnections: c.Max, PeerShare: c.PeerShare, ReadsAreCalls: true, Bytes: bytes.http, Metrics: m,
		Log:    log,
		Places: opts.Shared.Places, Size: endpoint.HTTPSize, Request: endpoint.RequestSize,
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
