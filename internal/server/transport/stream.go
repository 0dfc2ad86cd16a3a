package transport

import (
	"golang.org/x/net/http2"
)

// stream is a request.
type stream struct {
	conn *conn
	id   uint32

	// Owned by the goroutine that reads the connection.
	declared int64 // content-length; -1 without one
	body     int64 // received bytes of DATA

	// Guarded by the connection's mutex.
	ended    bool  // the client has sent its last frame
	received int64 // received bytes without credit
	window   int64 // bytes that may be sent
	waiting  bool  // a part of the answer waits for the window
	gone     bool  // the stream is closed
	held     int64 // memory of its message and its header fields, in bytes

	// The request: exactly one of these is set.
	call     *Call        // call of a method of Handler
	long     *Stream      // call of a StreamMethod
	declined *declination // not a gRPC call
}

// recentlyClosed holds the ids of the last streams that were closed in some way.
type recentlyClosed struct {
	ids  [64]uint32
	next int
}

func (r *recentlyClosed) add(id uint32) {
	r.ids[r.next%len(r.ids)] = id
	r.next++
}

func (r *recentlyClosed) has(id uint32) bool {
	for _, closed := range r.ids {
		if closed == id {
			return true
		}
	}
	return false
}

// hold adds to the memory counted for a stream; a negative number subtracts. The lock must be held.
func (c *conn) hold(st *stream, n int64) {
	st.held += n
	c.count(n)
}

// reset ends a stream with an error code. Only the reading goroutine calls it.
func (c *conn) reset(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.streams[id]; st != nil {
		c.abort(st)
		if st.call != nil && !st.ended {
			st.call.freeParts()
		}
	}
	c.out = appendReset(c.out, id, code)
}

// closed records how a stream was closed. Frames that the client has sent before it knows are ignored; frames after its
// own end of the stream are an error. The lock must be held.
func (c *conn) closed(id uint32, ended bool) {
	if ended {
		c.finished.add(id)
	} else {
		c.rejected.add(id)
	}
}

// remove forgets a stream. The lock must be held.
func (c *conn) remove(st *stream) {
	if st.gone {
		return
	}
	st.gone = true
	delete(c.streams, st.id)
	c.closed(st.id, st.ended)
	if st.waiting {
		c.drop(st)
	}
}

// abort ends the work for a stream without an answer. The lock must be held.
func (c *conn) abort(st *stream) {
	c.remove(st)
	switch {
	case st.long != nil:
		st.long.cancel()
		st.long.fail(errReset)
		st.long.drop()
		return
	case st.declined != nil:
		c.open--
		c.hold(st, -st.held)
		return
	}
	st.call.abandoned()
	if st.ended {
		return // the handler still has the call, and will answer it
	}
	c.open--
	c.hold(st, -st.held)
	if st.call.counted {
		st.call.counted = false
		c.server.opts.Calls.End(st.call.inFlight)
	}
}
