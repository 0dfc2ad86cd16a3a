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

// A machine that is gone is noticed by TCP: it is asked after 15 s of silence, and given up by 30. A process that
// hangs on a machine that lives is only noticed by HTTP/2 pings, and those cannot come often: servers of grpc-go take
// pings within 5 minutes for an attack and close the connection, unless they were told otherwise.
var aliveByTCP = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

const (
	pingEvery   = 330 * time.Second
	pingTimeout = 20 * time.Second
)

// connect makes ready for a connection to the server; it is made with the first call.
func connect(o *Options) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(o.Server,
		grpc.WithTransportCredentials(transport{o.TLS}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: o.pingEvery, Timeout: o.pingTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessageBytes)),
		grpc.WithUserAgent("ratelimitd"),
		grpc.WithDisableServiceConfig(), // DNS is asked for addresses alone
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", o.Server, err)
	}
	return conn, nil
}

// transport shakes hands with a TLS configuration that is asked for anew each time, none for plain text. As it is not
// the dialler, proxies of the environment are used as everywhere in gRPC.
type transport struct {
	config func() *tls.Config
}

func (t transport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if tcp, is := conn.(*net.TCPConn); is {
		_ = tcp.SetKeepAliveConfig(aliveByTCP) // a connection that cannot is still a connection
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

// OverrideServerName does nothing: the name is part of the configuration.
func (t transport) OverrideServerName(string) error { return nil }

func checkServer(server string) error {
	if server == "" {
		return fmt.Errorf("no server: write host:port")
	}
	if strings.Contains(server, "@") && !strings.HasPrefix(server, "unix") {
		return fmt.Errorf("the server's address has an @ in it: write host:port, and send credentials in a header of the call")
	}
	for _, scheme := range []string{"http://", "https://"} {
		if rest, found := strings.CutPrefix(server, scheme); found {
			return fmt.Errorf("server %s: write host:port without %s, as in %s", server, scheme, rest)
		}
	}
	return nil
}
