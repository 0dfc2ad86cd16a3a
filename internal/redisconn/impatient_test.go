package redisconn_test

import (
	"context"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/redistest"
)

// A node that sends nothing opens its breaker, however rare calls are. A call that does not wait long enough for an answer proves nothing about
// a node, neither that it fails nor that it works again.
func TestPatientAndImpatientCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const openFor, timeout = 2 * time.Second, 300 * time.Millisecond
	client := connect(t, redisconn.Options{URL: server.Addr, Breaker: &redisconn.BreakerOptions{OpenFor: openFor, Silence: 4 * timeout}})
	call := func(timeout time.Duration) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		start := time.Now()
		if err := client.Do(ctx, "echo", "hello").Err(); err == nil {
			t.Fatal("a server that hangs answered")
		}
		return time.Since(start)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	waited := 0
	for ; call(timeout) > timeout/2; waited++ {
		if waited > 10 {
			t.Fatalf("%d calls in a row without an answer did not open the breaker", waited)
		}
	}
	for tries := 0; ; tries++ {
		<-time.After(openFor)
		if call(2*time.Millisecond) < 4*time.Millisecond {
			break
		}
		if tries == 5 { // it has waited long enough to prove something
			t.Skip("this machine stalls too often for a caller that waits 2 ms")
		}
	}
	waited = 0
	for range 3 {
		if call(timeout) > timeout/2 {
			waited++
		}
	}
	if waited != 1 {
		t.Errorf("after an impatient caller, %d of 3 calls waited for the server, want the one that tries", waited)
	}
}
