package redis

import (
	"bytes"
	"hash/maphash"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// place says which counters of a cluster can be changed as one: those of a slot. A key with the time in it is in another
// slot each time, and alone, unless a part of it in braces keeps it in its slot.
type place uint64

const moving place = 1 << 63

var movingSeed = maphash.MakeSeed()

func (s *Store) place(t *backend.Take) place {
	if s.opts.LyftKeys {
		if stem, ok := descriptor.CutLyftKey(t.Key); ok && len(slotted(stem)) == len(stem) {
			return moving | place(maphash.Bytes(movingSeed, stem))
		}
	}
	return place(slotOf(t.Key))
}

// slotted is what of a key says its slot: what stands between its first braces, or all of it. Counters' keys have no
// braces of their own, but an operator's prefix may.
func slotted(key []byte) []byte {
	if open := bytes.IndexByte(key, '{'); open >= 0 {
		if length := bytes.IndexByte(key[open+1:], '}'); length > 0 {
			return key[open+1 : open+1+length]
		}
	}
	return key
}

// slotOf is the slot of a cluster that a key belongs to: CRC-16/XMODEM of it, modulo 16384.
func slotOf(key []byte) uint16 {
	key = slotted(key)
	crc := uint16(0)
	for _, b := range key {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^b]
	}
	return crc % 16384
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		table[i] = crc
	}
	return table
}()
