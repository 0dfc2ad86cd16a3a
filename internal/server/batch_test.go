package server

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Calls from one read of a connection make one trip to Redis together.
func TestCallsOfOneReadMakeOneTrip(t *testing.T) {
	stored := redistest.Start(t)
	client := stored.Client(t)
	store := redis.New(redis.Options{Client: client})
	t.Cleanup(func() { _ = store.Close() })
	small := smallRequest()
	entries := small.GetDescriptors()[0].GetEntries()
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: small.GetDomain(), Children: []descriptor.NodeSpec{{
		Key: entries[0].GetKey(), Children: []descriptor.NodeSpec{{
			Key: entries[1].GetKey(), Rule: &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 1000, Window: descriptor.Window{Unit: descriptor.Year}}}},
		}},
	}}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	decides := limiter.New(limiter.Options{Store: store})
	decides.Swap(tree, limiter.Settings{})
	r := start(t, Options{Decider: decides})
	c := rawDial(t, r.GRPCAddr)
	reader := c.Framer
	message := smallMessage(t)
	for round := range 3 {
		var write bytes.Buffer
		c.Framer = http2.NewFramer(&write, c.Conn)
		const calls = 16
		for range calls {
			if err := errors.Join(c.open(shouldRateLimitPath), c.send(len(message), message, true)); err != nil {
				t.Fatal(err)
			}
		}
		before := stored.Calls(t, "evalsha")
		if _, err := write.WriteTo(c.Conn); err != nil {
			t.Fatal(err)
		}
		for answered := 0; answered < calls; {
			f, err := reader.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if f.Header().Type == http2.FrameHeaders && f.Header().Flags.Has(http2.FlagHeadersEndStream) {
				answered++
			}
		}
		if n := stored.Calls(t, "evalsha") - before; n != 1 && round > 0 { // the first round loads the script into Redis
			t.Errorf("round %d: %d trips to Redis, want 1", round, n)
		}
	}
}
