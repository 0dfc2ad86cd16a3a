package descriptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"math/bits"
	"net/netip"
	"slices"
)

// edges leads from a domain's nodes to their children: one hash table for the whole domain, with linear probing. A level
// reads its slot and its record. The slot already names the child, so the next level's slot is on its way from memory
// while the record is still being compared.
//
// A map per node is as fast while one path is hot, but slower when requests are spread over a large tree: every level then
// waits for half a dozen reads from memory, one after the other. One Go map with the key {parent, key, value} takes about
// 1.6 times as long over 100,000 rules, and twice as long for values that no rule names: BenchmarkEdgesBesideMap.
type edges struct {
	seed    maphash.Seed
	slots   []slot   // a power of two, at most three quarters of them in use
	records []byte   // what the slots are for: parent, key, place in list and length of the value in 4 bytes each, then the value
	names   []string // the keys in records
	list    []edge   // the same for people, and what is matched otherwise than exactly

	starred map[node][]keyPattern // by parent: the rules with a star in their key, in file order; nil if there are none
	most    int                   // bytes of a value that expressions see

	patterned bool // there are wildcards or expressions

	// Only while the tree is built: the places of names, and the patterns and networks that there are.
	ids   map[string]uint32
	taken map[takenPattern]struct{}
}

// slot is a place in the table. One whose tag is 0 is free.
type slot struct {
	tag    uint32 // the upper half of the hash
	child  node   // where the edge leads; noNode if it only holds patterns and networks
	record uint32 // in edges.records
}

// edge is a value below a parent or, without a value, everything else below the parent that has the key.
type edge struct {
	key, value string
	parent     node
	exact      node    // where the rule with exactly this value leads, noNode if there is none
	listed     node    // where the rule with this value among its values leads, noNode if there is none
	literal    node    // where the wildcard leads that is written like this value, noNode if there is none
	starred    bool    // the key has a star: it is matched in edges.starred
	others     *others // without a value: how other values are matched; nil if the key alone is a rule
}

// others is how values that no rule names are matched.
type others struct {
	networks *networks // nil if there are none
	patterns patterns  // wildcards and regular expressions
}

// keyPattern is a rule with a star in its key. Its text is matched against an entry's text: key, underscore, value.
type keyPattern struct {
	wildcard wildcard
	text     string
	child    node
}

type takenPattern struct {
	parent node
	key    string
	kind   MatchKind
	text   string
}

func newEdges(patternBytes int) edges {
	return edges{
		seed: maphash.MakeSeed(), slots: make([]slot, 8), most: patternBytes,
		ids: make(map[string]uint32), taken: make(map[takenPattern]struct{}),
	}
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

// put adds the edges from parent to the child that a spec describes.
func (e *edges) put(parent node, spec *NodeSpec, child node) error {
	if HasWildcard(spec.Key) {
		return e.putStarred(parent, spec, child)
	}
	switch kind := spec.kind(); kind {
	case MatchExact:
		return e.putExact(parent, spec, child)
	case MatchValues:
		return e.putValues(parent, spec, child)
	case MatchWildcard, MatchRegex, MatchCIDR:
		return e.putPattern(parent, spec, kind, child)
	default:
		s := e.keyAlone(parent, spec.Key)
		if s.child != noNode {
			return fmt.Errorf("key %q without a value twice", spec.Key)
		}
		s.child = child
		return nil
	}
}

// putExact adds a value. It stands before the same value in a list.
func (e *edges) putExact(parent node, spec *NodeSpec, child node) error {
	h := e.hashValue(e.hashKey(parent, spec.Key), spec.Value)
	s := e.find(h, parent, spec.Key, spec.Value)
	if s == nil {
		e.insert(h, edge{key: spec.Key, value: spec.Value, parent: parent, exact: child, listed: noNode, literal: noNode}, child)
		return nil
	}
	x := e.edge(s)
	if x.exact != noNode {
		return fmt.Errorf("key %q with value %q twice", spec.Key, spec.Value)
	}
	x.exact, s.child = child, child
	return nil
}

// putValues adds each value of a list.
func (e *edges) putValues(parent node, spec *NodeSpec, child node) error {
	for _, value := range spec.Values {
		if value == "" {
			return fmt.Errorf("key %q with an empty value in a list", spec.Key)
		}
		h := e.hashValue(e.hashKey(parent, spec.Key), value)
		s := e.find(h, parent, spec.Key, value)
		if s == nil {
			e.insert(h, edge{key: spec.Key, value: value, parent: parent, exact: noNode, listed: child, literal: noNode}, child)
			continue
		}
		x := e.edge(s)
		if x.listed != noNode {
			return fmt.Errorf("key %q with value %q in two lists", spec.Key, value)
		}
		x.listed = child
		if x.exact == noNode {
			s.child = child
		}
	}
	return nil
}

func (e *edges) putPattern(parent node, spec *NodeSpec, kind MatchKind, child node) error {
	var prefix netip.Prefix
	this := takenPattern{parent, spec.Key, kind, spec.Value}
	if kind == MatchCIDR {
		var err error
		if prefix, err = ParseCIDR(spec.Value); err != nil {
			return err
		}
		this.text = prefix.String()
	}
	if _, twice := e.taken[this]; twice {
		return fmt.Errorf("key %q with %q twice", spec.Key, spec.Value)
	}
	e.taken[this] = struct{}{}
	e.patterned = e.patterned || kind != MatchCIDR
	x := e.edge(e.keyAlone(parent, spec.Key))
	if x.others == nil {
		x.others = &others{}
	}
	o := x.others
	switch kind {
	case MatchWildcard:
		o.patterns.list = append(o.patterns.list, pattern{kind: kind, wildcard: compileWildcard(spec.Value), text: spec.Value, child: child})
		// A value that is written like the wildcard is the rule's own: it comes before other patterns.
		h := e.hashValue(e.hashKey(parent, spec.Key), spec.Value)
		if s := e.find(h, parent, spec.Key, spec.Value); s != nil {
			e.edge(s).literal = child // a list has it
			break
		}
		e.insert(h, edge{key: spec.Key, value: spec.Value, parent: parent, exact: noNode, listed: noNode, literal: child}, child)
	case MatchRegex:
		o.patterns.list = append(o.patterns.list, pattern{kind: kind, text: spec.Value, child: child})
	default:
		if o.networks == nil {
			o.networks = &networks{}
		}
		o.networks.insert(prefix, child)
	}
	return nil
}

// putStarred adds a rule with a star in its key.
func (e *edges) putStarred(parent node, spec *NodeSpec, child node) error {
	if kind := spec.kind(); kind != MatchWildcard {
		return fmt.Errorf("key %q with a star: its value can only be a text", spec.Key)
	}
	text := spec.Level().Text()
	this := takenPattern{parent: parent, key: text, kind: MatchWildcard}
	if _, twice := e.taken[this]; twice {
		return fmt.Errorf("key %q with %q twice", spec.Key, spec.Value)
	}
	e.taken[this] = struct{}{}
	e.patterned = true
	if e.starred == nil {
		e.starred = make(map[node][]keyPattern)
	}
	e.starred[parent] = append(e.starred[parent], keyPattern{compileWildcard(text), text, child})
	e.list = append(e.list, edge{key: spec.Key, value: spec.Value, parent: parent, exact: noNode, listed: noNode, literal: child, starred: true})
	return nil
}

// keyAlone returns the slot for all values of a key that no rule names, and adds it if there is none yet.
func (e *edges) keyAlone(parent node, key string) *slot {
	h := e.hashKey(parent, key)
	if s := e.find(h, parent, key, ""); s != nil {
		return s
	}
	return e.insert(h, edge{key: key, parent: parent, exact: noNode, listed: noNode, literal: noNode}, noNode)
}

// finish makes ready for matching.
func (e *edges) finish() error {
	e.ids, e.taken = nil, nil
	e.list, e.records = slices.Clip(slices.Clone(e.list)), bytes.Clone(e.records)
	for i := range e.list {
		o := e.list[i].others
		if o == nil {
			continue
		}
		if err := o.patterns.finish(); err != nil {
			return err
		}
	}
	return nil
}

// insert places an edge that is not there yet.
func (e *edges) insert(hash uint64, x edge, child node) *slot {
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
