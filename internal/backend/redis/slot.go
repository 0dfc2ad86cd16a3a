package redis

import (
	"bytes"
	"hash/maphash"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// slotID identifies a slot of a cluster: one script can change only counters of one slot. A key that contains the time
// changes its slot with its window, so it has an ID of its own, unless a part of it in braces fixes its slot.
type slotID uint64

const changingSlot slotID = 1 << 63

var changingSlotSeed = maphash.MakeSeed()

func (s *Store) slotID(t *backend.Take) slotID {
	if s.opts.LyftKeys {
		if stem, ok := descriptor.CutLyftKey(t.Key); ok && len(hashTag(stem)) == len(stem) {
			return changingSlot | slotID(maphash.Bytes(changingSlotSeed, stem))
		}
	}
	return slotID(slotOf(t.Key))
}

// hashTag returns the part of a key that determines its slot: the part between its first braces, or the whole key. Counters'
// keys have no braces, but an operator's prefix may.
func hashTag(key []byte) []byte {
	if open := bytes.IndexByte(key, '{'); open >= 0 {
		if length := bytes.IndexByte(key[open+1:], '}'); length > 0 {
			return key[open+1 : open+1+length]
		}
	}
	return key
}

// slotOf returns the slot of a key in a cluster: its CRC-16/XMODEM, modulo 16384.
func slotOf(key []byte) uint16 {
	key = hashTag(key)
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
