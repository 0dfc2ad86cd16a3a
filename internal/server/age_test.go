package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// A client whose connection has reached its age is asked to open a new one, so that clients spread over new replicas.
// Calls on the old connection may finish.
func TestOldConnectionsAreAskedToLeave(t *testing.T) {
	r := start(t, Options{Connections: Connections{MaxAge: 200 * time.Millisecond, MaxAgeGrace: time.Hour}})
	began := time.Now()
	c := rawDial(t, r.GRPCAddr)
	asked := false
	for {
		frame, err := c.ReadFrame()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("asked to leave: %v; %v", asked, err)
		}
		switch frame := frame.(type) {
		case *http2.GoAwayFrame:
			if asked = true; frame.ErrCode != http2.ErrCodeNo {
				t.Errorf("GOAWAY %v %q", frame.ErrCode, frame.DebugData())
			}
		case *http2.PingFrame: // the server waits for its answer, so that no call is lost
			if !frame.IsAck() {
				if err := c.WritePing(true, frame.Data); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if took := time.Since(began); !asked || took < 100*time.Millisecond { // the age is off by a tenth at most
		t.Errorf("asked to leave: %v, closed after %v", asked, took)
	}
}

// A call that outlasts the grace period is cut off. A call that ends within it is not.
func TestGraceOfOldConnections(t *testing.T) {
	const age = 100 * time.Millisecond
	cut := make(chan struct{})
	r := start(t, Options{Connections: Connections{MaxAge: age, MaxAgeGrace: age}, Decider: decider(
		func(ctx context.Context, _ time.Time, _ *limiter.Request, _ *limiter.Decision) error {
			<-ctx.Done()
			close(cut)
			return ctx.Err()
		})})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); status.Code(err) != codes.Unavailable {
		t.Errorf("beyond the grace: %v", err)
	}
	select {
	case <-cut:
	case <-time.After(patience):
		t.Error("the context of the decider is not cancelled")
	}

	r = start(t, Options{Connections: Connections{MaxAge: age, MaxAgeGrace: time.Hour}, Decider: decider(
		func(ctx context.Context, now time.Time, req *limiter.Request, d *limiter.Decision) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * age):
				return passAll(ctx, now, req, d)
			}
		})})
	if _, err := r.rateLimit().ShouldRateLimit(within(t), smallRequest()); err != nil {
		t.Errorf("within the grace: %v", err)
	}
}

// A client with an open quota stream is asked to leave too, and the stream ends after the grace period: Envoy then
// opens a new one on a new connection.
func TestQuotaStreamOfAnOldConnection(t *testing.T) {
	const age = 100 * time.Millisecond
	r := start(t, Options{Quota: &shares{}, Connections: Connections{MaxAge: age, MaxAgeGrace: 2 * age}})
	conn := dial(t, r.GRPCAddr)
	s := openQuota(t, conn)
	exchangeQuota(t, s, "edge", bucket("a", "b"))
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v", err)
	}
	exchangeQuota(t, openQuota(t, conn), "edge", bucket("a", "b"))
}
