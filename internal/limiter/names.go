package limiter

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// names is a set of series by name. Requests can add only a bounded number of them. A lookup of a known name waits only for
// new names in the same shard.
type names struct {
	max    int64
	series atomic.Int64 // number of series
	seed   maphash.Seed
	shards [16]namesShard
	other  *series // counts for names for which there is no room
}

type namesShard struct {
	mu     sync.RWMutex
	byName map[string]*series
}

// maxNameLength is the maximum length in bytes of a name from a request. A bound on the number of names alone would not
// bound their memory.
const maxNameLength = 512

const overflow = "overflow"

// newNames returns a set for that many names. The series for others is in the set too, so that a caller or rule with its name does not
// create a second one.
func newNames(most int, other string) *names {
	n := &names{max: int64(most), seed: maphash.MakeSeed()}
	for i := range n.shards {
		n.shards[i].byName = make(map[string]*series)
	}
	n.other = n.addSeries(other, len(overflow), 1)
	n.series.Store(0)
	return n
}

func (n *names) shard(name []byte) *namesShard {
	return &n.shards[maphash.Bytes(n.seed, name)%uint64(len(n.shards))]
}

// lookUp returns the series of a name, or nil if there is none.
func (n *names) lookUp(name []byte) *series {
	sh := n.shard(name)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.byName[string(name)]
}

// find returns the series for a name from a request. The domain is the first domainLen bytes of the name. If the name is
// new, find adds a series if there is room.
func (n *names) find(name []byte, domainLen int) *series {
	s := n.lookUp(name)
	if s == nil && len(name) <= maxNameLength && n.series.Load() < n.max { // else without the write lock that others wait for
		s = n.addSeries(string(name), domainLen, n.max)
	}
	if s == nil {
		return n.other
	}
	return s
}

// addSeries returns the series of a name. If the name is new, it adds a series if there are fewer than most, else it returns
// nil.
func (n *names) addSeries(name string, domainLen int, most int64) *series {
	sh := n.shard([]byte(name))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.byName[name]; s != nil {
		return s
	}
	if n.series.Add(1) > most {
		n.series.Add(-1)
		return nil
	}
	s := &series{Domain: name[:domainLen], Rule: name[min(domainLen+1, len(name)):], below: len(name) > domainLen}
	sh.byName[name] = s
	return s
}

// all returns every series, in no order. The caller reads them without a lock.
func (n *names) all() []*series {
	all := make([]*series, 0, n.series.Load()+1)
	for i := range n.shards {
		sh := &n.shards[i]
		sh.mu.RLock()
		for _, s := range sh.byName {
			all = append(all, s)
		}
		sh.mu.RUnlock()
	}
	return all
}
