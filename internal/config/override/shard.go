package override

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
)

// shard holds some of the overrides of a set. It is one piece of memory without pointers, because a lookup waits for
// memory more than for anything else: the parts of a shard share pages and cache lines, and the garbage collector does
// not visit them. It is never changed. The numbers are little-endian:
//
//	4 bytes: how many overrides there are
//	for each, 8 bytes: the hash of its identity
//	for each, 40 bytes: where its identity ends, and its Numbers
//	the identities, one after the other
type shard []byte

const (
	headSize = 4
	hashSize = 8
	itemSize = 40
)

// member is an override of a shard.
type member struct {
	hash     uint64
	identity []byte
	numbers  Numbers
}

// same reports whether two members are the same override.
func (m member) same(other member) bool {
	return m.hash == other.hash && bytes.Equal(m.identity, other.identity)
}

// sum is a hash of the override. Its high bits are mixed into the others, because sums are added.
func (m member) sum() uint64 {
	n := &m.numbers
	b := append(make([]byte, 0, 128), m.identity...)
	for _, w := range [...]uint64{uint64(n.Kind), n.Requests, n.Burst, uint64(n.NotBefore), uint64(n.ExpiresAt)} {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	h := fnv.New64a()
	_, _ = h.Write(b) // it never fails
	sum := h.Sum64()
	return (sum ^ sum>>32) * 0x9e3779b97f4a7c15
}

// newShard returns a shard with these members, of which no two are the same.
func newShard(members []member) shard {
	if len(members) == 0 {
		return nil
	}
	size := headSize + len(members)*(hashSize+itemSize)
	for i := range members {
		size += len(members[i].identity)
	}
	sh := binary.LittleEndian.AppendUint32(make(shard, 0, size), uint32(len(members)))
	for i := range members {
		sh = binary.LittleEndian.AppendUint64(sh, members[i].hash)
	}
	end := 0
	for i := range members {
		m := &members[i]
		end += len(m.identity)
		sh = binary.LittleEndian.AppendUint32(sh, uint32(end))
		sh = binary.LittleEndian.AppendUint32(sh, uint32(m.numbers.Kind))
		sh = binary.LittleEndian.AppendUint64(sh, m.numbers.Requests)
		sh = binary.LittleEndian.AppendUint64(sh, m.numbers.Burst)
		sh = binary.LittleEndian.AppendUint64(sh, uint64(m.numbers.NotBefore))
		sh = binary.LittleEndian.AppendUint64(sh, uint64(m.numbers.ExpiresAt))
	}
	for i := range members {
		sh = append(sh, members[i].identity...)
	}
	return sh
}

func (sh shard) len() int {
	if len(sh) == 0 {
		return 0
	}
	return int(binary.LittleEndian.Uint32(sh))
}

// members returns the overrides in the shard. The identities are valid as long as the shard.
func (sh shard) members() []member {
	all := make([]member, sh.len(), sh.len()+1)
	for i := range all {
		all[i] = member{sh.hash(i), sh.identity(i), sh.numbers(i)}
	}
	return all
}

// find returns the index of an identity, or -1.
func (sh shard) find(h uint64, identity []byte) int {
	if len(sh) == 0 {
		return -1
	}
	for i, hashes := 0, sh[headSize:headSize+sh.len()*hashSize]; len(hashes) >= hashSize; i, hashes = i+1,
		hashes[hashSize:] {
		if binary.LittleEndian.Uint64(hashes) == h && bytes.Equal(sh.identity(i), identity) {
			return i
		}
	}
	return -1
}

func (sh shard) hash(i int) uint64 { return binary.LittleEndian.Uint64(sh[headSize+i*hashSize:]) }

// item returns the item of an override.
func (sh shard) item(i int) []byte {
	return sh[headSize+sh.len()*hashSize+i*itemSize:][:itemSize]
}

func (sh shard) identity(i int) []byte {
	start := uint32(0)
	if i > 0 {
		start = binary.LittleEndian.Uint32(sh.item(i - 1))
	}
	identities := sh[headSize+sh.len()*(hashSize+itemSize):]
	return identities[start:binary.LittleEndian.Uint32(sh.item(i))]
}

func (sh shard) numbers(i int) Numbers {
	b := sh.item(i)
	return Numbers{
		Kind:      Kind(b[4]),
		Requests:  binary.LittleEndian.Uint64(b[8:]),
		Burst:     binary.LittleEndian.Uint64(b[16:]),
		NotBefore: int64(binary.LittleEndian.Uint64(b[24:])),
		ExpiresAt: int64(binary.LittleEndian.Uint64(b[32:])),
	}
}
