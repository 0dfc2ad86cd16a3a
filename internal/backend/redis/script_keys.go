package redis

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"slices"
)

// manyKeys is the number of keys above which a key is looked up by its hash.
const manyKeys = 8

// keySeed prevents clients from choosing keys with equal hashes.
var keySeed = maphash.MakeSeed()

// scriptKeys are the distinct keys of a call.
type scriptKeys struct {
	keyText  []byte   // all keys, one after the other
	keyEnds  []int    // end of each key in keyText
	keyTable []uint16 // index, plus one, of each key by its hash, if there are many; 0 for a free place
	key      []byte   // scratch for a key that is completed here
	keys     []string // keys of the command
}

// begin clears all keys.
func (c *scriptKeys) begin() {
	c.keyText, c.keyEnds, c.keyTable = c.keyText[:0], c.keyEnds[:0], c.keyTable[:0]
}

// add adds a new key.
func (c *scriptKeys) add(key []byte) {
	c.keyText = append(c.keyText, key...)
	c.keyEnds = append(c.keyEnds, len(c.keyText))
	if n := len(c.keyEnds); n > manyKeys {
		c.index(key, n-1)
	}
}

// keyAt returns a distinct key.
func (c *scriptKeys) keyAt(k int) []byte {
	start := 0
	if k > 0 {
		start = c.keyEnds[k-1]
	}
	return c.keyText[start:c.keyEnds[k]]
}

// find returns the index of a key, or -1.
func (c *scriptKeys) find(key []byte) int {
	if len(c.keyTable) == 0 {
		for k := range c.keyEnds {
			if bytes.Equal(c.keyAt(k), key) {
				return k
			}
		}
		return -1
	}
	last := uint64(len(c.keyTable) - 1)
	for at := maphash.Bytes(keySeed, key) & last; c.keyTable[at] > 0; at = (at + 1) & last {
		if k := int(c.keyTable[at]) - 1; bytes.Equal(c.keyAt(k), key) {
			return k
		}
	}
	return -1
}

// index enters a new key, the k-th, into the table. At least half of the table stays free.
func (c *scriptKeys) index(key []byte, k int) {
	if n := 2 * len(c.keyEnds); n > len(c.keyTable) {
		size := 1 << bits.Len(uint(2*n-1))
		c.keyTable = slices.Grow(c.keyTable[:0], size)[:size]
		clear(c.keyTable)
		for i := range k {
			c.enter(c.keyAt(i), i)
		}
	}
	c.enter(key, k)
}

func (c *scriptKeys) enter(key []byte, k int) {
	last := uint64(len(c.keyTable) - 1)
	at := maphash.Bytes(keySeed, key) & last
	for c.keyTable[at] > 0 {
		at = (at + 1) & last
	}
	c.keyTable[at] = uint16(k + 1)
}
