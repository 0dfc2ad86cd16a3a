package server

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// boundedListener closes the connections that are one too many, at once: who waited in the kernel's queue instead would
// learn of it by a timeout, and not turn to another server.
type boundedListener struct {
	net.Listener

	max     int64
	open    atomic.Int64
	gauge   prometheus.Gauge   // open, for people
	refused prometheus.Counter // one too many

	log  *slog.Logger
	told atomic.Int64 // when it was last logged, in seconds since the Unix epoch
}

// toldEvery is how often the log says that connections are refused.
const toldEvery = time.Minute

func bound(l net.Listener, name string, most int, m *metrics, log *slog.Logger) net.Listener {
	return &boundedListener{
		Listener: l,
		max:      int64(most),
		gauge:    m.connections.WithLabelValues(name),
		refused:  m.connectionsRefused.WithLabelValues(name),
		log:      log.With("listener", name),
	}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.max {
			l.gauge.Inc()
			return &boundedConn{Conn: conn, gone: sync.OnceFunc(l.gone)}, nil
		}
		l.open.Add(-1)
		l.refused.Inc()
		_ = conn.Close()
		l.tell()
	}
}

func (l *boundedListener) gone() {
	l.open.Add(-1)
	l.gauge.Dec()
}

func (l *boundedListener) tell() {
	now, last := time.Now().Unix(), l.told.Load()
	if now-last < int64(toldEvery/time.Second) || !l.told.CompareAndSwap(last, now) {
		return
	}
	l.log.Warn("too many connections: new ones are refused", "most", l.max)
}

// boundedConn counts until it is closed.
type boundedConn struct {
	net.Conn
	gone func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}
