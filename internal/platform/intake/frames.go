package intake

import (
	"errors"
	"net"
)

const (
	prefaceSize     = 24 // "PRI * HTTP/2.0...", which every client sends first
	frameHeaderSize = 9

	frameData         = 0x0
	frameHeaders      = 0x1
	frameContinuation = 0x9

	// maxContinuations bounds the CONTINUATION frames of one header block. A block of 256 KiB needs 16.
	maxContinuations = 64
)

var (
	errContinuations = errors.New("HTTP/2: a header block in too many CONTINUATION frames")
	errBytes         = errors.New("HTTP/2: too many bytes of messages that are not complete")
)

// frameScanner follows the frames of an HTTP/2 connection. It reads only their headers.
type frameScanner struct {
	skip          int // bytes until the next frame header
	header        [frameHeaderSize]byte
	have          int // bytes of header that have arrived
	continuations int // CONTINUATION frames in a row
}

// scan reads p. It returns the size of all DATA frames and the number of HEADERS frames that begin in p, and an error
// if a header block is too long.
func (f *frameScanner) scan(p []byte) (data, headers int, err error) {
	for {
		if f.skip >= len(p) {
			f.skip -= len(p)
			return data, headers, nil
		}
		p, f.skip = p[f.skip:], 0
		n := copy(f.header[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have < frameHeaderSize {
			return data, headers, nil
		}
		f.have = 0
		f.skip = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
		switch f.header[3] {
		case frameData:
			data += f.skip
			f.continuations = 0
		case frameContinuation:
			if f.continuations++; f.continuations > maxContinuations {
				return data, headers, errContinuations
			}
		case frameHeaders:
			headers++
			f.continuations = 0
		default:
			f.continuations = 0
		}
	}
}

// framedConn is a connection that carries unencrypted HTTP/2.
type framedConn struct {
	net.Conn
	conn   *Conn
	frames frameScanner
}

// Frames wraps the unencrypted side of an HTTP/2 connection: c itself, or the connection that decrypts c. It closes
// connections with endless header blocks, and connections with too many bytes of incomplete messages.
func (c *Conn) Frames(plain net.Conn) net.Conn {
	return &framedConn{Conn: plain, conn: c, frames: frameScanner{skip: prefaceSize}}
}

// Read implements net.Conn. It returns a few calls at a time and waits until they have begun. So no connection fills
// the scheduler's queue with calls that delay the calls of other connections.
func (f *framedConn) Read(p []byte) (int, error) {
	f.conn.awaitCalls()
	n, err := f.Conn.Read(p[:min(len(p), readAtOnce)])
	if n == 0 {
		return n, err
	}
	data, begun, bad := f.frames.scan(p[:n])
	if begun > 0 {
		f.conn.coming.Add(int64(begun))
	}
	if bad != nil {
		f.conn.cut(headers)
		return 0, bad
	}
	if data > 0 && !f.conn.Received(int64(data)) {
		return 0, errBytes
	}
	return n, err
}
