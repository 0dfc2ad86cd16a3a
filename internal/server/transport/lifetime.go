package transport

import (
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// lifetime decides when the client of a connection is pinged, and when it must leave. Only the goroutine that checks
// all connections uses it.
type lifetime struct {
	*conn

	began   time.Time     // when the connection was first checked
	age     time.Duration // age limit; 0 without one
	drained time.Time     // when the client was asked to leave; zero if it was not
	pinged  time.Time     // when the unanswered ping was sent; zero without one
}

// check pings a silent client, and asks the client of an old connection to leave.
func (l *lifetime) check(now time.Time) {
	c := l.conn
	c.mu.Lock()
	ready := c.ready
	if len(c.streams) == 0 && c.mostStreams > maxIdleStreams && !c.isClosed { // a map does not shrink
		c.streams, c.mostStreams = make(map[uint32]*stream), 0
	}
	c.mu.Unlock()
	if !ready {
		return // the handshake has a separate timeout
	}
	o := &c.server.opts
	if o.WriteTimeout > 0 && c.stuck(now) > o.WriteTimeout {
		_ = c.overBound(intake.NotReading)
		c.close()
		return
	}
	if l.began.IsZero() {
		l.began = now
		l.age = o.MaxConnectionAge
		if l.age > 0 && l.age < 1<<62 { // a longer time means never
			l.age += time.Duration((rand.Float64() - 0.5) / 5 * float64(l.age))
		}
	}
	old := l.age > 0 && now.Sub(l.began) >= l.age
	switch {
	case l.drained.IsZero() && old:
		l.drained = now
		c.drain()
	case !l.drained.IsZero() && o.MaxAgeGrace != 0 && now.Sub(l.drained) >= o.MaxAgeGrace:
		c.close()
		return
	}
	if o.PingAfter <= 0 {
		return
	}
	quiet := now.Sub(l.began)
	if read := c.server.began.Add(time.Duration(c.read.Load())); read.After(l.began) {
		quiet = now.Sub(read)
	}
	switch {
	case quiet < o.PingAfter:
		l.pinged = time.Time{}
	case l.pinged.IsZero():
		l.pinged = now
		c.mu.Lock()
		c.out = appendPing(c.out, false, [8]byte{})
		c.mu.Unlock()
		c.flush()
	case now.Sub(l.pinged) >= o.PingTimeout:
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

// unstick records progress of an answer that had to wait for a window. The lock must be held.
func (c *conn) unstick() {
	if !c.stuckSince.IsZero() {
		c.stuckSince = time.Now()
	}
}
