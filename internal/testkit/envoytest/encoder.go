package envoytest

import "golang.org/x/net/http2/hpack"

const (
	tableSize     = 4096 // bytes; from RFC 7541
	entryOverhead = 32   // additional bytes of each entry in the table
	staticFields  = 61   // number of static fields; the first entry of the dynamic table has the next index
)

// Encoder encodes the header blocks of one connection as Envoy does. The zero value is a new connection's.
type Encoder struct {
	entries []hpack.HeaderField // dynamic table, newest first
	size    int                 // bytes of the dynamic table
}

// static has the indices of the fields in the static table that Envoy's calls use: by name and value, and by name
// alone.
var static = map[[2]string]uint64{
	{":authority", ""}: 1, {":method", "POST"}: 3, {":path", ""}: 4, {":scheme", "http"}: 6, {":scheme", "https"}: 7,
	{"content-type", ""}: 31,
}

// Append appends the block of a call with these fields.
func (e *Encoder) Append(block []byte, fields ...hpack.HeaderField) []byte {
	for _, f := range fields {
		block = e.appendField(block, f)
	}
	return block
}

func (e *Encoder) appendField(block []byte, f hpack.HeaderField) []byte {
	const reference, entersTable, notIndexed = 0x80, 0x40, 0
	index, name := static[[2]string{f.Name, f.Value}], static[[2]string{f.Name, ""}]
	if f.Value == "" {
		index = 0
	}
	for i, known := range e.entries {
		at := uint64(staticFields + 1 + i)
		if index == 0 && known == f {
			index = at
		}
		if name == 0 && known.Name == f.Name {
			name = at
		}
	}
	switch {
	case index != 0:
		return appendInteger(block, reference, 7, index)
	case f.Name == ":path":
		block = appendInteger(block, notIndexed, 4, name)
	default:
		block = appendInteger(block, entersTable, 6, name)
		e.add(f)
	}
	if name == 0 {
		block = appendString(block, f.Name)
	}
	return appendString(block, f.Value)
}

// add adds an entry, and evicts the oldest ones until it fits.
func (e *Encoder) add(f hpack.HeaderField) {
	e.size += entrySize(f)
	kept := len(e.entries)
	for ; e.size > tableSize; kept-- {
		e.size -= entrySize(e.entries[kept-1])
	}
	e.entries = append([]hpack.HeaderField{f}, e.entries[:kept]...)
}

func entrySize(f hpack.HeaderField) int { return len(f.Name) + len(f.Value) + entryOverhead }

// appendInteger appends a number whose first bits share a byte with other bits.
func appendInteger(block []byte, others byte, bits int, n uint64) []byte {
	most := uint64(1)<<bits - 1
	if n < most {
		return append(block, others|byte(n))
	}
	block = append(block, others|byte(most))
	for n -= most; n >= 0x80; n >>= 7 {
		block = append(block, 0x80|byte(n))
	}
	return append(block, byte(n))
}

// appendString appends a string, in Huffman code where that is shorter.
func appendString(block []byte, s string) []byte {
	if n := hpack.HuffmanEncodeLength(s); n < uint64(len(s)) {
		return hpack.AppendHuffmanString(appendInteger(block, 0x80, 7, n), s)
	}
	return append(appendInteger(block, 0, 7, uint64(len(s))), s...)
}
