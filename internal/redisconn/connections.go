package redisconn

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Connections counts the connections of one client. The zero value is ready.
type Connections struct {
	opened, closed atomic.Uint64
}

// Opened is how many have been made.
func (c *Connections) Opened() uint64 { return c.opened.Load() }

// Closed is how many of them have been closed.
func (c *Connections) Closed() uint64 { return c.closed.Load() }

// Open is how many there are.
func (c *Connections) Open() uint64 {
	closed := c.closed.Load() // first: none is closed that has not been opened
	return c.opened.Load() - closed
}

// Register makes them metrics.
func (c *Connections) Register(metrics prometheus.Registerer) {
	metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_redis_connections",
			Help: "Open connections to Redis.",
		}, func() float64 { return float64(c.Open()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "ratelimitd_redis_connections_opened_total",
			Help: "Connections to Redis that were made.",
		}, func() float64 { return float64(c.Opened()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "ratelimitd_redis_connections_closed_total",
			Help: "Connections to Redis that were closed, by whichever side.",
		}, func() float64 { return float64(c.Closed()) }))
}

// made counts a connection, and returns what counts its end, once.
func (c *Connections) made() (gone func()) {
	if c == nil {
		return func() {}
	}
	c.opened.Add(1)
	return sync.OnceFunc(func() { c.closed.Add(1) })
}
