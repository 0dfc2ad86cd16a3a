package transport

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"golang.org/x/net/http2/hpack"
)

// huffman is HPACK's Huffman code (RFC 7541, appendix B).
var huffman = newHuffmanCode()

// huffmanCode decodes strings. Most symbols of header fields have codes of 5 to 8 bits, and the digits of trace
// contexts 5 or 6, so a lookup mostly finds two symbols. The longest code has 30 bits.
type huffmanCode struct {
	pairs [1 << pairBits]huffmanPair // indexed by the next bits
	all   []huffmanSymbol            // sorted by code
}

const pairBits = 12

// huffmanPair is the start of a bit string: two symbols, one symbol, or none if the code is longer.
type huffmanPair struct {
	chars       [2]byte
	first, both uint8 // bits of the first and of both symbols; equal if there is only one
}

type huffmanSymbol struct {
	code uint32 // left-aligned
	bits uint8
	char byte
}

// newHuffmanCode derives each code from the encoding of package hpack: the length of eight equal symbols in bytes is
// the length of one in bits.
func newHuffmanCode() *huffmanCode {
	h := new(huffmanCode)
	for char := range 256 {
		eight := string(bytes.Repeat([]byte{byte(char)}, 8))
		s := huffmanSymbol{bits: uint8(hpack.HuffmanEncodeLength(eight)), char: byte(char)}
		s.code = binary.BigEndian.Uint32(hpack.AppendHuffmanString(nil, eight)) >> (32 - s.bits) << (32 - s.bits)
		h.all = append(h.all, s)
	}
	slices.SortFunc(h.all, func(a, b huffmanSymbol) int { return cmp.Compare(a.code, b.code) })
	for i := range h.pairs {
		next := uint32(i) << (32 - pairBits)
		first := h.find(next)
		if first.bits > pairBits {
			continue
		}
		h.pairs[i] = huffmanPair{[2]byte{first.char}, first.bits, first.bits}
		if second := h.find(next << first.bits); first.bits+second.bits <= pairBits {
			h.pairs[i] = huffmanPair{[2]byte{first.char, second.char}, first.bits, first.bits + second.bits}
		}
	}
	return h
}

// find returns the first symbol of a bit string. For an invalid code, it returns a symbol longer than every string.
func (h *huffmanCode) find(next uint32) huffmanSymbol {
	i, found := slices.BinarySearchFunc(h.all, next, func(s huffmanSymbol, next uint32) int {
		return cmp.Compare(s.code, next)
	})
	if !found {
		i--
	}
	s := h.all[i]
	if (next^s.code)>>(32-s.bits) != 0 {
		return huffmanSymbol{bits: 64}
	}
	return s
}

// append appends the decoded string. It reports whether the code is valid.
func (h *huffmanCode) append(to, encoded []byte) ([]byte, bool) {
	const shortest = 5 // bits
	// a pair is written as a whole, even if only its first symbol counts
	to = slices.Grow(to, len(encoded)*8/shortest+len("?"))
	out := to[len(to):cap(to)]
	n := 0
	next, have := uint64(0), uint8(0) // bits read so far, left-aligned, and their number
	for {
		switch {
		case have >= 32:
		case len(encoded) >= 4:
			next |= uint64(binary.BigEndian.Uint32(encoded)) << (32 - have)
			have += 32
			encoded = encoded[4:]
		default:
			for ; len(encoded) > 0; encoded = encoded[1:] {
				next |= uint64(encoded[0]) << (56 - have)
				have += 8
			}
			next |= ^uint64(0) >> have // padding after the last symbol consists of ones
			if have < 8 && next == ^uint64(0) {
				return to[:len(to)+n], true
			}
		}
		p := h.pairs[next>>(64-pairBits)]
		bits := p.both
		switch {
		case p.first != 0 && p.both <= have:
			out[n], out[n+1] = p.chars[0], p.chars[1]
			n++
			if p.both != p.first {
				n++
			}
		case p.first != 0 && p.first <= have:
			out[n] = p.chars[0]
			n++
			bits = p.first
		default:
			s := h.find(uint32(next >> 32))
			if s.bits > have {
				return to[:len(to)+n], false
			}
			out[n] = s.char
			n++
			bits = s.bits
		}
		next <<= bits & 63 // the mask shows the compiler that the shift is short
		have -= bits
	}
}
