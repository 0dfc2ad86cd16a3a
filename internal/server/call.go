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

	size  int       // of the message, in bytes
	start time.Time // when the whole message had arrived

	reservation limiter.Reservation // request.Reservation points here

	batch    []*batched   // the requests of a batch, each decided on its own
	deciding atomic.Int32 // how many of them are not decided yet, and one more while they are begun
	decided  func(error)  // called when all are decided

	wire   *transport.Call
	answer func(error) // finish; made once
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
