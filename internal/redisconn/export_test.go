package redisconn

import (
	"context"
	"net"
	"time"
)

// Connect makes one connection, as the client library would be given it.
func Connect(ctx context.Context, addr string) (net.Conn, error) {
	return (&dialer{timeout: 10 * time.Second}).dial(ctx, "tcp", addr)
}
