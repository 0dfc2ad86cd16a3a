package redisconn_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// An answer that has arrived is read even after its deadline.
func TestAnswerThatIsThereIsRead(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		if c, err := listener.Accept(); err == nil {
			_, _ = c.Write([]byte("ab")) // they arrive together
		}
	}()
	c, err := redisconn.Connect(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for i, by := range []time.Duration{longest, -time.Second} {
		if err := c.SetReadDeadline(time.Now().Add(by)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("byte %d: %d, %v", i, n, err)
		}
	}
	if err := c.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing is there: %v", err)
	}
}

// A server sends session tickets after the handshake. A connection that waits in the pool with tickets unread, because
// the call that needed it has ended, serves the next call. Sentinels are asked with protocol 3, whose pool checks idle
// connections in another way.
func TestSessionTickets(t *testing.T) {
	t.Parallel()
	ca := redistest.NewCA(t)
	s := redistest.StartWith(t, redistest.Setup{TLS: ca.Server(ca.Issue(t, "127.0.0.1"), false)})
	connect, err := redisconn.TLSDialer(redisconn.Options{DialTimeout: longest, TLS: redisconn.TLSOptions{Enabled: true, CACert: ca.File}})
	if err != nil {
		t.Fatal(err)
	}
	for protocol := 2; protocol <= 3; protocol++ {
		t.Run(fmt.Sprint("protocol ", protocol), func(t *testing.T) {
			t.Parallel()
			arrived, left := make(chan struct{}), make(chan struct{})
			client := goredis.NewClient(&goredis.Options{
				Addr: s.Addr, Protocol: protocol, DialTimeout: longest, DialerRetries: 1, MaxRetries: -1, ContextTimeoutEnabled: true,
				Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := connect(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					for waiting := false; !waiting && err == nil && ctx.Err() == nil; {
						waiting, err = redisconn.Unread(c)
						runtime.Gosched()
					}
					close(arrived)
					<-left
					return c, errors.Join(err, ctx.Err())
				},
			})
			ctx, leave := context.WithCancel(t.Context())
			go func() { <-arrived; leave() }()
			if err := client.Ping(ctx).Err(); !errors.Is(err, context.Canceled) {
				t.Errorf("a call that leaves while its connection is made: %v", err)
			}
			close(left)
			redistest.Eventually(t, "the connection to be in the pool", func(context.Context) error {
				if n := client.PoolStats().IdleConns; n != 1 {
					return fmt.Errorf("%d idle connections", n)
				}
				return nil
			})
			answer := make(chan error, 1)
			go func() { answer <- client.Ping(bounded(t)).Err() }()
			select {
			case err := <-answer:
				if err != nil {
					t.Error(err)
				}
				if s := client.PoolStats(); s.Hits != 1 || s.StaleConns != 0 {
					t.Errorf("the connection was not used: %+v", s)
				}
				_ = client.Close()
			case <-time.After(2 * longest): // the client cannot be closed either
				t.Error("the call has passed its deadline, and waits")
			}
		})
	}
}
