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
func (c *Connections) Register(metrics prometheus.Registerer) {
	metrics.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "ratelimitd_redis_connections",
			Help: "Open connections to Redis.",
		}, func() float64 { return float64(c.Open()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "ratelimitd_redis_connections_opened_total",
			Help: "Connections to Redis that were opened.",
		}, func() float64 { return float64(c.Opened()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "ratelimitd_redis_connections_closed_total",
			Help: "Connections to Redis that were closed, by either side.",
		}, func() float64 { return float64(c.Closed()) }))
}

// add counts a connection. It returns a function that counts its end, once.
func (c *Connections) add() (closed func()) {
	if c == nil {
		return func() {}
	}
	c.opened.Add(1)
	return sync.OnceFunc(func() { c.closed.Add(1) })
}
