package redisconn

import (
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Connections counts the connections of one client. The zero value is ready.
type Connections struct {
	opened, closed atomic.Uint64
}

// Opened returns how many connections have been opened.
func (c *Connections) Opened() uint64 { return c.opened.Load() }

// Closed returns how many of them have been closed.
func (c *Connections) Closed() uint64 { return c.closed.Load() }

// Open returns how many are open.
func (c *Connections) Open() uint64 {
	closed := c.closed.Load() // first, so that the difference is not negative
	return c.opened.Load() - closed
}

// Register makes them metrics.
func (c *Connections) Register(metrics metric.Registry) {
	metrics.Register(
		metric.Gauge("ratelimitd_redis_connections", "Open connections to Redis.", c.Open),
		metric.Counter("ratelimitd_redis_connections_opened_total", "Connections to Redis opened.", c.Opened),
		metric.Counter("ratelimitd_redis_connections_closed_total", "Connections to Redis closed, by either side.", c.Closed))
}

// add counts a connection. It returns a function that counts its end, once.
func (c *Connections) add() (closed func()) {
	if c == nil {
		return func() {}
	}
	c.opened.Add(1)
	return sync.OnceFunc(func() { c.closed.Add(1) })
}
