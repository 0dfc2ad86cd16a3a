package transport

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// maxContinuations bounds the CONTINUATION frames of one header block. A block of 256 KiB needs 16.
	maxContinuations = 64

	// maxCachedBlock is the size of the largest header block that is remembered, in bytes. Envoy's block has 54 bytes, and more with a
	// longer path or literal values.
	maxCachedBlock = 256

	// maxCachedFields is how many fields such a block may have. References are short: without this bound, a connection could make the
	// service keep hundreds of fields for each block.
	maxCachedFields = 40

	// cachedBlocks is how many header blocks a connection remembers. A proxy with several timeouts or routes sends several.
	cachedBlocks = 4
)

// head is what the header fields of a request say. It is never changed once it is complete, because requests with the same header block
// share it.
type head struct {
	fields []hpack.HeaderField

	method, scheme, path, authority string

	declared int64 // content-length; -1: none
	size     int64 // bytes of the fields
	shared   bool  // by requests

	forHandler bool // the request is a call of one of the handler's methods
	timeout    time.Duration
	timed      bool // there is a timeout
	encoding   string
}

// value returns the first value of a header field, or "".
func (h *head) value(name string) string {
	for i := range h.fields {
		if h.fields[i].Name == name {
			return h.fields[i].Value
		}
	}
	return ""
}

// headerReader decodes the header blocks of a connection.
//
// HPACK compresses a block against a dynamic table, which both ends of a connection build up from the blocks before. A client that calls
// the same method again and again soon sends the same few bytes for each call: references to the table, and literals that do not enter the
// table, as Envoy sends its path. Decoding them would cost a string, a slice and a validation for each field. So the reader remembers
// such blocks with their meaning, and a repeated block is found by comparing bytes, without the decoder.
//
// That is correct only because these blocks leave the table as it is: a skipped block is not missing from the decoder's
// state. Any other block may insert or evict a field, after which the same bytes mean something else. The decoder reads every such
// block, even of a request that is refused, and all remembered blocks are forgotten.
type headerReader struct {
	path    string
	more    []string // further paths
	maxSize uint32
	decoder *hpack.Decoder

	// What the decoder emits for the present block.
	fields  []hpack.HeaderField
	size    uint32
	tooLong bool
	invalid error
	regular bool // a field that is no pseudo field was seen

	// Blocks that do not change the dynamic table, with their meaning. They are valid until another kind of block arrives, because that
	// block may change the table. A full array overwrites its oldest block.
	cached [cachedBlocks]cachedBlock
	used   int
}

type cachedBlock struct {
	block []byte
	head  *head
}

func (r *headerReader) init(path string, more []string, maxSize uint32) {
	r.path, r.more, r.maxSize = path, more, maxSize
	r.decoder = hpack.NewDecoder(hpackTable, r.emit)
	r.decoder.SetMaxStringLength(int(maxSize))
}

// find returns the meaning of a block that was decoded before, or nil.
func (r *headerReader) find(block []byte) *head {
	for i := range min(r.used, len(r.cached)) {
		if string(r.cached[i].block) == string(block) {
			return r.cached[i].head
		}
	}
	return nil
}

// remember keeps the meaning of a block that does not change the table. A nil block stands for any other kind of block: it may have changed the table,
// so everything that was remembered is forgotten.
func (r *headerReader) remember(block []byte, h *head) {
	if block == nil || h == nil {
		clear(r.cached[:])
		r.used = 0
		return
	}
	if len(h.fields) > maxCachedFields {
		return
	}
	h.shared = true
	r.cached[r.used%len(r.cached)] = cachedBlock{block, h}
	r.used++
}

// keepsTable reports whether a complete block leaves the dynamic table as it is: it consists of references and of literals that are not
// indexed (RFC 7541, section 6).
func keepsTable(block []byte) bool {
	for len(block) > 0 {
		switch first := block[0]; {
		case first&0x80 != 0: // a reference
			_, block = prefixed(block, 0x7f)
		case first&0xe0 == 0: // a literal that is not indexed
			var name uint32
			if name, block = prefixed(block, 0x0f); name == 0 {
				block = skipString(block)
			}
			block = skipString(block)
		default: // a literal that enters the table, or another size of the table
			return false
		}
		if block == nil {
			return false
		}
	}
	return true
}

// prefixed reads an integer whose first bits are those of mask in the first byte (RFC 7541, section 5.1), and returns what follows it: nil
// if the integer is incomplete or has more than 21 further bits, which no short block needs.
func prefixed(block []byte, mask byte) (n uint32, rest []byte) {
	if len(block) == 0 {
		return 0, nil
	}
	if n = uint32(block[0] & mask); n < uint32(mask) {
		return n, block[1:]
	}
	for i, b := range block[1:min(len(block), 4)] {
		n += uint32(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			return n, block[i+2:]
		}
	}
	return 0, nil
}

// skipString returns what follows a string, or nil if the string is incomplete.
func skipString(block []byte) []byte {
	n, rest := prefixed(block, 0x7f)
	if rest == nil || uint64(n) > uint64(len(rest)) {
		return nil
	}
	return rest[n:]
}

// begin prepares for a new block.
func (r *headerReader) begin() {
	r.fields, r.size, r.tooLong, r.invalid, r.regular = nil, 0, false, nil, false
	r.decoder.SetEmitEnabled(true)
}

func (r *headerReader) emit(f hpack.HeaderField) {
	if r.size += f.Size(); r.size > r.maxSize {
		r.tooLong = true
		r.fields = nil
		r.decoder.SetEmitEnabled(false)
		return
	}
	if r.invalid == nil {
		r.invalid = r.check(f)
	}
	r.fields = append(r.fields, f)
}

// check reports what is wrong with a field, by RFC 9113, sections 8.2 and 8.3.
func (r *headerReader) check(f hpack.HeaderField) error {
	if !httpguts.ValidHeaderFieldValue(f.Value) {
		return errors.New("a value has a forbidden character")
	}
	if strings.HasPrefix(f.Name, ":") {
		if r.regular {
			return errors.New("a pseudo field follows other fields")
		}
		return nil
	}
	r.regular = true
	if !httpguts.ValidHeaderFieldName(f.Name) || strings.ToLower(f.Name) != f.Name {
		return fmt.Errorf("the name %q is not valid", f.Name)
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return fmt.Errorf("the field %s belongs to HTTP/1", f.Name)
	case "te":
		if f.Value != "trailers" {
			return errors.New("te is not trailers")
		}
	}
	return nil
}

// write decodes a part of a block.
func (r *headerReader) write(part []byte) error {
	if _, err := r.decoder.Write(part); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	return nil
}

// finish ends a block.
func (r *headerReader) finish() error {
	if err := r.decoder.Close(); err != nil {
		return http2.ConnectionError(http2.ErrCodeCompression)
	}
	return nil
}

// letGo makes the decoder release the memory of the last block. The decoder keeps a reference to the bytes that it was given last, which
// an idle connection would hold for as long as it lives. hpack has no call that drops the reference, so the decoder is given three
// bytes of its own: a complete block whose only field is empty and enters no table.
func (r *headerReader) letGo() {
	r.decoder.SetEmitEnabled(false)
	_, _ = r.decoder.Write(emptyField)
	_ = r.decoder.Close()
}

// emptyField is a literal that is not indexed, without name and value.
var emptyField = []byte{0, 0, 0}

// head returns the meaning of the block that was read.
func (r *headerReader) head() (*head, error) {
	if r.invalid != nil {
		return nil, r.invalid
	}
	h := &head{fields: r.fields, declared: -1}
	seen := 0
	pseudo := func(to *string, bit int, value string) error {
		if seen&bit != 0 {
			return errors.New("a pseudo field is given twice")
		}
		seen |= bit
		*to = value
		return nil
	}
	hosts := 0
	for _, f := range h.fields {
		var err error
		switch f.Name {
		case ":method":
			err = pseudo(&h.method, 1, f.Value)
		case ":scheme":
			err = pseudo(&h.scheme, 2, f.Value)
		case ":path":
			err = pseudo(&h.path, 4, f.Value)
		case ":authority":
			err = pseudo(&h.authority, 8, f.Value)
		case "host":
			hosts++
		case "content-length":
			if h.declared >= 0 {
				return nil, errors.New("content-length is given twice")
			}
			n, bad := strconv.ParseUint(f.Value, 10, 62)
			if bad != nil {
				return nil, errors.New("content-length is no number")
			}
			h.declared = int64(n)
		default:
			if strings.HasPrefix(f.Name, ":") {
				err = fmt.Errorf("unknown pseudo field %s", f.Name)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if seen&7 != 7 || h.path == "" {
		return nil, errors.New("method, scheme or path is missing")
	}
	r.classify(h, hosts)
	return h, nil
}

// classify finds out whether a request is a well-formed call of one of the handler's methods. All others are left to Other, which
// answers what is wrong with them.
func (r *headerReader) classify(h *head, hosts int) {
	if h.path != r.path && !slices.Contains(r.more, h.path) || h.method != "POST" || h.authority == "" && hosts == 0 || hosts > 1 || h.authority != "" && hosts > 0 {
		return
	}
	if !isGRPC(h.value("content-type")) {
		return
	}
	for _, f := range h.fields {
		switch {
		case f.Name == "grpc-timeout":
			d, ok := parseTimeout(f.Value)
			if !ok {
				return
			}
			h.timeout, h.timed = d, true
		case f.Name == "grpc-encoding":
			h.encoding = f.Value
		case strings.HasSuffix(f.Name, "-bin") && !isBinary(f.Value):
			return
		}
	}
	h.forHandler = true
}

// isGRPC reports whether a content type means gRPC with protobuf messages.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest == "+proto")
}

// isBinary reports whether a value is in base64, as the values of names that end in -bin must be.
func isBinary(value string) bool {
	encoding := base64.StdEncoding
	if len(value)%4 != 0 {
		encoding = base64.RawStdEncoding
	}
	_, err := encoding.DecodeString(value)
	return err == nil
}

// timeoutUnit returns the unit that a letter stands for, or 0.
func timeoutUnit(letter byte) time.Duration {
	switch letter {
	case 'H':
		return time.Hour
	case 'M':
		return time.Minute
	case 'S':
		return time.Second
	case 'm':
		return time.Millisecond
	case 'u':
		return time.Microsecond
	case 'n':
		return time.Nanosecond
	default:
		return 0
	}
}

// parseTimeout reads a value of grpc-timeout: at most eight digits and a unit.
func parseTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	unit := timeoutUnit(s[len(s)-1])
	if unit == 0 {
		return 0, false
	}
	n := int64(0)
	for i := range len(s) - 1 {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = 10*n + int64(s[i]-'0')
	}
	if n > int64(1<<63-1)/int64(unit) {
		return 1<<63 - 1, true
	}
	return time.Duration(n) * unit, true
}
