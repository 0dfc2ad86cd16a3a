package redisconn_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/redisconn"
)

// An answer that has come is read, even if its time is up when this process gets to read it.
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
