package transport

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// field is a header field with its meaning. Its bytes are part of another text.
type field struct {
	span
	meaning
}

// span is the place of a field in a text: its name, followed by its value.
type span struct {
	at          uint32
	name, value uint32 // bytes
}

// size returns the size of a field for the size of a table, and of all fields of a request (RFC 7541, section 4.1).
func (s span) size() int { return int(s.name) + int(s.value) + entryOverhead }

func (s span) of(text []byte) (name, value []byte) {
	text = text[s.at : s.at+s.name+s.value]
	return text[:s.name], text[s.name:]
}

// meaning is the meaning of a header field for this package. A table stores it with the field, so that a reference to
// the field costs no look at its bytes.
type meaning struct {
	kind   kind
	wanted uint8 // 1 + its index in Options.Wanted; 0 if it is not there
	bad    bool  // the field makes a request malformed (RFC 9113, section 8.2)

	// n depends on the kind. It is 1 for POST, a content type of gRPC and a valid binary value, and 0 for other values of
	// these kinds. It is the index of a method's path or the nanoseconds of a timeout, or -1 for an unknown path or
	// invalid timeout. It is the length of a body.
	n int64
}

// kind is derived from the name of a header field.
type kind uint8

const (
	anyField       kind = iota
	forbiddenField      // not a valid name, or one of HTTP/1
	teField
	hostField
	lengthField
	typeField
	timeoutField
	encodingField
	binaryField // the name ends in -bin
	unknownPseudoField
	methodField
	schemeField
	pathField
	authorityField
)

// pseudo reports whether the name starts with a colon.
func (k kind) pseudo() bool { return k >= unknownPseudoField }

var kinds = map[string]kind{
	":method": methodField, ":scheme": schemeField, ":path": pathField, ":authority": authorityField,
	"te": teField, "host": hostField, "content-length": lengthField, "content-type": typeField,
	"grpc-timeout": timeoutField, "grpc-encoding": encodingField,
	"connection": forbiddenField, "proxy-connection": forbiddenField, "keep-alive": forbiddenField,
	"transfer-encoding": forbiddenField, "upgrade": forbiddenField,
}

// nameBytes and valueBytes are the valid bytes of names and values.
var nameBytes, valueBytes = func() (name, value [256]bool) {
	for b := range 256 {
		s := string([]byte{byte(b)})
		name[b] = httpguts.ValidHeaderFieldName(s) && s == strings.ToLower(s)
		value[b] = httpguts.ValidHeaderFieldValue(s)
	}
	return name, value
}()

func onlyBytes(s []byte, of *[256]bool) bool {
	for _, b := range s {
		if !of[b] {
			return false
		}
	}
	return true
}

// validValue reports whether a value has only valid bytes. It checks eight bytes together: bytes from the space to
// below DEL are valid.
func validValue(s []byte) bool {
	const each, top = 0x0101010101010101, 0x8080808080808080
	for ; len(s) >= 8; s = s[8:] {
		eight := binary.LittleEndian.Uint64(s)
		if (eight|(eight-each*' ')|(eight+each))&top != 0 && !onlyBytes(s[:8], &valueBytes) {
			return false
		}
	}
	return onlyBytes(s, &valueBytes)
}

// vocabulary gives header fields of requests their meaning. It never changes.
type vocabulary struct {
	methods  []method
	services map[string]bool // services of these methods
	wanted   []string

	// HPACK's static table (RFC 7541, appendix A), from index 1 on.
	static     []field
	staticText []byte
}

// method is a method of the server.
type method struct {
	stream  *StreamMethod // nil for the handler's methods
	path    string
	encoded []byte // Huffman-coded string, as in HPACK; empty if its length needs more than one byte
}

func newVocabulary(o *Options) *vocabulary {
	v := &vocabulary{wanted: o.Wanted, services: make(map[string]bool)}
	add := func(path string, stream *StreamMethod) {
		m := method{stream: stream, path: path}
		if n := hpack.HuffmanEncodeLength(path); n < 0x7f {
			m.encoded = hpack.AppendHuffmanString([]byte{0x80 | byte(n)}, path)
		}
		v.methods = append(v.methods, m)
		if service, _, ok := cutLast(strings.TrimPrefix(path, "/")); ok {
			v.services[service] = true
		}
	}
	add(o.Path, nil)
	for _, path := range o.More {
		add(path, nil)
	}
	for _, path := range slices.Sorted(maps.Keys(o.Streams)) {
		add(path, o.Streams[path])
	}
	d := hpack.NewDecoder(0, nil)
	for index := byte(1); ; index++ {
		known, err := d.DecodeFull([]byte{0x80 | index})
		if err != nil {
			return v
		}
		name, value := known[0].Name, known[0].Value
		f := field{span{uint32(len(v.staticText)), uint32(len(name)), uint32(len(value))}, v.ofName([]byte(name))}
		v.judge(&f.meaning, []byte(value))
		v.static = append(v.static, f)
		v.staticText = append(append(v.staticText, name...), value...)
	}
}

// ofName returns the meaning that a name gives its field.
func (v *vocabulary) ofName(name []byte) meaning {
	k, known := kinds[string(name)]
	switch {
	case known:
	case len(name) > 0 && name[0] == ':':
		k = unknownPseudoField
	case len(name) == 0 || !onlyBytes(name, &nameBytes):
		k = forbiddenField
	case bytes.HasSuffix(name, []byte("-bin")):
		k = binaryField
	}
	return meaning{kind: k, wanted: uint8(1 + slices.IndexFunc(v.wanted,
		func(w string) bool { return w == string(name) }))}
}

// judge completes the meaning with the value.
func (v *vocabulary) judge(m *meaning, value []byte) {
	m.bad = m.kind == forbiddenField || !validValue(value)
	m.n = 0
	fits := false // the value is the expected one
	switch m.kind {
	case teField:
		m.bad = m.bad || string(value) != "trailers"
	case lengthField:
		n, err := strconv.ParseUint(string(value), 10, 62)
		m.n, m.bad = int64(n), m.bad || err != nil
	case timeoutField:
		m.n = int64(parseTimeout(value))
	case pathField:
		m.bad = m.bad || len(value) == 0
		m.n = int64(slices.IndexFunc(v.methods, func(known method) bool { return known.path == string(value) }))
	case methodField:
		fits = string(value) == "POST"
	case typeField:
		fits = isGRPC(string(value))
	case binaryField:
		fits = isBinary(string(value))
	}
	if fits {
		m.n = 1
	}
}

// isGRPC reports whether a content type means gRPC. All messages are protobuf, whatever the subtype, as in grpc-go.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// isBinary reports whether a value is in base64, which is required for names that end in -bin.
func isBinary(value string) bool {
	encoding := base64.StdEncoding
	if len(value)%4 != 0 {
		encoding = base64.RawStdEncoding
	}
	_, err := encoding.DecodeString(value)
	return err == nil
}

// timeoutUnit returns the unit for a letter, or 0.
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

// parseTimeout parses grpc-timeout: at most eight digits and a unit. It returns -1 for any other value.
func parseTimeout(s []byte) time.Duration {
	if len(s) < 2 || len(s) > 9 {
		return -1
	}
	unit := timeoutUnit(s[len(s)-1])
	if unit == 0 {
		return -1
	}
	n := int64(0)
	for _, digit := range s[:len(s)-1] {
		if digit < '0' || digit > '9' {
			return -1
		}
		n = 10*n + int64(digit-'0')
	}
	if n > int64(1<<63-1)/int64(unit) {
		return 1<<63 - 1
	}
	return time.Duration(n) * unit
}
