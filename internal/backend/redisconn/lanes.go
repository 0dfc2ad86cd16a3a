package redisconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// Lanes are connections to one server for single commands. The goroutine that sends a command reads its answer. The
// client library sends it through its pool, which costs more CPU than the rest of a decision.
//
// Callers of a lane wait only for the answer: no call dials, or waits for another call. A call that finds no free lane
// uses the client. The connections of lanes count as connections of the client's pool.
//
// A nil *Lanes has no lanes.
type Lanes struct {
	network, addr string
	timeout       time.Duration // the longest time that connecting may take
	dialer        *dialer
	hook          hook

	free   chan *Lane
	ctx    context.Context // ends with close
	cancel context.CancelFunc
}

// laned is a client of a single server that has lanes.
type laned struct {
	*goredis.Client
	lanes *Lanes
}

// LanesOf returns the lanes of a client, if it has some.
func LanesOf(client goredis.UniversalClient) *Lanes {
	if c, ok := client.(*laned); ok {
		return c.lanes
	}
	return nil
}

// Close closes the lanes too. It waits for their calls.
func (c *laned) Close() error {
	c.lanes.close()
	return c.Client.Close()
}

// Lane is one of these connections. Its user has it alone until Release.
type Lane struct {
	lanes  *Lanes
	conn   *conn
	answer *bufio.Reader

	call    breakerCall
	nextTry time.Time // a lane that is not connected waits until then
}

// redial is how long a lane stays unused after it could not connect.
const redial = time.Second

// open makes n lanes.
func (l *Lanes) open(n int) {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.free = make(chan *Lane, n)
	for range n {
		l.free <- &Lane{lanes: l}
	}
}

// Take returns a lane that is free and connected, or nil. A lane that is not connected starts to connect.
func (l *Lanes) Take() *Lane {
	if l == nil {
		return nil
	}
	select {
	case n := <-l.free:
		if n.ready() {
			return n
		}
	default:
	}
	return nil
}

// Len returns how many lanes there are.
func (l *Lanes) Len() int {
	if l == nil {
		return 0
	}
	return cap(l.free)
}

// close waits for the calls in flight, and closes the connections.
func (l *Lanes) close() {
	l.cancel()
	for range cap(l.free) {
		n := <-l.free
		n.drop()
	}
}

// ready reports whether a lane can be used. If not, it gives the lane back: now, or when it is connected.
func (n *Lane) ready() bool {
	if n.conn != nil {
		if n.conn.usable() == nil {
			return true
		}
		n.drop()
	}
	if now := time.Now(); now.After(n.nextTry) && n.lanes.ctx.Err() == nil {
		n.nextTry = now.Add(redial)
		go n.dial()
	} else {
		n.lanes.free <- n
	}
	return false
}

// dial connects a lane, and makes it free.
func (n *Lane) dial() {
	defer n.Release()
	l := n.lanes
	ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
	defer cancel()
	c, err := l.hook.DialHook(l.dialer.dial)(ctx, l.network, l.addr)
	if err != nil {
		return // calls go through the client, and report why they fail
	}
	n.conn = c.(*conn)
	n.answer = bufio.NewReaderSize(n.conn, 4096)
}

// drop closes the connection.
func (n *Lane) drop() {
	if n.conn != nil {
		_ = n.conn.Close()
		n.conn, n.answer = nil, nil
	}
}

// Release makes the lane free for others.
func (n *Lane) Release() { n.lanes.free <- n }

// Do sends the bytes of one command, and returns the text that Redis answers with. The text is read into room, and must
// fit. The call ends at the deadline, and when ctx is cancelled. The command is never sent again. Redis may have
// executed it, unless the error is one of Redis.
func (n *Lane) Do(ctx context.Context, deadline time.Time, command, room []byte) ([]byte, error) {
	b := n.lanes.hook.breaker
	if err := b.admit(&n.call); err != nil {
		return nil, err
	}
	start := time.Now()
	answer, err := n.exchange(ctx, deadline, command, room)
	if b != nil {
		err = b.after(ctx, ctx, &n.call, start, err)
	}
	if err != nil {
		if !errors.As(err, new(goredis.Error)) {
			n.drop()
		}
		err = n.lanes.hook.failed(err)
	}
	return answer, err
}

func (n *Lane) exchange(ctx context.Context, deadline time.Time, command, room []byte) ([]byte, error) {
	c := n.conn
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, c.abort)
		defer func() {
			if !stop() {
				n.drop()
			}
		}()
	}
	if err := c.Conn.SetWriteDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := c.Write(command); err != nil {
		return nil, err
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	return n.read(room)
}

// read reads the answer.
func (n *Lane) read(room []byte) ([]byte, error) {
	line, more, err := n.answer.ReadLine()
	if err != nil {
		return nil, err
	}
	kind := byte(0)
	if len(line) > 0 {
		kind = line[0]
	}
	switch kind {
	case '-':
		text := string(line[1:])
		for more { // hook.failed cuts the text
			if _, more, err = n.answer.ReadLine(); err != nil {
				return nil, err
			}
		}
		if n.answer.Buffered() == 0 { // otherwise the next call would read the rest as its answer
			return nil, serverError{text}
		}
	case '$':
		size, err := strconv.Atoi(string(line[1:]))
		if err != nil || more || size < 0 || size > cap(room) {
			break
		}
		room = room[:size]
		if _, err := io.ReadFull(n.answer, room); err != nil {
			return nil, err
		}
		if line, _, err = n.answer.ReadLine(); err != nil {
			return nil, err
		}
		if len(line) == 0 && n.answer.Buffered() == 0 {
			return room, nil
		}
	}
	return nil, noScriptAnswer(fmt.Sprintf("%.24q", line))
}

// noScriptAnswer is an answer of another kind than a script's.
type noScriptAnswer string

func (e noScriptAnswer) Error() string {
	return "Redis sent " + string(e) + " where the answer of a script belongs: check what answers at this address"
}
