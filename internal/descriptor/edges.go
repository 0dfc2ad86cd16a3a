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

// edges maps a domain's nodes to their children. It is one hash table for the whole domain, with linear probing. A
// lookup at a level reads one slot and one record. The slot contains the child, so the CPU can load the next level's
// slot while it still compares the record.
//
// One map per node is as fast if all requests take one path, but slower if requests are spread over a large tree: each
// level then waits for about six reads from memory, one after the other. One Go map with the key {parent, key, value}
// takes about 1.6 times as long with 100,000 rules, and twice as long for values that no rule names
// (BenchmarkEdgesBesideMap).
type edges struct {
	seed  maphash.Seed
	slots []slot // their number is a power of two; at most three quarters are in use
	// each slot's edge: parent, key, index in list and length of the value in 4 bytes each, then the value
	records []byte
	names   []string // the keys in records
	list    []edge   // the same edges for people, with everything that is not matched exactly

	starred map[node][]keyPattern // rules with a star in their key, by parent and in file order; nil without any
	most    int                   // number of bytes of a value that expressions see

	patterned bool // there are wildcards or expressions
	regexes   bool // there are expressions
	valued    bool // some edge has a value; otherwise values need not be hashed

	// Used only while the tree is built: the index of each key in names, and the known patterns and networks.
	ids   map[string]uint32
	taken map[takenPattern]struct{}
}

// slot is an entry of the table. It is free if its tag is 0.
type slot struct {
	tag    uint32 // the upper half of the hash
	child  node   // the edge's child; noNode if the edge has only patterns and networks
	record uint32 // offset in edges.records
}

// edge is one value of a key below a parent. An edge without a value is for all other values of the key.
type edge struct {
	key, value string
	parent     node
	exact      node // the child of the rule with exactly this value, or noNode
	listed     node // the child of the rule with this value in its list, or noNode
	literal    node // the child of the wildcard whose text equals this value, or noNode
	starred    bool // the key has a star: it is matched by edges.starred
	folded     bool // the value is in lower case, and in others.folded
	// for an edge without a value: how other values are matched; nil if only the rule without a value matches
	others *others
}

// others matches the values that no rule names.
type others struct {
	folded   *folded   // values whose case does not matter; nil without any
	networks *networks // nil without any
	patterns patterns  // wildcards and regular expressions
}

// folded finds values whose case does not matter. A value that a rule has exactly as it is sent comes first.
type folded struct {
	exact, listed map[string]node // key: value in lower case
	longest       int             // bytes of a value
}

func (f *folded) find(value string) node {
	if len(value) > f.longest {
		return noNode
	}
	value = Fold(value)
	if c, ok := f.exact[value]; ok {
		return c
	}
	if c, ok := f.listed[value]; ok {
		return c
	}
	return noNode
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

// mix combines two hashes into one: the halves of their product depend on all bits of both.
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
		if spec.FoldCase {
			return e.putFolded(parent, spec, child)
		}
		return e.putExact(parent, spec, child)
	case MatchValues:
		if spec.FoldCase {
			return e.putFolded(parent, spec, child)
		}
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

// putExact adds a value. It takes precedence over the same value in a list.
func (e *edges) putExact(parent node, spec *NodeSpec, child node) error {
	h := e.hashValue(e.hashKey(parent, spec.Key), spec.Value)
	s := e.find(h, parent, spec.Key, spec.Value)
	if s == nil {
		e.insert(h, edge{key: spec.Key, value: spec.Value, parent: parent, exact: child, listed: noNode, literal: noNode},
			child)
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

// putFolded adds a value, or each value of a list, whose case does not matter.
func (e *edges) putFolded(parent node, spec *NodeSpec, child node) error {
	x := e.edge(e.keyAlone(parent, spec.Key))
	if x.others == nil {
		x.others = &others{}
	}
	if x.others.folded == nil {
		x.others.folded = &folded{exact: make(map[string]node), listed: make(map[string]node)}
	}
	f := x.others.folded
	values, into, exact, listed := spec.Values, f.listed, noNode, child
	if spec.kind() == MatchExact {
		values, into, exact, listed = []string{spec.Value}, f.exact, child, noNode
	}
	for _, v := range values {
		if _, twice := into[v]; twice || v == "" || v != Fold(v) {
			return fmt.Errorf("key %q with value %q twice, empty, or in upper case", spec.Key, v)
		}
		into[v] = child
		f.longest = max(f.longest, len(v))
		e.list = append(e.list, edge{key: spec.Key, value: v, parent: parent, exact: exact, listed: listed, literal: noNode,
			folded: true})
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
		o.patterns.list = append(o.patterns.list, pattern{kind: kind, fold: spec.FoldCase,
			wildcard: compileWildcard(spec.Value), text: spec.Value, child: child})
		// A value whose text equals the wildcard matches this wildcard before all other patterns.
		h := e.hashValue(e.hashKey(parent, spec.Key), spec.Value)
		if s := e.find(h, parent, spec.Key, spec.Value); s != nil {
			e.edge(s).literal = child // a list contains this value
			break
		}
		e.insert(h, edge{key: spec.Key, value: spec.Value, parent: parent, exact: noNode, listed: noNode, literal: child},
			child)
	case MatchRegex:
		e.regexes = true
		o.patterns.list = append(o.patterns.list, pattern{kind: kind, fold: spec.FoldCase, text: spec.Value, child: child})
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
	e.list = append(e.list, edge{key: spec.Key, value: spec.Value, parent: parent, exact: noNode, listed: noNode,
		literal: child, starred: true})
	return nil
}

// keyAlone returns the slot for all values of a key that no rule names. It adds the slot if necessary.
func (e *edges) keyAlone(parent node, key string) *slot {
	h := e.hashKey(parent, key)
	if s := e.find(h, parent, key, ""); s != nil {
		return s
	}
	return e.insert(h, edge{key: key, parent: parent, exact: noNode, listed: noNode, literal: noNode}, noNode)
}

// finish prepares the edges for matching.
func (e *edges) finish() error {
	e.ids, e.taken = nil, nil
	e.list, e.records = slices.Clip(slices.Clone(e.list)), bytes.Clone(e.records)
	work := leastWork
	for i := range e.list {
		o := e.list[i].others
		if o == nil {
			continue
		}
		if err := o.patterns.finish(&work); err != nil {
			return err
		}
	}
	return nil
}

// insert adds an edge that is not in the table yet.
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
	e.valued = e.valued || x.value != ""
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
