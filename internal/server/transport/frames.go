package transport

import (
	"time"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
)

// readFrame reads and processes one frame. A StreamError ends a stream, any other error the connection.
func (c *reader) readFrame() error {
	fh, err := c.framer.ReadFrameHeader()
	if err != nil {
		return err
	}
	if !c.settled && (fh.Type != http2.FrameSettings || fh.Flags.Has(http2.FlagSettingsAck)) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	switch fh.Type {
	case http2.FrameHeaders:
		return c.readHeaders(fh)
	case http2.FrameData:
		return c.readData(fh)
	}
	now := time.Now()
	c.read.Store(int64(now.Sub(c.server.began)))
	c.large = c.large || fh.Length > readBuffer
	f, err := c.framer.ReadFrameForHeader(fh)
	if err != nil {
		return err
	}
	if !c.idle() {
		return c.overBound(intake.TooManyFrames)
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		return c.settings(f)
	case *http2.PingFrame:
		return c.ping(f, now)
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(f)
	case *http2.RSTStreamFrame:
		return c.resetByClient(f.StreamID)
	case *http2.PriorityFrame:
		return checkPriority(f.StreamID, f.PriorityParam)
	case *http2.PushPromiseFrame, *http2.ContinuationFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil // frames of other types have no meaning for a server
}

func checkPriority(id uint32, p http2.PriorityParam) error {
	if p.StreamDep == id {
		return http2.StreamError{StreamID: id, Code: http2.ErrCodeProtocol}
	}
	return nil
}

func (c *reader) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	c.settled = true
	if f.NumSettings() > maxSettings {
		return c.overBound(intake.TooManyFrames)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.initial
	if err := f.ForeachSetting(c.set); err != nil {
		return err
	}
	if err := c.shift(c.initial - before); err != nil {
		return err
	}
	c.out = appendFrame(c.out, http2.FrameSettings, http2.FlagSettingsAck, 0, 0)
	if c.initial > before {
		c.sendBlocked()
		c.wake()
	}
	return nil
}

// shift changes the windows of all streams. The lock must be held.
func (c *reader) shift(change int64) error {
	if change == 0 {
		return nil
	}
	c.idleFrames += len(c.streams) // costs as much work as this many frames
	for _, st := range c.streams {
		if st.window += change; st.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
	}
	return nil
}

// wake wakes the streams that may send: both the connection's window and theirs have room. If it woke every waiting
// stream, a client could keep the server busy with small frames. The lock must be held.
func (c *conn) wake() {
	if c.blockedStreams == 0 || c.window <= 0 {
		return
	}
	for _, st := range c.streams {
		if st.long != nil && st.window > 0 {
			st.long.room.Signal()
		}
	}
}

// set applies a setting of the client. The lock must be held.
func (c *conn) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		if s.Val < hpackTable {
			c.resizes = true
		}
	case http2.SettingInitialWindowSize:
		c.initial = int64(s.Val)
	case http2.SettingMaxFrameSize:
		c.frame = int(min(s.Val, 1<<20))
	}
	return nil
}

func (c *reader) ping(f *http2.PingFrame, now time.Time) error {
	if f.IsAck() {
		if f.Data == drainPing {
			c.drained()
		}
		return nil
	}
	least := c.server.opts.MinPingInterval
	switch {
	case c.wrote.Swap(false):
		c.strikes = 0
	case least > 0 && now.Sub(c.lastPing) < least:
		c.strikes++
	}
	c.lastPing = now
	if c.strikes > maxStrikes {
		_ = c.overBound(intake.TooManyPings)
		return tooManyPings{}
	}
	c.pong(f.Data)
	return nil
}

// tooManyPings is the error for a client that pings too often. Clients recognize its text in the GOAWAY.
type tooManyPings struct{}

// Error implements error.
func (tooManyPings) Error() string { return "too_many_pings" }

func (c *conn) windowUpdate(f *http2.WindowUpdateFrame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.StreamID == 0 {
		before := c.window
		if c.window += int64(f.Increment); c.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		if before <= 0 { // otherwise nothing waits for this window
			c.sendBlocked()
			c.wake()
		}
		return nil
	}
	if c.unused(f.StreamID) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	st := c.streams[f.StreamID]
	if st == nil {
		return nil
	}
	if st.window += int64(f.Increment); st.window > maxWindow {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeFlowControl}
	}
	if st.long != nil {
		st.long.room.Signal()
	} else if st.waiting {
		c.sendBlocked()
	}
	return nil
}

// unused reports whether the client has not opened a stream yet. The lock must be held.
func (c *conn) unused(id uint32) bool { return id > c.latest || id%2 == 0 }

func (c *conn) resetByClient(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unused(id) {
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	c.finished.add(id)
	if st := c.streams[id]; st != nil {
		c.abort(st)
	}
	return nil
}
