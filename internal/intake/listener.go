package intake

import (
	"container/list"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what a Listener is made of.
type Options struct {
	Name           string        // of the listener, in metrics and in the log
	MaxConnections int           // open at once; 0: no bound
	PeerShare      float64       // of MaxConnections that a peer always keeps when all are in use; 0 to 1
	FirstCall      time.Duration // after which a connection without a call is closed; 0: never
	Message        time.Duration // after which a connection is closed on which the message of a call does not arrive; 0: never
	Write          time.Duration // after which a connection is closed whose client reads nothing; 0: never

	// Settled is how old a connection is that may be closed to make place for another: its client had time to make a call.
	// Default 1 s.
	Settled time.Duration

	// ReadsAreCalls says that nobody reports calls on these connections: one that was read from is in use.
	ReadsAreCalls bool

	Bytes   *Bytes   // what all messages that are under way may hold; nil: no bound
	Metrics *Metrics // required
	Log     *slog.Logger
}

const (
	// sayEvery is how often the log says that connections are refused.
	sayEvery = time.Minute

	// looks bounds how many connections are looked at to find one that may be closed.
	looks = 32
)

// Listener accepts connections within bounds. A connection that is one too many takes the place of one that is not in
// use, or is closed at once: a client that waited in the kernel's queue instead would learn of it by a timeout, and not
// turn to another server.
type Listener struct {
	net.Listener

	options Options
	share   int // connections that a peer keeps when all are in use
	metrics listenerMetrics
	said    atomic.Int64 // when the log last said that connections are refused, as time since epoch

	done chan struct{} // closed with the listener
	stop func()

	mu    sync.Mutex
	open  list.List // of *Conn, roughly in the order of their last use
	peers map[string]*peer
	above map[*peer]struct{} // peers with more than their share: 1/PeerShare at most when all connections are in use
}

// Listen bounds a listener.
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
		share:    max(1, int(float64(o.MaxConnections)*o.PeerShare)),
		metrics:  o.Metrics.of(o.Name),
		done:     make(chan struct{}),
		peers:    make(map[string]*peer),
		above:    make(map[*peer]struct{}),
	}
	b.said.Store(-int64(sayEvery))
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
		c, instead := l.admit(raw)
		if instead != nil {
			instead.cut(evicted)
		}
		if c != nil {
			return c, nil
		}
		l.metrics.refused.Inc()
		_ = raw.Close()
		l.say()
	}
}

// Close implements net.Listener. Connections stay open.
func (l *Listener) Close() error {
	l.stop()
	return l.Listener.Close()
}

// admit finds a place for a connection: its own, or that of another one, which the caller closes. It returns nil where
// there is none.
func (l *Listener) admit(raw net.Conn) (admitted, instead *Conn) {
	now := clock()
	key := peerOf(raw.RemoteAddr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.options.MaxConnections > 0 && l.open.Len() >= l.options.MaxConnections {
		if instead = l.makePlace(key, now); instead == nil {
			return nil, nil
		}
		l.remove(instead)
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
	return c, instead
}

// makePlace chooses the connection that a new one of a peer replaces. A peer within its share takes the place of one that
// has more than its share, whatever that does; otherwise only a connection that is not in use goes.
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

// oldest finds the connection of a list that was not used for longest; one that never made a call goes before all others.
// It looks at a few and moves those in use to the back, so that the order is never far from right and a look is cheap.
func oldest(of *list.List, now int64, idleOnly bool) *Conn {
	var called *Conn // the best that has made a call
	for range min(looks, of.Len()) {
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

// remove gives the place of a connection back, once.
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
}

func (l *Listener) say() {
	now, last := clock(), l.said.Load()
	if now-last < int64(sayEvery) || !l.said.CompareAndSwap(last, now) {
		return
	}
	l.options.Log.Warn("too many connections: new ones are refused", "listener", l.options.Name, "most", l.options.MaxConnections)
}

// sweepEvery is how often connections are looked through for those that are over a time bound.
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

// sweep closes connections that are over a time bound, until the listener is closed.
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

// late finds the connections that are over a time bound. A turn begins a new period of waiting for messages.
func (l *Listener) late(now int64, turn bool) map[*Conn]reason {
	var all map[*Conn]reason
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
			all = make(map[*Conn]reason)
		}
		all[c] = why
	}
	return all
}
