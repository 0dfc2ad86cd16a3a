package backend

import (
	"bytes"
	"encoding/binary"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// digitsSize is the length of a state whose digits are several numbers and which Redis keeps as one integer.
const digitsSize = 19

// isDigits reports whether a state is such an integer. Other states are numbers with colons between them.
func isDigits(seen []byte) bool {
	return len(seen) == digitsSize && bytes.IndexByte(seen, ':') < 0 && '1' <= seen[0] && seen[0] <= '7'
}

// decodePair reads a time and a count from one value. pair.lua explains the format.
func decodePair(seen []byte, _ *descriptor.Limit, now int64, tail []uint32) (State, []uint32) {
	if !isDigits(seen) {
		start, count, _ := bytes.Cut(seen, []byte{':'})
		return State{Start: number(start), Count: number(count)}, tail
	}
	cut := digitsSize - int(seen[0]-'0')
	return State{Start: nearest(number(seen[1:cut]), now, cut-1), Count: number(seen[cut:])}, tail
}

// decodeTail appends numbers of 32 bits to tail. It returns the new numbers, and tail with all of them.
func decodeTail(seen []byte, tail []uint32) (numbers, all []uint32) {
	from := len(tail)
	for i := 0; i+4 <= len(seen); i += 4 {
		tail = append(tail, binary.BigEndian.Uint32(seen[i:]))
	}
	return tail[from:len(tail):len(tail)], tail
}

// nearest is the number closest to near that ends with the digits of n.
func nearest(n, near int64, digits int) int64 {
	if digits >= 16 { // all digits are there
		return n
	}
	space := int64(1)
	for range digits {
		space *= 10
	}
	d := (n - near + space/2) % space
	if d < 0 {
		d += space
	}
	return near + d - space/2
}

func number(b []byte) int64 {
	n, _ := strconv.ParseInt(string(b), 10, 64)
	return n
}
