package memory

import (
	"bytes"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// loaded holds the counters of takes that are settled together, taken out of their tables. It is used again, so that
// this costs no allocation.
type loaded struct {
	order   []uint8          // the shards, in order, each once
	hashes  []uint64         // hash of each take's key
	records []record         // record of each take; nil for a penalty that is not active
	states  []*backend.State // state of each take; takes of one counter share one

	copies []backend.State
	first  index // the first take of each counter or missing penalty, by the tag of its key
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

// load copies the states of all counters. It returns false if a counter does not exist, unless it is a penalty: most
// customers have no active one. The shards are locked.
func (g *loaded) load(s *Store, takes []backend.Take) bool {
	if cap(g.copies) < len(takes) {
		g.copies = make([]backend.State, 0, len(takes))
	}
	g.first.reset(len(takes))
	for i := range takes {
		hash := g.hashes[i]
		table := &s.shards[hash%shardCount].table
		r := table.find(hash, takes[i].Key)
		if r == nil && !takes[i].Guards {
			return false
		}
		state := g.stateOf(takes, i, r)
		if state == nil {
			g.first.add(tag(hash), uint64(i))
			g.copies = append(g.copies, backend.State{})
			state = &g.copies[len(g.copies)-1]
			if r != nil {
				table.load(r, state)
			}
		}
		g.records, g.states = append(g.records, r), append(g.states, state)
	}
	return true
}

// stateOf returns the copy of the state of a take's counter, if an earlier take has made one. r is the counter, nil if
// it does not exist.
func (g *loaded) stateOf(takes []backend.Take, i int, r record) *backend.State {
	for from := tag(g.hashes[i]); ; {
		take, slot, ok := g.first.next(tag(g.hashes[i]), from)
		if !ok {
			return nil
		}
		switch first := g.records[take]; {
		case (r == nil) != (first == nil):
		case r != nil && &first[0] == &r[0], r == nil && bytes.Equal(takes[take].Key, takes[i].Key):
			return g.states[take]
		}
		from = slot + 1
	}
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
