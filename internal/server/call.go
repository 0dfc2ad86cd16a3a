package server

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server/transport"
)

// rateLimitCall is the working memory of one call. It is reused.
type rateLimitCall struct {
	method   *method
	request  limiter.Request
	decision limiter.Decision

	size  int       // size of the message, in bytes
	start time.Time // when the whole message had arrived

	reservation limiter.Reservation // request.Reservation points here

	batch    []*batched   // the requests of a batch
	deciding atomic.Int32 // requests that are not decided yet, plus one until all are started
	decided  func(error)  // called when all requests are decided

	wire   *transport.Call
	answer func(error) // finish as a value, created once
	reply  []byte      // the encoded answer
}

var callPool = sync.Pool{New: func() any { return new(rateLimitCall) }}

// maxKept is the largest message whose memory is reused, in bytes.
const maxKept = 4 << 10

func (c *rateLimitCall) release() {
	m := c.method
	c.releaseBatch()
	if c.size > m.most || cap(c.reply) > m.most {
		return
	}
	c.decision.Metadata = nil
	c.method = nil
	m.pool.Put(c)
}
