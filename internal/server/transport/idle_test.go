package transport

import (
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/testkit/http2test"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// The memory of an idle connection does not depend on its earlier traffic.
func TestIdleConnectionsAreSmall(t *testing.T) {
	if racetest.On {
		t.Skip("memory cannot be compared")
	}
	const connections = 300
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	for name, use := range map[string]func(c *rawClient){
		"new": func(*rawClient) {},
		"after a burst of calls": func(c *rawClient) {
			for range 200 {
				c.begin(make([]byte, 300))
			}
			c.roundTrip()
		},
		"after long header fields": func(c *rawClient) {
			block := http2test.Unindexed(callFields("x", strings.Repeat("v", 100_000))...)
			for part := block; len(part) > 0; part = part[min(len(part), maxFrame):] {
				more := part[:min(len(part), maxFrame)]
				if len(part) == len(block) {
					c.ok(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: c.next, BlockFragment: more}))
				} else {
					c.ok(c.fr.WriteContinuation(c.next, len(part) <= maxFrame, more))
				}
			}
			c.data(c.next, true, message(nil))
			c.wait(c.next)
			c.next += 2
		},
		"after a long message": func(c *rawClient) {
			id := c.open(false)
			for part := message(make([]byte, 60_000)); len(part) > 0; part = part[min(len(part), maxFrame):] {
				c.data(id, len(part) <= maxFrame, part[:min(len(part), maxFrame)])
			}
			c.wait(id)
		},
		"after many calls at once": func(c *rawClient) {
			for range 1_000 {
				c.open(false)
			}
			for id := uint32(1); id < c.next; id += 2 {
				c.ok(c.fr.WriteRSTStream(id, http2.ErrCodeCancel))
			}
			c.roundTrip()
		},
		"after other requests": func(c *rawClient) {
			c.wait(c.open(true, ":method", http.MethodGet))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newPipes() // nothing in the kernel, and nothing of package net
			startOn(t, l, echo{}, nil)
			before := inUse()
			for range connections {
				c := rawOn(t, l.dial())
				c.roundTrip()
				use(c)
				c.roundTrip()
				c.fr, c.dec, c.answers, c.seen = nil, nil, nil, nil
			}
			each := uint64(0)
			for until := time.Now().Add(patience); time.Now().Before(until); <-time.After(100 * time.Millisecond) {
				if each = (inUse() - before) / connections; each <= 16<<10 {
					return
				}
			}
			t.Errorf("an idle connection takes %d bytes", each)
		})
	}
}
