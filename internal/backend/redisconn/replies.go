package redisconn

import (
	"bytes"
	"fmt"
	"strconv"
	"sync/atomic"
)

// Bounds of a server's answers. The client library trusts the lengths that a server announces: it allocates the bytes
// of a text and the elements of an array before they arrive, and it calls itself for every array within an array.
const (
	maxText   = 16 << 20 // bytes of one text
	maxAnswer = 32 << 20 // bytes between two commands; a pipeline is one command
	// elements of arrays, maps and sets between two commands; the topology of a cluster has up to 300,000
	maxElements = 1 << 20
	maxDepth    = 16       // arrays within arrays; the topology of a cluster and the entries of streams have 5
	maxLine     = 64 << 10 // bytes of a line: an error, a status, a number
)

// replies follows the framing of a server's answers (RESP2 and RESP3), and rejects answers beyond the bounds before the
// client library sees them. It looks at the first line of each element only: the bytes of texts are skipped. Bytes that
// are not RESP pass, within the same bounds, because the client library's error quotes them.
//
// The client library closes a connection after anything that it cannot parse. So it always starts to read where replies
// sees the start of an element, and no length passes as a part of something else.
type replies struct {
	asked atomic.Bool // a command was written since the last bytes arrived

	size, elements int // counted since the last command

	skip  int      // bytes of a text, and its line end, that are still to come
	head  [24]byte // start of the present line: a type and a length
	line  int      // length of the present line so far
	left  [maxDepth]int
	depth int // how many of left are in use: elements that are still to come at each depth
}

// scan reads the next bytes. After an error the connection cannot be used.
func (r *replies) scan(p []byte) error {
	if r.asked.Load() {
		r.asked.Store(false)
		r.size, r.elements = 0, 0
	}
	if r.size += len(p); r.size > maxAnswer {
		return tooLarge(fmt.Sprintf("more than %d MiB in answer to one command", maxAnswer>>20))
	}
	for len(p) > 0 {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			p = p[n:]
			if r.skip -= n; r.skip == 0 {
				r.end()
			}
			continue
		}
		part, ends := p, false
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			part, ends = p[:i+1], true
		}
		p = p[len(part):]
		if r.line < len(r.head) {
			copy(r.head[r.line:], part)
		}
		if r.line += len(part); r.line > maxLine {
			return tooLarge(fmt.Sprintf("a line of more than %d KiB", maxLine>>10))
		}
		if !ends {
			return nil
		}
		if err := r.begin(); err != nil {
			return err
		}
		r.line = 0
	}
	return nil
}

// begin acts on the first line of an element.
func (r *replies) begin() error {
	kind := r.head[0]
	most, each, more, text := maxElements, 1, 0, false
	switch kind {
	case '$', '=':
		most, text = maxText, true
	case '!': // an error
		most, text = maxLine, true
	case '*', '~', '>':
	case '%':
		each = 2
	case '|': // attributes stand before their subject
		each, more = 2, 1
	default:
		r.end()
		return nil
	}
	digits, ok := bytes.CutSuffix(r.head[1:min(r.line, len(r.head))], []byte("\r\n"))
	if ok && string(digits) == "-1" { // nothing
		r.end()
		return nil
	}
	n, err := strconv.ParseUint(string(digits), 10, 64)
	switch {
	case !ok || err != nil:
		return malformed(r.head[:min(r.line, len(r.head))])
	case n > uint64(most) && text:
		return tooLarge(fmt.Sprintf("a text of %d bytes; at most %d are read", n, most))
	case n > uint64(most):
		return tooLarge(fmt.Sprintf("%d elements; at most %d are read", n, most))
	case text:
		r.skip = int(n) + len("\r\n")
		return nil
	}
	elements := int(n)*each + more
	if r.elements += elements; r.elements > maxElements {
		return tooLarge(fmt.Sprintf("more than %d elements in answer to one command", maxElements))
	}
	if elements == 0 {
		r.end()
		return nil
	}
	if r.depth == maxDepth {
		return tooLarge(fmt.Sprintf("arrays within arrays, more than %d deep", maxDepth))
	}
	r.left[r.depth] = elements
	r.depth++
	return nil
}

// end marks the end of an element, and of the arrays that end with it.
func (r *replies) end() {
	for r.depth > 0 {
		if r.left[r.depth-1]--; r.left[r.depth-1] > 0 {
			return
		}
		r.depth--
	}
}

// malformed is an answer that is not RESP.
type malformed string

func (m malformed) Error() string {
	return fmt.Sprintf("Redis sent %q where a length belongs: check what answers at this address", string(m))
}

// tooLarge is an answer beyond the bounds. Its text describes the answer.
type tooLarge string

func (t tooLarge) Error() string {
	return "Redis sent " + string(t) + ": check what answers at this address"
}

// TooLarge lets a caller recognize the error without importing this package, to ask for less in one call.
func (tooLarge) TooLarge() bool { return true }
