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

// frames follows the frames of an HTTP/2 connection by their headers.
type frames struct {
	skip          int // bytes until the next frame header
	header        [frameHeaderSize]byte
	have          int // bytes of header that are there
	continuations int // one after another
}

// next reads on. It returns how many bytes the DATA frames have that begin in p, how many HEADERS frames do, and whether a
// header block goes on for too long.
func (f *frames) next(p []byte) (data, headers int, err error) {
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

// framed is a connection with the plain text of HTTP/2.
type framed struct {
	net.Conn
	conn   *Conn
	frames frames
}

// Frames wraps the plain text of an HTTP/2 connection: c itself, or what decrypts c. It ends connections with endless
// header blocks, and those that hold too many bytes of messages that are not complete.
func (c *Conn) Frames(plain net.Conn) net.Conn {
	return &framed{Conn: plain, conn: c, frames: frames{skip: prefaceSize}}
}

// Read implements net.Conn. It returns a few calls at a time, and waits until those that it returned have begun, so that no
// connection fills the scheduler's queue with calls that the others must wait for.
func (f *framed) Read(p []byte) (int, error) {
	f.conn.awaitCalls()
	n, err := f.Conn.Read(p[:min(len(p), readAtOnce)])
	if n == 0 {
		return n, err
	}
	data, begun, bad := f.frames.next(p[:n])
	if begun > 0 {
		f.conn.coming.Add(int64(begun))
	}
	if bad != nil {
		f.conn.cut(headers)
		return 0, bad
	}
	if data > 0 && !f.conn.listener.options.Bytes.add(f.conn, int64(data)) {
		f.conn.cut(tooManyBytes)
		return 0, errBytes
	}
	return n, err
}
