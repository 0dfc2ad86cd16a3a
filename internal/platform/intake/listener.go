package intake

import (
	"container/list"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the settings of a Listener.
type Options struct {
	Name           string        // name of the listener, in metrics and in the log
	MaxConnections int           // largest number of open connections; 0 disables the bound
	PeerShare      float64       // part of MaxConnections for a peer when all are in use; 0 to 1
	FirstCall      time.Duration // longest time of a connection without a call; 0 disables the bound
	Message        time.Duration // longest time for a call's message to arrive; 0 disables the bound
	Write          time.Duration // longest time in which a client reads nothing; 0 disables the bound

	// Settled is the age from which an unused connection may be replaced by another: by then its client has had time to
	// make a call. Default 1 s.
	Settled time.Duration

	// ReadsAreCalls is for HTTP/1, where no calls are reported: every read counts as use. With Bytes, headers count as
	// memory until EndRequest.
	ReadsAreCalls bool

	Bytes   *Bytes // bounds incomplete messages; nil disables the bound
	Places  *Class // memory of open connections; nil disables the count
	Size    int64  // memory of an idle connection
	Request int64  // additional memory of an HTTP/1 request, from BeginBody to EndRequest

	// Encrypted is for ports with TLS: unfinished handshakes have separate bounds. Conn.Secured ends a handshake.
	Encrypted bool

	Metrics *Metrics // required
	Log     *slog.Logger
}

const (
	// logEvery is the shortest time between two log lines about rejected connections.
	logEvery = time.Minute

	// maxLooks is the largest number of connections that are examined to find one to close.
	maxLooks = 32
)

// Listener accepts connections within bounds. A connection beyond the bound replaces an unused one, or is closed
// immediately. If it waited in the kernel's queue instead, its client would only notice by a timeout, and would not try
// another server.
type Listener struct {
	net.Listener

	options    Options
	handshakes *handshakes // nil disables their bounds
	share      int         // connections for a peer when all are in use
	metrics    listenerMetrics
	logged     atomic.Int64 // when rejected connections were last logged, by clock

	done chan struct{} // closed with the listener
	stop func()

	mu    sync.Mutex
	open  list.List // *Conn, roughly in the order of their last use
	peers map[string]*peer
	above map[*peer]struct{} // peers with more than their share; at most 1/PeerShare of them
}

// Listen returns a Listener on l.
func Listen(l net.Listener, o Options) *Listener {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Settled == 0 {
		o.Settled = time.Second
	}
	b := &Listener{
		Listener: l,
		options:  o,
		share:    max(1, int(float64(min(o.MaxConnections, o.Places.certain(o.Size)))*o.PeerShare)),
		metrics:  o.Metrics.of(o.Name),
		done:     make(chan struct{}),
		peers:    make(map[string]*peer),
		above:    make(map[*peer]struct{}),
	}
	if o.Encrypted {
		b.handshakes = newHandshakes(o.MaxConnections)
	}
	b.logged.Store(-int64(logEvery))
	b.stop = sync.OnceFunc(func() { close(b.done) })
	if every := o.sweepEvery(); every > 0 {
		go b.sweep(every)
	}
	return b
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, replaced := l.admit(raw)
		if replaced != nil {
			replaced.cut(evicted)
		}
		if c != nil {
			if old := c.handshake.begin(); old != nil {
				old.cut(handshaking)
			}
			return c, nil
		}
		l.metrics.closed[tooMany].Inc()
		_ = raw.Close()
		l.logRejection()
	}
}

// Close implements net.Listener. Open connections stay open.
func (l *Listener) Close() error {
	l.stop()
	return l.Listener.Close()
}

// admit adds a connection. If there is no place, it may replace another connection, which the caller must close. It
// returns nil if no connection can be replaced.
func (l *Listener) admit(raw net.Conn) (admitted, replaced *Conn) {
	now := clock()
	key := PeerOf(raw.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.hasPlace() {
		if replaced = l.makePlace(key, now); replaced == nil {
			return nil, nil
		}
		l.remove(replaced)
	}
	p := l.peers[key]
	if p == nil {
		p = &peer{key: key}
		l.peers[key] = p
	}
	c := newConn(raw, l, p, now)
	c.inAll, c.inPeer = l.open.PushBack(c), p.open.PushBack(c)
	if p.open.Len() > l.share {
		l.above[p] = struct{}{}
	}
	l.metrics.open.Inc()
	l.options.Places.Add(l.options.Size)
	return c, replaced
}

// hasPlace reports whether another connection may be open.
func (l *Listener) hasPlace() bool {
	o := &l.options
	return (o.MaxConnections == 0 || l.open.Len() < o.MaxConnections) && (o.Places == nil || o.Places.Free() >= o.Size)
}

// makePlace chooses the connection to replace for a new one of a peer. A peer within its share may replace any
// connection of a peer above its share, even an active one. Otherwise only an unused connection is replaced.
func (l *Listener) makePlace(key string, now int64) *Conn {
	mine := l.peers[key]
	if mine != nil && mine.open.Len() >= l.share {
		return oldest(&mine.open, now, true)
	}
	var largest *peer
	for p := range l.above {
		if p != mine && (largest == nil || p.open.Len() > largest.open.Len()) {
			largest = p
		}
	}
	if largest != nil {
		return oldest(&largest.open, now, false)
	}
	return oldest(&l.open, now, true)
}

// oldest finds the least recently used connection of a list, and prefers one without any call. It examines a few
// connections and moves each to the back, so the order stays nearly right at little cost.
func oldest(of *list.List, now int64, idleOnly bool) *Conn {
	var called *Conn // the best one with a call
	for range min(maxLooks, of.Len()) {
		e := of.Front()
		c := e.Value.(*Conn)
		last := c.last.Load()
		switch {
		case !c.idle(now):
		case last == never:
			return c
		case called == nil || last < called.last.Load():
			called = c
		}
		of.MoveToBack(e)
	}
	if called == nil && !idleOnly {
		if e := of.Front(); e != nil {
			return e.Value.(*Conn)
		}
	}
	return called
}

// remove removes a connection from the lists, if it is still there.
func (l *Listener) remove(c *Conn) {
	if c.inAll == nil {
		return
	}
	l.open.Remove(c.inAll)
	c.peer.open.Remove(c.inPeer)
	c.inAll, c.inPeer = nil, nil
	if c.peer.open.Len() <= l.share {
		delete(l.above, c.peer)
	}
	if c.peer.open.Len() == 0 {
		delete(l.peers, c.peer.key)
	}
	l.metrics.open.Dec()
	l.options.Places.Add(-l.options.Size)
}

func (l *Listener) logRejection() {
	now, last := clock(), l.logged.Load()
	if now-last < int64(logEvery) || !l.logged.CompareAndSwap(last, now) {
		return
	}
	l.options.Log.Warn("too many connections: new ones are rejected", "listener", l.options.Name, "most",
		l.options.MaxConnections)
}

// sweepEvery returns how often connections are checked for time bounds.
func (o *Options) sweepEvery() time.Duration {
	shortest := time.Duration(0)
	for _, bound := range []time.Duration{o.FirstCall, o.Message, o.Write} {
		if bound > 0 && (shortest == 0 || bound < shortest) {
			shortest = bound
		}
	}
	if shortest == 0 {
		return 0
	}
	return min(max(shortest/4, time.Millisecond), time.Second)
}

// sweep closes connections that exceed a time bound, until the listener is closed.
func (l *Listener) sweep(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	turned := clock()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		now := clock()
		turn := l.options.Message > 0 && now-turned >= int64(l.options.Message)
		if turn {
			turned = now
		}
		for c, why := range l.late(now, turn) {
			c.cut(why)
		}
	}
}

// late finds the connections that exceed a time bound. With turn, it starts a new period of waiting for messages.
func (l *Listener) late(now int64, turn bool) map[*Conn]Reason {
	var all map[*Conn]Reason
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.open.Front(); e != nil; e = e.Next() {
		c := e.Value.(*Conn)
		why := c.late(now, &l.options)
		if turn && c.turn() {
			why = noMessage
		}
		if why == inTime {
			continue
		}
		if all == nil {
			all = make(map[*Conn]Reason)
		}
		all[c] = why
	}
	return all
}
