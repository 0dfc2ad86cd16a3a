package redisconn

import (
	"context"
	"net"
	"time"
)

// Connect makes one connection of the kind that the client library gets.
func Connect(ctx context.Context, addr string) (net.Conn, error) {
	return (&dialer{timeout: 10 * time.Second}).dial(ctx, "tcp", addr)
}

// TLSDialer returns a dialer of encrypted connections of the kind that the client library gets.
func TLSDialer(opts Options) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	opts = opts.defaults()
	files, err := openTLS(&opts)
	if err != nil {
		return nil, err
	}
	return (&dialer{timeout: opts.DialTimeout, tls: files, onNoAnswer: func() {}}).dial, nil
}

// Unread reports whether bytes wait in the socket of a connection.
func Unread(c net.Conn) (bool, error) { return unread(c.(*conn).socket) }

// AtMostEvery limits how often a function is called.
var AtMostEvery = atMostEvery

// IsListed reports whether a cluster's topology has a node.
var IsListed = isListed
