package transport

import (
	"context"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// arrivals answers calls, and tells when they arrived.
type arrivals chan time.Time

// Handle implements Handler.
func (a arrivals) Handle(now time.Time, calls []*Call) {
	for range calls {
		a <- now
	}
	echo{}.Handle(now, calls)
}

// A call arrives when it is read, independent of earlier frames of the client.
func TestArrivalAfterOtherRequests(t *testing.T) {
	arrived := make(arrivals, 1)
	addr, _ := start(t, arrived, nil)
	c := dial(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 3 {
		if _, err := healthv1.NewHealthClient(c).Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		sent := time.Now()
		if _, err := call(ctx, c, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if at := <-arrived; at.Before(sent) {
			t.Errorf("the call arrived %s before it was sent", sent.Sub(at))
		}
	}
}
