package transport

import (
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/intake"
)

// keeping is the state of keepalive and age of a connection.
type keeping struct {
	began   time.Time // when the connection was first looked at
	age     time.Duration
	pinged  time.Time // zero: no ping is unanswered
	drained time.Time // when the client was asked to leave
}

// keep pings an idle client, and asks the client of an old connection to leave.
func (c *conn) keep(now time.Time) {
	c.mu.Lock()
	ready := c.ready
	if len(c.streams) == 0 && c.mostStreams > keepStreams && !c.isClosed { // a map does not shrink
		c.streams, c.mostStreams = make(map[uint32]*stream), 0
	}
	c.mu.Unlock()
	if !ready {
		return // the handshake has its own bound
	}
	o, k := &c.server.opts, &c.keeping
	if o.WriteTimeout > 0 && c.stuck(now) > o.WriteTimeout {
		_ = c.overBound(intake.NotReading)
		c.close()
		return
	}
	if k.began.IsZero() {
		k.began = now
		k.age = o.MaxConnectionAge
		if k.age > 0 && k.age < 1<<62 { // a longer time means never
			k.age += time.Duration((rand.Float64() - 0.5) / 5 * float64(k.age))
		}
	}
	switch {
	case k.age > 0 && k.drained.IsZero() && now.Sub(k.began) >= k.age:
		k.drained = now
		c.drain()
	case !k.drained.IsZero() && o.MaxAgeGrace != 0 && now.Sub(k.drained) >= o.MaxAgeGrace:
		c.close()
		return
	}
	if o.PingAfter <= 0 {
		return
	}
	quiet := now.Sub(time.Unix(0, max(c.read.Load(), k.began.UnixNano())))
	switch {
	case quiet < o.PingAfter:
		k.pinged = time.Time{}
	case k.pinged.IsZero():
		k.pinged = now
		c.mu.Lock()
		c.out = appendPing(c.out, false, [8]byte{})
		c.mu.Unlock()
		c.flush()
	case now.Sub(k.pinged) >= o.PingTimeout:
		_ = c.overBound(intake.PingNotAnswered)
		c.close()
	}
}

// stuck returns how long answers have waited for a window that the client does not open.
func (c *conn) stuck(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stuckSince.IsZero() {
		return 0
	}
	if len(c.owed) == 0 && c.blocked == 0 {
		c.stuckSince = time.Time{}
		return 0
	}
	return now.Sub(c.stuckSince)
}

// unstick is called when an answer that had to wait for a window made progress. The caller holds the lock.
func (c *conn) unstick() {
	if !c.stuckSince.IsZero() {
		c.stuckSince = time.Now()
	}
}
