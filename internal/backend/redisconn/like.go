package redisconn

import (
	"context"
	"net"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
)

// IsKnown reports whether Options.Like may be this client.
func IsKnown(client goredis.UniversalClient) bool {
	switch client.(type) {
	case *goredis.Client, *goredis.ClusterClient:
		return true
	}
	return false
}

// dialLike returns a client that connects as Options.Like does. A client with sentinels dials through them.
func (o *Options) dialLike() (goredis.UniversalClient, error) {
	pool, err := o.pool()
	if err != nil {
		return nil, err
	}
	d := &dialer{timeout: pool.dial, connections: o.Connections, settings: o.Settings, onNoAnswer: func() {}}
	all := newBreakers(o.Breaker, o.Logger, d.explain)
	if c, ok := o.Like.(*goredis.ClusterClient); ok {
		of := c.Options()
		if d.own = of.Dialer; d.own == nil {
			d.own = goredis.NewDialer(&goredis.Options{TLSConfig: of.TLSConfig, DialTimeout: pool.dial})
		}
		login := &credentials{given: givenBy(of.Username, of.Password, of.CredentialsProvider, of.CredentialsProviderContext,
			of.StreamingCredentialsProvider)}
		return dialCluster(address{kind: cluster, hosts: of.Addrs}, login, pool, d, all), nil
	}
	of := o.Like.(*goredis.Client).Options()
	d.own = of.Dialer
	login := &credentials{given: givenBy(of.Username, of.Password, of.CredentialsProvider, of.CredentialsProviderContext,
		of.StreamingCredentialsProvider)}
	return dialSingle(address{kind: single, network: of.Network, hosts: []string{of.Addr}, db: of.DB}, login, pool, d, all,
		o.Lanes), nil
}

// givenBy returns a function that provides the credentials of new connections, by the client library's order of
// precedence.
func givenBy(user, password string, provider func() (string, string),
	within func(context.Context) (string, string, error),
	streaming auth.StreamingCredentialsProvider) func(context.Context) (account, error) {
	return func(ctx context.Context) (account, error) {
		switch {
		case streaming != nil:
			now, unsubscribe, err := streaming.Subscribe(oneConnection{})
			if err != nil {
				return account{}, err
			}
			user, password := now.BasicAuth()
			return account{user, password}, unsubscribe()
		case within != nil:
			user, password, err := within(ctx)
			return account{user, password}, err
		case provider != nil:
			user, password := provider()
			return account{user, password}, nil
		}
		return account{user, password}, nil
	}
}

// oneConnection is a listener that ignores changes: the next connection asks again.
type oneConnection struct{}

// OnNext implements auth.CredentialsListener.
func (oneConnection) OnNext(auth.Credentials) {}

// OnError implements auth.CredentialsListener.
func (oneConnection) OnError(error) {}

// reachOwn connects with the dialer of the program.
func (d *dialer) reachOwn(ctx context.Context, network, addr string) (*conn, error) {
	c, err := d.own(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	encrypted, plain := c, c
	if inner, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		plain = inner.NetConn()
	}
	socket, err := socketOf(plain)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &conn{Conn: c, socket: socket, encrypted: encrypted != plain}, nil
}
