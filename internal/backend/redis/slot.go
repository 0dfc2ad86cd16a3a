package redis

import (
	"bytes"
	"hash/maphash"
	"strconv"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// slotID identifies counters that one script can change: those in one slot of a cluster. A key that contains the time
// changes its slot with its window, so it has a separate ID, unless a part of it in braces fixes its slot. Behind an
// address of unknown servers each counter has a separate ID.
type slotID uint64

const changingSlot slotID = 1 << 63

var changingSlotSeed = maphash.MakeSeed()

func (s *Store) slotID(t *backend.Take) slotID {
	if !s.cluster {
		counter := t.Key
		if t.Limit.Algorithm == descriptor.Penalties {
			counter, _ = descriptor.CutPenaltyKey(t.Key)
		}
		return slotID(maphash.Bytes(changingSlotSeed, counter))
	}
	if s.opts.LyftKeys {
		if stem, ok := descriptor.CutLyftKey(t.Key); ok && len(hashTag(stem)) == len(stem) {
			return changingSlot | slotID(maphash.Bytes(changingSlotSeed, stem))
		}
	}
	if t.Limit.Algorithm == descriptor.Penalties {
		counter, _ := descriptor.CutPenaltyKey(t.Key)
		return slotID(slotOf(counter))
	}
	return slotID(slotOf(t.Key))
}

// hashTag returns the part of a key that determines its slot: the part between its first braces, or the whole key.
// Counters' keys have no braces, but an operator's prefix may.
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

// appendPenaltyKey appends the key in Redis for the key of a penalty. It is in the slot of the counter.
func appendPenaltyKey(dst, key []byte) []byte {
	counter, word := descriptor.CutPenaltyKey(key)
	return appendRecordKey(dst, counter, word)
}

// The keys of the reservations of a counter. Each is in the slot of the counter.
const (
	reservationsKey = "reservations"         // the list
	byIDKey         = "reservations:by_id"   // hash of a large list
	endsKey         = "reservations:by_time" // sorted set of a large list
)

// appendRecordKey appends the key of a kind for the counter under a key.
func appendRecordKey(dst, key []byte, kind string) []byte {
	tag := hashTag(key)
	dst = append(dst, '{')
	if whole := len(tag) == len(key); len(tag) > 0 && bytes.IndexByte(tag, '}') < 0 {
		dst = append(dst, tag...)
		if dst = append(append(dst, "}:"...), kind...); whole {
			return dst
		}
	} else { // these bytes cannot stand between braces, but others have the same slot
		dst = strconv.AppendUint(dst, uint64(slotTags()[slotOf(key)]), 10)
		dst = append(append(dst, "}:"...), kind...)
	}
	return append(append(dst, ':'), key...)
}

// slotTags returns a number for each slot whose digits have that slot.
var slotTags = sync.OnceValue(func() *[16384]uint32 {
	var tags [16384]uint32
	digits := make([]byte, 0, 10)
	for n, missing := uint32(1), len(tags); missing > 0; n++ {
		digits = strconv.AppendUint(digits[:0], uint64(n), 10)
		if slot := slotOf(digits); tags[slot] == 0 {
			tags[slot] = n
			missing--
		}
	}
	return &tags
})
