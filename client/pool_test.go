package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/limits"
)

// The buffer of a request that is too large is not kept for later calls.
func TestALargeBufferIsNotKept(t *testing.T) {
	c := NewWithConn(nil, Options{})
	large := &limits.Request{Domain: strings.Repeat("x", maxRequest), Descriptors: []limits.Descriptor{{}}}
	for range 10 {
		if _, err := c.Decide(t.Context(), large); !errors.Is(err, limits.ErrInvalid) {
			t.Fatal(err)
		}
		if kept := c.calls.Get().(*call); cap(kept.wire) > maxBatchBytes {
			t.Fatalf("a buffer of %d bytes is kept", cap(kept.wire))
		}
	}
}
