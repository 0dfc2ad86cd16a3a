package transport

import (
	"golang.org/x/net/http2"
)

// stream is one request.
type stream struct {
	conn *conn
	id   uint32

	// The goroutine that reads the connection owns these fields.
	declared int64 // content-length; -1: none
	body     int64 // bytes of DATA that arrived

	// Under the connection's mutex.
	ended    bool  // the client has sent its last frame
	received int64 // bytes that the client has sent and has no credit for yet
	window   int64 // bytes that may be sent
	waiting  bool  // a part of the answer waits for the window
	gone     bool  // the stream is closed
	held     int64 // bytes of its message and its header fields that are held

	// One of these is what the request is.
	call     *Call        // of one of the handler's methods
	long     *Stream      // of a StreamMethod
	declined *declination // no call
}

// recentlyClosed has the last streams that were closed in some way.
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

// hold counts bytes that are held for a stream, or with a negative number that are not held any more. The caller holds
// the lock.
func (c *conn) hold(st *stream, n int64) {
	st.held += n
	c.count(n)
}

// reset ends a stream with an error code. The caller is the goroutine that reads.
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

// closed remembers how a stream was closed. Frames that the client has sent before it knows are ignored; frames after
// it has ended the stream are an error. The caller holds the lock.
func (c *conn) closed(id uint32, ended bool) {
	if ended {
		c.finished.add(id)
	} else {
		c.rejected.add(id)
	}
}

// remove forgets a stream. The caller holds the lock.
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

// abort ends the work for a stream that the client will get no answer for. The caller holds the lock.
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
		return // the handler has the call, and answers it
	}
	c.open--
	c.hold(st, -st.held)
	if st.call.counted {
		st.call.counted = false
		c.server.opts.Calls.End(st.call.inFlight)
	}
}
