package descriptor

import (
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// edges is how a domain's nodes are reached from their parents: one hash table for the whole domain, with linear
// probing. A map per node, the rejected way, is as fast while one path is hot, but slower when requests are spread over
// a large tree: every level then waits for half a dozen reads from memory, one after the other. Here a level reads its
// slot and its record; and the slot already names the child, so that the next level's slot is on its way while the
// record is still being compared.
type edges struct {
	seed    maphash.Seed
	slots   []slot   // a power of two, at most three quarters of them in use
	records []byte   // what the slots are for: parent, key, place in list and length of the value in 4 bytes each, then the value
	names   []string // the keys in records
	list    []edge   // the same for people, and the wildcards

	ids map[string]uint32 // of names; only while the tree is built
}

// slot is a place in the table. One whose tag is 0 is free.
type slot struct {
	tag    uint32 // the upper half of the hash
	child  node   // where the edge leads; noNode if it only holds wildcards
	record uint32 // in edges.records
}

// edge is an exact value below a parent or, without a value, everything else below the parent that has the key.
type edge struct {
	key, value string
	parent     node
	wildcards  []wildcardEdge // in file order
}

type wildcardEdge struct {
	pattern wildcard
	value   string
	child   node
}

func newEdges() edges {
	return edges{seed: maphash.MakeSeed(), slots: make([]slot, 8), ids: make(map[string]uint32)}
}

const recordHead = 16

func (e *edges) hashKey(parent node, key string) uint64 {
	return mix(maphash.String(e.seed, key), uint64(parent))
}

func (e *edges) hashValue(keyed uint64, value string) uint64 {
	return mix(maphash.String(e.seed, value), keyed)
}

// mix makes one hash of two: the halves of their product depend on all bits of both.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd1b54a32d192ed03)
	return high ^ low
}

func tagOf(hash uint64) uint32 { return max(uint32(hash>>32), 1) }

func (e *edges) edge(s *slot) *edge {
	return &e.list[binary.LittleEndian.Uint32(e.records[s.record+8:])]
}

// find returns the slot of an edge, or nil.
func (e *edges) find(hash uint64, parent node, key, value string) *slot {
	tag := tagOf(hash)
	last := uint64(len(e.slots) - 1)
	for i := hash & last; ; i = (i + 1) & last {
		s := &e.slots[i]
		if s.tag == 0 {
			return nil
		}
		if s.tag != tag {
			continue
		}
		r := e.records[s.record:]
		size := binary.LittleEndian.Uint32(r[12:])
		if int(size) == len(value) && string(r[recordHead:recordHead+size]) == value &&
			node(binary.LittleEndian.Uint32(r)) == parent && e.names[binary.LittleEndian.Uint32(r[4:])] == key {
			return s
		}
	}
}

// put adds the edge from parent to child, or says that its place is taken.
func (e *edges) put(parent node, key, value string, child node) bool {
	h := e.hashKey(parent, key)
	if value != "" && !HasWildcard(value) {
		h = e.hashValue(h, value)
		if e.find(h, parent, key, value) != nil {
			return false
		}
		e.add(h, edge{key: key, value: value, parent: parent}, child)
		return true
	}

	s := e.find(h, parent, key, "")
	if s == nil {
		s = e.add(h, edge{key: key, parent: parent}, noNode)
	}
	if value == "" {
		if s.child != noNode {
			return false
		}
		s.child = child
		return true
	}
	x := e.edge(s)
	for i := range x.wildcards {
		if x.wildcards[i].value == value {
			return false
		}
	}
	x.wildcards = append(x.wildcards, wildcardEdge{compileWildcard(value), value, child})
	return true
}

// add places an edge that is not there yet.
func (e *edges) add(hash uint64, x edge, child node) *slot {
	if len(e.list) >= len(e.slots)/4*3 {
		e.grow()
	}
	id, seen := e.ids[x.key]
	if !seen {
		id = uint32(len(e.names))
		e.ids[x.key] = id
		e.names = append(e.names, x.key)
	}
	s := e.free(hash)
	*s = slot{tag: tagOf(hash), child: child, record: uint32(len(e.records))}
	for _, n := range [...]uint32{uint32(x.parent), id, uint32(len(e.list)), uint32(len(x.value))} {
		e.records = binary.LittleEndian.AppendUint32(e.records, n)
	}
	e.records = append(e.records, x.value...)
	e.list = append(e.list, x)
	return s
}

func (e *edges) grow() {
	old := e.slots
	e.slots = make([]slot, 2*len(old))
	for i := range old {
		s := &old[i]
		if s.tag == 0 {
			continue
		}
		x := e.edge(s)
		h := e.hashKey(x.parent, x.key)
		if x.value != "" {
			h = e.hashValue(h, x.value)
		}
		*e.free(h) = *s
	}
}

func (e *edges) free(hash uint64) *slot {
	last := uint64(len(e.slots) - 1)
	for i := hash & last; ; i = (i + 1) & last {
		if e.slots[i].tag == 0 {
			return &e.slots[i]
		}
	}
}
