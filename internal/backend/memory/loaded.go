package memory

import (
	"bytes"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// loaded holds the counters of takes that are settled together, taken out of their tables. It is used again, so that this
// costs no allocation.
type loaded struct {
	order   []uint8          // the shards, in order, each once
	hashes  []uint64         // by take
	records []record         // by take; nil: no penalty is in force
	states  []*backend.State // by take; takes of one counter share one

	copies []backend.State
	first  index // the first take of each counter, by the tag of its key
}

var loadedPool = sync.Pool{New: func() any { return new(loaded) }}

// mostPooled is the number of takes above which the memory for them is not kept.
const mostPooled = 256

func (g *loaded) release() {
	if cap(g.states) > mostPooled {
		return
	}
	clear(g.records)
	clear(g.states)
	clear(g.copies)
	g.order, g.hashes, g.records, g.states, g.copies = g.order[:0], g.hashes[:0], g.records[:0], g.states[:0], g.copies[:0]
	loadedPool.Put(g)
}

// load copies the states of all counters. It returns false if one does not exist, unless it is a penalty: most callers have none. The
// shards are locked.
func (g *loaded) load(s *Store, takes []backend.Take) bool {
	if cap(g.copies) < len(takes) {
		g.copies = make([]backend.State, 0, len(takes))
	}
	g.first.reset(len(takes))
	for i := range takes {
		hash := g.hashes[i]
		table := &s.shards[hash%shardCount].table
		r := table.find(hash, takes[i].Key)
		if r == nil {
			if !takes[i].Guards {
				return false
			}
			g.records, g.states = append(g.records, nil), append(g.states, g.stateOfNone(takes, i))
			continue
		}
		state := g.stateOf(r, hash)
		if state == nil {
			g.first.add(tag(hash), uint64(i))
			g.copies = append(g.copies, backend.State{})
			state = &g.copies[len(g.copies)-1]
			table.load(r, state)
		}
		g.records, g.states = append(g.records, r), append(g.states, state)
	}
	return true
}

// stateOf returns the copy of a counter's state, if there is one.
func (g *loaded) stateOf(r record, hash uint64) *backend.State {
	for from := tag(hash); ; {
		take, slot, ok := g.first.next(tag(hash), from)
		if !ok {
			return nil
		}
		if &g.records[take][0] == &r[0] {
			return g.states[take]
		}
		from = slot + 1
	}
}

// stateOfNone returns the state of a penalty that does not exist, which an earlier take may have asked for too.
func (g *loaded) stateOfNone(takes []backend.Take, i int) *backend.State {
	for j, r := range g.records {
		if r == nil && g.hashes[j] == g.hashes[i] && bytes.Equal(takes[j].Key, takes[i].Key) {
			return g.states[j]
		}
	}
	g.copies = append(g.copies, backend.State{})
	return &g.copies[len(g.copies)-1]
}

// places returns where the counters of the takes are.
func (g *loaded) places() []place {
	places := make([]place, len(g.records))
	for i, r := range g.records {
		if r == nil {
			places[i] = place{hash: g.hashes[i]} // a penalty has no reservations
			continue
		}
		places[i] = place{g.hashes[i], r, r.share()}
	}
	return places
}
