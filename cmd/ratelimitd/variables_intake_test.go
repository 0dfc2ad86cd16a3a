package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
	ratelimitdv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/v1"
)

// frames connects to gRPC without a library that enforces the protocol. flush sends the frames that were written to the
// client.
func frames(t *testing.T, i *instance, from string) (conn net.Conn, client *http2test.Client, flush func() error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := d.DialContext(t.Context(), "tcp", i.grpc())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var out bytes.Buffer
	client = http2test.New(&out, conn)
	if err := errors.Join(client.Greet(), client.WriteWindowUpdate(0, 1<<30)); err != nil {
		t.Fatal(err)
	}
	return conn, client, func() error {
		_, err := out.WriteTo(conn)
		return err
	}
}

// cut reports whether the service closes a connection that does not behave. On it, each call of a method sends this
// piece of its message, and the client reads no answers. The metric must give the reason.
func cut(variable, reason, method string, piece []byte, end bool) look {
	return running(func(t *testing.T, i *instance) string {
		conn, client, flush := frames(t, i, "127.0.0.1")
		block := http2test.Unindexed(http2test.Fields(method)...)
		stopped := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer func() {
			cancel()
			_ = conn.Close()
			<-stopped
		}()
		go func() {
			defer close(stopped)
			for ctx.Err() == nil {
				err := errors.Join(client.Begin(block), client.WriteData(client.Stream, end, piece))
				if client.Stream%200 == 1 {
					err = errors.Join(err, flush())
				}
				if err != nil {
					return
				}
				if len(piece) > 10_000 && client.Stream > 20 { // enough for the configured bound, but not for the default
					_ = flush()
					<-ctx.Done()
				}
			}
		}()
		is := within(t, i, variable, patience, 300*time.Millisecond, func() bool {
			return len(shown(t, i.http()+"/metrics", `ratelimitd_connections_closed_total{listener="grpc",reason="`+reason+`"} 1`)) > 0
		})
		return either(is, "closed", "stays")
	})
}

func variablesOfIntake() []variable {
	decide := ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName
	unfinished := append([]byte{0, 0, 0x40, 0, 0}, make([]byte, 15_000)...) // a message that announces 4 MiB and is cut
	return []variable{
		{name: "RATELIMITD_MAX_CALLS", value: "1", look: running(func(t *testing.T, i *instance) string {
			one := &ratelimitdv1.DecideRequest{Domain: "d", Descriptors: []*ratelimitdv1.Descriptor{{Entries: []*ratelimitdv1.Entry{{Key: "k", Value: "v"}}}}}
			_, err := ratelimitdv1.NewDecisionServiceClient(dial(t, i.grpc())).DecideBatch(t.Context(), &ratelimitdv1.DecideBatchRequest{Requests: []*ratelimitdv1.DecideRequest{one, one}})
			return status.Code(err).String()
		}), unset: "OK", set: "ResourceExhausted"},
		{name: "RATELIMITD_MAX_CLIENT_BYTES", value: "100000", look: cut("RATELIMITD_MAX_CLIENT_BYTES", "bytes", decide, unfinished, false), unset: "stays", set: "closed"},
	}
}

// is reports whether a channel is closed.
func is(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A stop has a hard limit: the drain delay, the stop timeout, and one more second.
func TestStopIsOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := listenOptions{DrainDelay: 3 * time.Second, StopTimeout: 10 * time.Second}
		ctx, stop := context.WithCancel(t.Context())
		overdue := o.overdue(ctx)
		<-time.After(time.Hour)
		stop()
		<-time.After(14*time.Second - 1)
		synctest.Wait()
		if is(overdue) {
			t.Error("overdue too early")
		}
		<-time.After(1)
		synctest.Wait()
		if !is(overdue) {
			t.Error("not overdue")
		}
	})
}
