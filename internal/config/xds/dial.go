package xds

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// TCP keepalive detects a lost machine: it probes after 15 s of silence and gives up by 30 s. Only HTTP/2 pings detect
// a hanging process, and they must be rare: by default, grpc-go servers take more than one ping in 5 minutes for an
// attack and close the connection.
var aliveByTCP = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

const (
	pingEvery   = 330 * time.Second
	pingTimeout = 20 * time.Second
)

// connect prepares a connection to the server. The first call makes it.
func connect(o *Options) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(o.Server,
		grpc.WithTransportCredentials(transport{o.TLS}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.pingEvery, Timeout: o.pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageBytes)),
		grpc.WithUserAgent("ratelimitd"),
		grpc.WithDisableServiceConfig(), // look up only addresses in DNS
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.Server, err)
	}
	return conn, nil
}

// transport performs the TLS handshake, with a configuration that it requests for each connection; nil means no TLS. It
// is not the dialler, so gRPC still uses the proxies of the environment.
type transport struct {
	config func() *tls.Config
}

func (t transport) ClientHandshake(ctx context.Context, authority string,
	conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if tcp, is := conn.(*net.TCPConn); is {
		_ = tcp.SetKeepAliveConfig(aliveByTCP) // the connection works without it too
	}
	return t.now().ClientHandshake(ctx, authority, conn)
}

func (t transport) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return t.now().ServerHandshake(conn)
}

func (t transport) now() credentials.TransportCredentials {
	if t.config == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(t.config())
}

func (t transport) Info() credentials.ProtocolInfo { return t.now().Info() }

func (t transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName does nothing: the TLS configuration contains the name.
func (t transport) OverrideServerName(string) error { return nil }

func checkServer(server string) error {
	if server == "" {
		return fmt.Errorf("no server: write host:port")
	}
	if strings.Contains(server, "@") && !strings.HasPrefix(server, "unix") {
		return fmt.Errorf("the server's address has an @ in it: write host:port, and send credentials in a header " +
			"of the call")
	}
	for _, scheme := range []string{"http://", "https://"} {
		if rest, found := strings.CutPrefix(server, scheme); found {
			return fmt.Errorf("server %s: write host:port without %s, as in %s", server, scheme, rest)
		}
	}
	return nil
}
