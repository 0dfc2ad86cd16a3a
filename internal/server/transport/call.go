package transport

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// Call is a call of one of the handler's methods. It is a context that ends at the client's deadline, or when the
// client cancels the call. A call must not be used after it is answered.
type Call struct {
	// Message is the request's message.
	Message []byte

	stream stream
	head   head
	values []string // values of Options.Wanted, in order, up to the last one in the request
	buf    []byte   // memory of Message, or of its first bytes
	parts  []*part
	last   int   // bytes in the last part; 0 if it is full
	held   int64 // bytes counted in stream.held for the message

	unpacked bool // Message was compressed, and has separate memory

	inFlight intake.InFlight
	counted  bool // whether inFlight must be ended

	deadline time.Time
	reset    atomic.Bool // set when the client has cancelled the call, or the call is answered

	mu    sync.Mutex
	done  chan struct{} // created by Done
	timer *time.Timer   // closes done at the deadline
}

var _ context.Context = (*Call)(nil)

// Deadline implements context.Context.
func (c *Call) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Err implements context.Context.
func (c *Call) Err() error {
	if c.reset.Load() {
		return context.Canceled
	}
	if !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Done implements context.Context. Most calls are answered without anybody waiting for their end, so the channel is
// only created here.
func (c *Call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done != nil {
		return c.done
	}
	done := make(chan struct{})
	c.done = done
	switch {
	case c.reset.Load():
		close(done)
		c.done = closed
		return done
	case !c.deadline.IsZero():
		c.timer = time.AfterFunc(time.Until(c.deadline), func() { c.endContext(done) })
	}
	return done
}

// closed is a channel that is already closed.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// endContext closes the channel of Done, once.
func (c *Call) endContext(done chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == done && done != closed {
		close(done)
		c.done = closed
	}
}

// Value implements context.Context.
func (c *Call) Value(any) any { return nil }

// Path returns the path of the method: "/package.Service/Method".
func (c *Call) Path() string { return c.head.known.path }

// More counts the call as additional calls in flight. If it returns false, there are too many, and the handler must
// reject the call. Only Handle may call it, before it returns.
func (c *Call) More(calls int) bool { return c.stream.conn.server.opts.Calls.More(&c.inFlight, calls) }

// Hold counts memory of the handler for the call, without the message, until the call is answered.
func (c *Call) Hold(n int64) {
	conn := c.stream.conn
	conn.mu.Lock()
	defer conn.mu.Unlock()
	conn.hold(&c.stream, n)
}

// Header returns the first value of a header field in Options.Wanted, or "".
func (c *Call) Header(name string) string {
	if i := slices.Index(c.stream.conn.server.vocabulary.wanted, name); i >= 0 && i < len(c.values) {
		return c.values[i]
	}
	return ""
}

// Message is an answer's message.
type Message interface {
	// AppendTo appends the encoded message.
	AppendTo(b []byte) []byte
}

// Reply answers the call with a message.
func (c *Call) Reply(m Message) { c.reply(answerBlock, m) }

// ReplyWith answers the call with a message, after a header field. The name must be in lower case.
func (c *Call) ReplyWith(m Message, name, value string) {
	c.reply(appendField(slices.Clone(answerBlock), name, value), m)
}

func (c *Call) reply(head []byte, m Message) {
	conn := c.stream.conn
	conn.mu.Lock()
	if !c.stream.gone {
		conn.appendBlock(c.stream.id, false, head)
		conn.answer(&c.stream, m)
	}
	c.release()
}

// Fail answers the call with an error.
func (c *Call) Fail(code codes.Code, message string) {
	c.fail(code, message, "")
}

func (c *Call) fail(code codes.Code, message, acceptEncoding string) {
	conn := c.stream.conn
	conn.mu.Lock()
	if !c.stream.gone {
		conn.appendStatus(c.stream.id, false, code, message, acceptEncoding)
		conn.answered(&c.stream)
	}
	c.release()
}

// release ends the call. The connection's lock must be held; release unlocks it.
func (c *Call) release() {
	conn := c.stream.conn
	conn.open--
	conn.hold(&c.stream, -c.stream.held)
	later := !conn.handling // otherwise the connection is flushed after the batch
	kept := c.stream.waiting
	if c.counted {
		// Before the lock is released: a client with its answer may start the next call immediately.
		conn.server.opts.Calls.End(c.inFlight)
	}
	conn.mu.Unlock()
	conn.wrote.Store(true)
	if later {
		conn.flushLater()
	}
	watched := c.endWatch()
	c.freeParts()        // remaining parts of a message that was rejected before its end
	if kept || watched { // the connection, or a context derived from c, still refers to c
		c.Message, c.head, c.values, c.buf = nil, head{}, nil, nil
		return
	}
	if cap(c.buf) > maxKeptMessage {
		c.buf = nil
	}
	clear(c.values)
	c.Message, c.head, c.values, c.buf = nil, head{}, c.values[:0], c.buf[:0]
	c.held, c.unpacked, c.counted, c.inFlight, c.deadline = 0, false, false, intake.InFlight{}, time.Time{}
	c.stream = stream{}
	c.reset.Store(false)
	conn.server.calls.Put(c)
}

// endWatch closes the channel that Done returned. It returns false if Done was never called. Otherwise the call must
// not be reused: a context derived from it may still read it for a moment.
func (c *Call) endWatch() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		return false
	}
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if c.Err() == nil {
		c.reset.Store(true)
	}
	if c.done != closed {
		close(c.done)
		c.done = closed
	}
	return true
}

// abandoned is called when the client has cancelled the call, or its connection is closed. The connection's lock must
// be held, so that the call is not released in the middle.
func (c *Call) abandoned() {
	c.reset.Store(true)
	c.mu.Lock()
	done := c.done
	c.mu.Unlock()
	if done != nil {
		c.endContext(done)
	}
}

// arrived is called when the message is complete.
func (c *Call) arrived(now time.Time) {
	if c.counted {
		c.stream.conn.server.opts.Calls.Arrived(&c.inFlight, now)
	}
}
