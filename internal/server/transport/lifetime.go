package transport

import (
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// lifetime is what decides when a client is pinged, and when it must leave.
type lifetime struct {
	began   time.Time     // when the connection was checked first
	age     time.Duration // that it may reach; 0: any
	drained time.Time     // when the client was asked to leave; zero: it was not
	pinged  time.Time     // zero: no ping is unanswered
}

// checkLifetime pings a silent client, and asks the client of an old connection to leave.
func (c *conn) checkLifetime(now time.Time) {
	c.mu.Lock()
	ready := c.ready
	if len(c.streams) == 0 && c.mostStreams > maxIdleStreams && !c.isClosed { // a map does not shrink
		c.streams, c.mostStreams = make(map[uint32]*stream), 0
	}
	c.mu.Unlock()
	if !ready {
		return // the handshake has its own bound
	}
	o, life := &c.server.opts, &c.lifetime
	if o.WriteTimeout > 0 && c.stuck(now) > o.WriteTimeout {
		_ = c.overBound(intake.NotReading)
		c.close()
		return
	}
	if life.began.IsZero() {
		life.began = now
		life.age = o.MaxConnectionAge
		if life.age > 0 && life.age < 1<<62 { // a longer time means never
			life.age += time.Duration((rand.Float64() - 0.5) / 5 * float64(life.age))
		}
	}
	old := life.age > 0 && now.Sub(life.began) >= life.age
	switch {
	case life.drained.IsZero() && old:
		life.drained = now
		c.drain()
	case !life.drained.IsZero() && o.MaxAgeGrace != 0 && now.Sub(life.drained) >= o.MaxAgeGrace:
		c.close()
		return
	}
	if o.PingAfter <= 0 {
		return
	}
	quiet := now.Sub(life.began)
	if read := c.server.began.Add(time.Duration(c.read.Load())); read.After(life.began) {
		quiet = now.Sub(read)
	}
	switch {
	case quiet < o.PingAfter:
		life.pinged = time.Time{}
	case life.pinged.IsZero():
		life.pinged = now
		c.mu.Lock()
		c.out = appendPing(c.out, false, [8]byte{})
		c.mu.Unlock()
		c.flush()
	case now.Sub(life.pinged) >= o.PingTimeout:
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
	if len(c.blockedAnswers) == 0 && c.blockedStreams == 0 {
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
