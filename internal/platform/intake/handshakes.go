package intake

import (
	"container/list"
	"runtime"
	"sync"
	"sync/atomic"
)

// maxHandshakes is how many TLS handshakes of a port may be unfinished at once, at most half of its connections.
const maxHandshakes = 512

// busyShare is the part of the unfinished handshakes from which a peer makes room for others.
const busyShare = 8

// handshakes bounds the TLS handshakes of a listener. Each costs the server a signature, and an attacker a few bytes.
// So few are unfinished at once, at most half of them of one peer: when there is no room, a new one replaces the oldest
// of the peer that has most. And few are worked on at once, in turns of the peers, so that most of the processors stay
// for connections that are open.
type handshakes struct {
	most int

	mu    sync.Mutex
	open  list.List          // of *handshake, the oldest first
	above map[*peer]struct{} // peers with more than a part of them; fewer than busyShare
	free  int                // turns that nobody has
	await list.List          // of *peer, with handshakes that wait for a turn
}

func newHandshakes(connections int) *handshakes {
	most := maxHandshakes
	if connections > 0 {
		most = max(1, min(most, connections/2))
	}
	return &handshakes{most: most, above: make(map[*peer]struct{}), free: max(1, runtime.GOMAXPROCS(0)/2)}
}

// handshake is the TLS handshake of one connection. A nil handshake is over.
type handshake struct {
	all  *handshakes
	conn *Conn
	over atomic.Bool

	// Under the mutex of all.
	inAll, inPeer *list.Element
	awaits        *list.Element // in the peer's list of those that wait
	has           bool          // has a turn
	turn          chan struct{} // gets a value with a turn, or is closed with a handshake that waits for one
}

// peerHandshakes are those of one peer, under the mutex of handshakes.
type peerHandshakes struct {
	open    list.List     // of *handshake, the oldest first
	await   list.List     // of *handshake, those that wait for a turn
	inAwait *list.Element // in handshakes.await, while there are any
}

// begin adds the handshake of a new connection. It returns the connection that makes room for it and must be closed, or
// nil.
func (h *handshake) begin() (replaced *Conn) {
	if h == nil {
		return nil
	}
	a, mine := h.all, &h.conn.peer.handshakes
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.over.Load() { // the connection is closed already
		return nil
	}
	var old *list.Element
	switch {
	case mine.open.Len() >= max(1, a.most/2):
		old = mine.open.Front()
	case a.open.Len() >= a.most:
		old = a.busiest().Front()
	}
	if old != nil {
		replaced = old.Value.(*handshake).conn
		a.end(replaced.handshake)
	}
	h.inAll, h.inPeer = a.open.PushBack(h), mine.open.PushBack(h)
	a.rank(h.conn.peer)
	return replaced
}

// busiest returns the handshakes of the peer that has most, or all if none has many.
func (a *handshakes) busiest() *list.List {
	most := &a.open
	n := 0
	for p := range a.above {
		if l := &p.handshakes.open; l.Len() > n {
			most, n = l, l.Len()
		}
	}
	return most
}

// rank records whether a peer has many handshakes.
func (a *handshakes) rank(p *peer) {
	if p.handshakes.open.Len() > a.most/busyShare {
		a.above[p] = struct{}{}
	} else {
		delete(a.above, p)
	}
}

// end ends a handshake, finished or not. The caller holds the mutex.
func (a *handshakes) end(h *handshake) {
	if h.over.Swap(true) || h.inAll == nil {
		return
	}
	p := h.conn.peer
	a.open.Remove(h.inAll)
	p.handshakes.open.Remove(h.inPeer)
	a.rank(p)
	if h.awaits != nil {
		a.waitNoMore(h)
		close(h.turn)
	}
	a.giveBack(h)
}

// finish ends a handshake.
func (h *handshake) finish() {
	if h == nil || h.over.Load() {
		return
	}
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.all.end(h)
}

// pause gives a turn back: the handshake waits for its client.
func (h *handshake) pause() {
	if h == nil || h.over.Load() {
		return
	}
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.all.giveBack(h)
}

// proceed waits for a turn to work on what the client has sent. It returns false if the handshake has made room for
// another one.
func (h *handshake) proceed() bool {
	if h == nil || h.over.Load() {
		return true
	}
	a, p := h.all, &h.conn.peer.handshakes
	a.mu.Lock()
	switch {
	case h.over.Load():
	case a.free > 0:
		a.free--
		h.has = true
	default:
		if p.await.Len() == 0 {
			p.inAwait = a.await.PushBack(h.conn.peer)
		}
		h.awaits = p.await.PushBack(h)
		a.mu.Unlock()
		_, has := <-h.turn
		return has
	}
	defer a.mu.Unlock()
	return h.has
}

// giveBack gives the turn of a handshake to the next one. The peers take turns. The caller holds the mutex.
func (a *handshakes) giveBack(h *handshake) {
	if !h.has {
		return
	}
	h.has = false
	first := a.await.Front()
	if first == nil {
		a.free++
		return
	}
	next := first.Value.(*peer).handshakes.await.Front().Value.(*handshake)
	a.waitNoMore(next)
	next.has = true
	next.turn <- struct{}{}
}

// waitNoMore removes a handshake from those that wait. The others of its peer wait behind those of all other peers. The
// caller holds the mutex.
func (a *handshakes) waitNoMore(h *handshake) {
	p := &h.conn.peer.handshakes
	p.await.Remove(h.awaits)
	h.awaits = nil
	if p.await.Len() == 0 {
		a.await.Remove(p.inAwait)
		p.inAwait = nil
		return
	}
	a.await.MoveToBack(p.inAwait)
}
