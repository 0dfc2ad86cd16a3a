package intake

import (
	"container/list"
	"runtime"
	"sync"
	"sync/atomic"
)

// maxHandshakes is the largest number of unfinished TLS handshakes of a port, but at most half of its connections.
const maxHandshakes = 512

// busyShare: a peer with more than this part (1/busyShare) of the unfinished handshakes makes room for others.
const busyShare = 8

// handshakes bounds the TLS handshakes of a listener. Each costs the server a signature, and an attacker a few bytes.
// So the number of unfinished handshakes is small, with at most half of them from one peer: when it is reached, a new
// handshake replaces the oldest one of the peer with the most. And only a few are processed concurrently, in turns of
// the peers, so that most of the processors stay free for open connections.
type handshakes struct {
	most int

	mu    sync.Mutex
	open  list.List          // *handshake, oldest first
	above map[*peer]struct{} // peers with more than 1/busyShare of them; fewer than busyShare
	free  int                // free turns
	await list.List          // *peer with handshakes that wait for a turn
}

func newHandshakes(connections int) *handshakes {
	most := maxHandshakes
	if connections > 0 {
		most = max(1, min(most, connections/2))
	}
	return &handshakes{most: most, above: make(map[*peer]struct{}), free: max(1, runtime.GOMAXPROCS(0)/2)}
}

// handshake is the TLS handshake of one connection. A nil handshake is complete.
type handshake struct {
	all  *handshakes
	conn *Conn
	over atomic.Bool

	// Guarded by the mutex of all.
	inAll, inPeer *list.Element
	awaits        *list.Element // element in the peer's await list
	has           bool          // it has a turn
	turn          chan struct{} // receives a value with a turn; closed when a waiting handshake ends
}

// peerHandshakes are the handshakes of one peer, guarded by the mutex of handshakes.
type peerHandshakes struct {
	open    list.List     // *handshake, oldest first
	await   list.List     // *handshake, waiting for a turn
	inAwait *list.Element // element in handshakes.await, if await is not empty
}

// begin adds the handshake of a new connection. It returns the connection that is replaced and must be closed, or nil.
func (h *handshake) begin() (replaced *Conn) {
	if h == nil {
		return nil
	}
	a, mine := h.all, &h.conn.peer.handshakes
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.over.Load() { // the connection is already closed
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

// busiest returns the handshakes of the peer with the most, or all handshakes if no peer has many.
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

// end ends a handshake, complete or not. The mutex must be held.
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

// pause returns the turn: the handshake waits for its client.
func (h *handshake) pause() {
	if h == nil || h.over.Load() {
		return
	}
	h.all.mu.Lock()
	defer h.all.mu.Unlock()
	h.all.giveBack(h)
}

// proceed waits for a turn to process the client's data. It returns false if the handshake was replaced by another one.
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

// giveBack passes the turn of a handshake to the next one. The peers take turns. The mutex must be held.
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

// waitNoMore removes a handshake from the waiting ones. The others of its peer move behind those of all other peers.
// The mutex must be held.
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
