package server

import (
	"fmt"
	"net"
)

// listeners are open before anything is served, so that a port that is taken is an error at start.
type listeners struct {
	grpc, http, debug net.Listener
}

func listen(opts *Options) (_ listeners, err error) {
	var l listeners
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.grpc, err = open("gRPC", opts.GRPCAddr); err != nil {
		return l, err
	}
	if l.http, err = open("HTTP", opts.HTTPAddr); err != nil {
		return l, err
	}
	if l.debug, err = open("debug", opts.DebugAddr); err != nil {
		return l, err
	}
	return l, nil
}

func open(what, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for %s on %s: %w", what, address, err)
	}
	return l, nil
}

func (l *listeners) close() {
	for _, open := range []net.Listener{l.grpc, l.http, l.debug} {
		if open != nil {
			_ = open.Close()
		}
	}
}
