package metric

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// Names holds a value, such as the hits of a rule, for each of a bounded number of names. A lookup of a known name
// waits only for new names in the same shard.
type Names[V any] struct {
	Other *V // value for names without a place of their own

	max    int64
	count  atomic.Int64
	bytes  atomic.Int64 // length of all names from requests
	seed   maphash.Seed
	shards [16]namesShard[V]
}

type namesShard[V any] struct {
	mu     sync.RWMutex
	byName map[string]*V
}

// Bounds of names from requests, in bytes: the longest name, and the average length if the set is full. A bound only on
// the number of names would bound neither their memory nor the cost of a scrape.
const (
	maxNameLength = 512
	bytesForName  = 128
)

// NewNames returns a set for this many names. It contains the value for all others under nameOfOthers, so that a
// request with that name does not create a second value.
func NewNames[V any](most int, nameOfOthers string, others *V) *Names[V] {
	n := &Names[V]{Other: others, max: int64(most), seed: maphash.MakeSeed()}
	n.shard([]byte(nameOfOthers)).set(nameOfOthers, others)
	return n
}

// set adds a name. The lock must be held. Most sets have few names, so a shard's map is created for its first one.
func (sh *namesShard[V]) set(name string, v *V) {
	if sh.byName == nil {
		sh.byName = make(map[string]*V)
	}
	sh.byName[name] = v
}

func (n *Names[V]) shard(name []byte) *namesShard[V] {
	return &n.shards[maphash.Bytes(n.seed, name)%uint64(len(n.shards))]
}

func (n *Names[V]) lookUp(name []byte) *V {
	sh := n.shard(name)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.byName[string(name)]
}

// Find returns the value for a name from a request, whose bytes it does not keep. If the name is new and not too long,
// and there is room, create returns its value.
func (n *Names[V]) Find(name []byte, create func(name string) *V) *V {
	v := n.lookUp(name)
	// Checked first, to avoid the write lock that others wait for.
	if v == nil && len(name) <= maxNameLength && n.count.Load() < n.max &&
		n.bytes.Load()+int64(len(name)) <= max(bytesForName*n.max, maxNameLength) {
		v = n.add(string(name), n.max, func(name string) *V {
			n.bytes.Add(int64(len(name)))
			return create(name)
		})
	}
	if v == nil {
		return n.Other
	}
	return v
}

// Add returns the value for a name from an operator, of any length, or nil without room for it. It has room for `times`
// as many names as NewNames: with 2, names from requests cannot use all of it.
func (n *Names[V]) Add(name string, times int, create func(name string) *V) *V {
	if v := n.lookUp([]byte(name)); v != nil {
		return v
	}
	return n.add(name, int64(times)*n.max, create)
}

func (n *Names[V]) add(name string, most int64, create func(name string) *V) *V {
	sh := n.shard([]byte(name))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if v := sh.byName[name]; v != nil {
		return v
	}
	if n.count.Add(1) > most {
		n.count.Add(-1)
		return nil
	}
	v := create(name)
	sh.set(name, v)
	return v
}

// Count returns the number of names.
func (n *Names[V]) Count() int64 { return n.count.Load() }

// All returns every value, in random order. The values are read without a lock.
func (n *Names[V]) All() []*V {
	all := make([]*V, 0, n.count.Load()+1)
	for i := range n.shards {
		sh := &n.shards[i]
		sh.mu.RLock()
		for _, v := range sh.byName {
			all = append(all, v)
		}
		sh.mu.RUnlock()
	}
	return all
}
