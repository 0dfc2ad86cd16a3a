package transport

import (
	"bytes"
	"time"

	"golang.org/x/net/http2"
)

const (
	// maxContinuations bounds the CONTINUATION frames of one header block. A block of 256 KiB needs 16.
	maxContinuations = 64

	// maxKeptText is the most memory that a reader keeps for the next block, in bytes of literals.
	maxKeptText = 1 << 10

	// maxRepeated is the longest block, in bytes, that a reader compares with the next one. Envoy's has 54, and more with
	// a longer path.
	maxRepeated = 256
)

// head is the decoded header of a request.
type head struct {
	known *method // nil if the request is not a valid call of a known method

	timeout  time.Duration
	timed    bool // whether there is a timeout
	encoding string

	declared int64 // content-length; -1 without one
}

// headerReader decodes the header blocks of a connection.
//
// HPACK compresses a block against a dynamic table, which both ends of a connection build up from earlier blocks (RFC
// 7541). The calls of a client differ in few fields, and most fields of a block are references to a table. Package
// hpack decodes all of them to strings, which a call does not need. This reader adds up the meanings of the fields, and
// creates strings only for values that the handler wants. It accepts the same blocks as package hpack.
//
// A client that does not trace sends the same block again and again. If a block has not changed the table, the same
// bytes mean the same again.
//
// The reader must read every block, even of a rejected request, because later blocks refer to the table that it
// changes.
type headerReader struct {
	*vocabulary

	maxSize int // bytes of the fields of a block, and of each string in it
	table   table
	changed bool // the current block has changed the table

	// The current block.
	seen
	text   []byte   // text of its literals
	last   []byte   // the block, if the same bytes mean the same again
	values []string // values of Options.Wanted, in order, up to the last one in the block
}

// placed is the place of a field of a block, with its text.
type placed struct {
	span
	in source
}

// source is a text that contains fields.
type source uint8

const (
	inStatic source = iota
	inTable
	inBlock
)

// bytes returns the name and the value of a field of the current block.
func (r *headerReader) bytes(s span, in source) (name, value []byte) {
	switch in {
	case inStatic:
		return s.of(r.staticText)
	case inTable:
		return s.of(r.table.text)
	default:
		return s.of(r.text)
	}
}

// seen is the meaning of the fields of a block so far.
type seen struct {
	head

	size    int  // bytes
	tooLong bool // the fields exceed the bound; further ones only matter for the table
	bad     bool // the request is malformed
	regular bool // there was a field other than pseudo fields
	pseudo  uint // bit set of the kinds of pseudo fields

	method  int       // index in vocabulary.methods; -1 for an unknown method
	places  [2]placed // places of :method and :path
	post    bool
	hosts   int
	typed   bool // there is a content-type
	grpc    bool // the first content-type is gRPC's
	invalid bool // a value is not allowed by gRPC
}

func (r *headerReader) init(v *vocabulary, maxSize uint32) {
	r.vocabulary, r.maxSize = v, int(maxSize)
	r.table.resize(hpackTable)
}

// read decodes a block and invalidates earlier results.
func (r *headerReader) read(block []byte) error {
	if len(block) > 0 && bytes.Equal(block, r.last) {
		return nil
	}
	r.last, r.changed = r.last[:0], false
	r.seen = seen{head: head{declared: -1}}
	r.text, r.values = r.text[:0], r.values[:0]
	for rest := block; len(rest) > 0; {
		next, ok := r.next(rest, len(rest) == len(block))
		if !ok {
			return http2.ConnectionError(http2.ErrCodeCompression)
		}
		rest = next
	}
	if !r.changed && len(block) <= maxRepeated {
		r.last = append(r.last, block...)
	}
	return nil
}

// next decodes the first field of a block, and returns the rest of the block.
func (r *headerReader) next(block []byte, first bool) (rest []byte, ok bool) {
	switch b := block[0]; {
	case b&0x80 != 0:
		index, rest, ok := readInteger(block, 7)
		if !ok {
			return nil, false
		}
		f, in := r.lookup(index)
		if f == nil {
			return nil, false
		}
		r.add(f, in)
		return rest, true
	case b&0x40 != 0:
		return r.literal(block, 6, true)
	case b&0x20 == 0:
		return r.literal(block, 4, false)
	}
	// A new size of the table. Like package hpack, accept one that is not the first in its block if the table is empty.
	size, rest, ok := readInteger(block, 5)
	if !ok || size > hpackTable || !first && r.table.size > 0 {
		return nil, false
	}
	r.table.resize(int(size))
	r.changed = true
	return rest, true
}

// lookup finds a field in one of the tables. It returns nil for an invalid index.
func (r *headerReader) lookup(index uint64) (*field, source) {
	switch static := uint64(len(r.static)); {
	case index == 0:
		return nil, inStatic
	case index <= static:
		return &r.static[index-1], inStatic
	default:
		return r.table.entry(index - static), inTable
	}
}

// literal decodes a field whose value, and perhaps name, is in the block. enters tells whether it enters the table.
func (r *headerReader) literal(block []byte, bits uint, enters bool) (rest []byte, ok bool) {
	index, rest, ok := readInteger(block, bits)
	if !ok {
		return nil, false
	}
	from := len(r.text)
	f := field{span: span{at: uint32(from)}}
	if index == 0 {
		if rest, ok = r.readString(rest, enters); !ok {
			return nil, false
		}
		f.meaning = r.ofName(r.text[from:])
	} else {
		known, in := r.lookup(index)
		if known == nil {
			return nil, false
		}
		name, _ := r.bytes(known.span, in)
		r.text = append(r.text, name...)
		f.kind, f.wanted = known.kind, known.wanted
	}
	value := len(r.text)
	f.name = uint32(value - from)
	if i := r.methodOf(f.kind, rest); i >= 0 {
		r.text = append(r.text, r.methods[i].path...)
		f.n, rest = int64(i), rest[len(r.methods[i].encoded):]
	} else {
		if rest, ok = r.readString(rest, enters); !ok {
			return nil, false
		}
		r.judge(&f.meaning, r.text[value:])
	}
	f.value = uint32(len(r.text) - value)
	if enters {
		if r.tooLong {
			r.table.compact() // no field refers to its text
		}
		r.table.add(r.text, &f)
		r.changed = true
	}
	r.add(&f, inBlock)
	return rest, true
}

// methodOf returns the index of the method whose path, as Envoy encodes it, is at the start of the block's rest, or -1.
func (r *headerReader) methodOf(k kind, rest []byte) int {
	if k == pathField {
		for i := range r.methods {
			if m := &r.methods[i]; len(m.encoded) > 0 && len(m.path) <= r.maxSize && bytes.HasPrefix(rest, m.encoded) {
				return i
			}
		}
	}
	return -1
}

// readString appends a string of a literal to the text (RFC 7541, section 5.2).
func (r *headerReader) readString(block []byte, enters bool) (rest []byte, ok bool) {
	n, rest, ok := readInteger(block, 7)
	if !ok || n > uint64(r.maxSize) || n > uint64(len(rest)) {
		return nil, false
	}
	s, rest := rest[:n], rest[n:]
	switch {
	case r.tooLong && !enters:
		return rest, true // the string is not needed
	case block[0]&0x80 == 0:
		r.text = append(r.text, s...)
		return rest, true
	}
	before := len(r.text)
	r.text, ok = huffman.append(r.text, s)
	return rest, ok && len(r.text)-before <= r.maxSize
}

// readInteger decodes a number whose first bits share a byte with other bits (RFC 7541, section 5.1).
func readInteger(block []byte, bits uint) (n uint64, rest []byte, ok bool) {
	if len(block) == 0 {
		return 0, nil, false
	}
	most := uint64(1)<<bits - 1
	if n = uint64(block[0]) & most; n < most {
		return n, block[1:], true
	}
	const longest = 9 // bytes; package hpack accepts no more either
	for i, b := range block[1:min(len(block), 1+longest)] {
		n += uint64(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			return n, block[i+2:], true
		}
	}
	return 0, nil, false
}

// add adds a field to the meaning of the block.
func (r *headerReader) add(f *field, in source) {
	if r.tooLong = r.tooLong || r.size+f.size() > r.maxSize; r.tooLong {
		r.text = r.text[:0]
		return
	}
	r.size += f.size()
	r.bad = r.bad || f.bad
	if f.wanted > 0 {
		_, value := r.bytes(f.span, in)
		r.want(int(f.wanted)-1, value)
	}
	if f.kind.pseudo() {
		r.addPseudo(f, in)
		return
	}
	r.regular = true
	switch f.kind {
	case hostField:
		r.hosts++
	case lengthField:
		r.bad = r.bad || r.declared >= 0 // given twice
		r.declared = f.n
	case typeField:
		r.grpc = r.grpc || !r.typed && f.n == 1
		r.typed = true
	case timeoutField:
		r.timeout, r.timed = time.Duration(f.n), true
		r.invalid = r.invalid || f.n < 0
	case encodingField:
		_, value := r.bytes(f.span, in)
		r.encoding = encodingOf(value)
	case binaryField:
		r.invalid = r.invalid || f.n == 0
	}
}

// addPseudo adds a pseudo field, which must come before all other fields, and only once (RFC 9113, section 8.3).
func (r *headerReader) addPseudo(f *field, in source) {
	bit := uint(1) << f.kind
	r.bad = r.bad || r.regular || r.pseudo&bit != 0 || f.kind == unknownPseudoField
	r.pseudo |= bit
	switch f.kind {
	case methodField:
		r.post, r.places[0] = f.n == 1, placed{f.span, in}
	case pathField:
		r.method, r.places[1] = int(f.n), placed{f.span, in}
	}
}

// want stores the first value of a field that the handler wants.
func (r *headerReader) want(position int, value []byte) {
	for len(r.values) <= position {
		r.values = append(r.values, "")
	}
	if r.values[position] == "" {
		r.values[position] = string(value)
	}
}

// encodingOf returns the value of grpc-encoding.
func encodingOf(value []byte) string {
	switch string(value) {
	case gzipEncoding:
		return gzipEncoding
	case identity:
		return identity
	}
	return string(value)
}

// request returns the header of the request that starts with the block. It returns false if the request is malformed.
func (r *headerReader) request() (*head, bool) {
	const required = 1<<methodField | 1<<schemeField | 1<<pathField
	if r.bad || r.tooLong || r.pseudo&required != required {
		return nil, false
	}
	r.known = nil
	if host := r.hosts == 1 || r.hosts == 0 && r.pseudo&(1<<authorityField) != 0; host && r.method >= 0 && r.post &&
		r.grpc && !r.invalid {
		r.known = &r.methods[r.method]
	}
	return &r.head, true
}

// trailers reports whether the block may end a request.
func (r *headerReader) trailers() bool { return !r.bad && !r.tooLong && r.pseudo == 0 }

// value returns the value of :method or :path.
func (r *headerReader) value(k kind) []byte {
	p := &r.places[0]
	if k == pathField {
		p = &r.places[1]
	}
	_, value := r.bytes(p.span, p.in)
	return value
}

// letGo ends the use of the block, and frees unusually large memory, because the connection may be idle for a long time
// now.
func (r *headerReader) letGo() {
	if r.changed { // otherwise the fields stay valid, for r.last
		r.table.compact()
	}
	if cap(r.text) > maxKeptText {
		r.text, r.values, r.last = nil, nil, nil
	}
}
