package redisconn_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// A node that sends nothing opens its breaker, however rare calls are. A call that does not wait long enough for an
// answer proves nothing about a node, neither that it fails nor that it works again.
func TestPatientAndImpatientCallers(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const openFor, timeout, patience = 2 * time.Second, 300 * time.Millisecond, 200 * time.Millisecond
	client := connect(t, redisconn.Options{URL: server.Addr, Breaker: &redisconn.BreakerOptions{OpenFor: openFor, Silence: 4 * timeout, Patience: patience}})
	call := func(timeout time.Duration) (took time.Duration, rejected bool) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		start := time.Now()
		err := client.Do(ctx, "echo", "hello").Err()
		if err == nil {
			t.Fatal("a server that hangs answered")
		}
		return time.Since(start), errors.Is(err, redisconn.ErrBreakerOpen)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause(t)
	for waited := 0; ; waited++ {
		if _, rejected := call(timeout); rejected {
			break
		}
		if waited > 10 {
			t.Fatalf("%d calls in a row without an answer did not open the breaker", waited)
		}
	}
	// If the machine stalls, a call of 2 ms may take as long as a patient one, or the breaker may let a second trial
	// through. Such an attempt shows nothing and is repeated.
	for range 10 {
		<-time.After(openFor)
		took, rejected := call(2 * time.Millisecond)
		if rejected {
			t.Fatalf("the breaker lets no trial through after %v", openFor)
		}
		if took >= patience {
			continue
		}
		start, waited := time.Now(), 0
		for range 3 {
			if _, rejected := call(timeout); !rejected {
				waited++
			}
		}
		if time.Since(start) >= openFor {
			continue
		}
		if waited != 1 {
			t.Errorf("after an impatient caller, %d of 3 calls waited for the server, want only the trial", waited)
		}
		return
	}
	t.Fatal("the machine stalled in each of 10 attempts")
}
