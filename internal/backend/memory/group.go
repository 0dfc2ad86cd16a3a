package memory

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// group holds takes that are settled as one, when some of them need new or shared counters. All their shards are
// locked.
type group struct {
	store *Store
	at    backend.Times
	takes []backend.Take // takes in shared counters have the limits of these counters

	hashes  []uint64 // hash of each take's key
	members []member // where each take is counted
	stripes []uint8  // locks of the shared counters, in order

	// Results of earlier takes. They keep the cost of a group from growing with the square of its size, during which no
	// other take can use the shards.
	keys   map[uint64]groupKey // key: hash of a take's key, or the next free number if two keys have the same hash
	merged map[sharedCell]int  // index of the take that others are merged with
}

// groupKey is the state of one counter's key while a group is decided. Its takes may have different limits, costs and
// rules, but the rules have the same share.
type groupKey struct {
	take   int  // the first of them
	adder  int  // the one that has added a counter, if added
	added  bool // one of them has added a counter
	shared bool // one of them is in a shared counter
}

// sharedCell is a shared counter with the takes of one vote.
type sharedCell struct {
	counter *counter
	vote    backend.Vote
}

// member is where one take is counted.
type member struct {
	counter *counter // a shared one, a new one, or a copy
	record  record   // held: original of the copy in counter
	share   *share
	kind    memberKind
	into    int // index of the take that this one is merged with, or its own index
}

type memberKind uint8

const (
	held    memberKind = iota // an existing counter
	added                     // a new counter
	again                     // a new counter that an earlier take has added
	looked                    // a copy: nothing is written, except a new penalty
	dropped                   // no counter: the refund is dropped
	shared                    // a shared counter, because the store is full
	full                      // nowhere, because the store is full
)

func (g *group) settle(outcomes []backend.Outcome) bool {
	s := g.store
	s.shares.mu.RLock()
	defer s.shares.mu.RUnlock()
	g.members, g.keys = make([]member, len(g.takes)), make(map[uint64]groupKey, len(g.takes))
	for again := true; again; {
		again = false
		for i := range g.takes {
			var added bool
			g.members[i].share, added = s.shareOf(g.takes[i].Rule)
			again = again || added
		}
	}
	for i := range g.takes {
		if !g.find(i) {
			g.members = g.members[:i]
			g.finish()
			return false
		}
	}
	slices.Sort(g.stripes)
	g.stripes = slices.Compact(g.stripes)
	for _, stripe := range g.stripes {
		s.shares.cells[stripe].Lock()
	}
	settled := g.run(outcomes)
	for _, stripe := range g.stripes {
		s.shares.cells[stripe].Unlock()
	}
	for i := range g.takes {
		if m := &g.members[i]; settled && m.kind == dropped {
			t := &g.takes[i]
			state := s.inherited(m.share, g.hashes[i], t.Rule, t.Limit, g.at)
			s.dropRefund(&state, t, &outcomes[i], g.at)
		}
	}
	g.finish()
	return settled
}

// find finds the counter of a take, or makes one. It returns false if the store is full.
func (g *group) find(i int) bool {
	t, m, hash := &g.takes[i], &g.members[i], g.hashes[i]
	m.into = i
	at, key, known := g.key(t.Key, hash)
	if known && g.earlier(i, &key) {
		return true
	}
	if !known {
		key.take = i
		if g.stored(i) {
			g.keys[at] = key
			return true
		}
	}
	switch m.kind = g.kindOfNew(i, &key); m.kind {
	case full:
		return false
	case dropped:
		m.counter = new(counter)
		return true
	case shared:
		key.shared = true
		g.keys[at] = key
		return g.share(i, hash)
	case added:
		key.adder, key.added = i, true
	}
	g.keys[at] = key
	m.counter = &counter{state: g.store.inherited(m.share, hash, t.Rule, t.Limit, g.at)}
	return true
}

// earlier uses the counter of an earlier take with the same key. It returns false if that take has no counter for this
// one.
func (g *group) earlier(i int, key *groupKey) bool {
	t, m, first := &g.takes[i], &g.members[i], &g.members[key.take]
	switch {
	case first.kind == held:
		m.counter, m.record = first.counter, first.record
	case key.added:
		m.counter, m.kind = g.members[key.adder].counter, again
	case t.Reservation != nil:
		return false
	case t.Guards:
		m.counter, m.kind = first.counter, first.kind
	case t.Hits == 0:
		m.counter, m.kind, t.Limit = first.counter, first.kind, g.takes[key.take].Limit
	default:
		return false
	}
	return true
}

// stored uses the counter in the store, if there is one.
func (g *group) stored(i int) bool {
	m, hash := &g.members[i], g.hashes[i]
	table := &g.store.shards[hash%shardCount].table
	if m.record = table.find(hash, g.takes[i].Key); m.record == nil {
		return false
	}
	m.counter = new(counter)
	table.load(m.record, &m.counter.state)
	return true
}

// kindOfNew decides where a take without a counter is counted: in a new counter if there is room. If an earlier take
// found no room for the key, this one does not look for room again.
func (g *group) kindOfNew(i int, key *groupKey) memberKind {
	t := &g.takes[i]
	switch {
	case t.Hits == 0 && t.Reservation == nil:
		return looked
	case !key.shared && g.store.claimRoom(g.members[i].share):
		return added
	case t.Reservation == nil && t.Hits < 0:
		return dropped
	case t.Reservation == nil:
		return shared
	case needsCounter(t):
		return full
	default:
		return looked
	}
}

// key returns the result of earlier takes for a key, and its index in keys. known is false without such a take.
func (g *group) key(text []byte, hash uint64) (at uint64, key groupKey, known bool) {
	for at = hash; ; at++ {
		key, known = g.keys[at]
		if !known || string(g.takes[key.take].Key) == string(text) {
			return at, key, known
		}
	}
}

// share finds a shared counter for a take. If another take of the group already has that counter, the two are merged
// into one take with the hits of both: each alone may fit when both do not, and then neither may be counted.
func (g *group) share(i int, hash uint64) bool {
	t, m := &g.takes[i], &g.members[i]
	r := g.store.rowOf(m.share, t)
	if r == nil {
		return false
	}
	var stripe uint8
	m.counter, stripe = r.cell(hash)
	m.kind = shared
	g.stripes = append(g.stripes, stripe)
	t.Limit = backend.SharedLimit(t.Limit)
	cell := sharedCell{m.counter, t.Vote}
	j, found := g.merged[cell]
	if !found {
		if g.merged == nil {
			g.merged = make(map[sharedCell]int)
		}
		g.merged[cell] = i
		return true
	}
	first := &g.takes[j]
	m.into = j
	first.Hits = min(first.Hits+t.Hits, backend.MaxHits)
	first.CountDenied = first.CountDenied || t.CountDenied
	if t.Limit.Capacity() < first.Limit.Capacity() {
		first.Limit = t.Limit
	}
	return true
}

// run settles the takes after all their counters were found and locked. It returns false if the store is full.
func (g *group) run(outcomes []backend.Outcome) bool {
	s := g.store
	places := make([]place, 0, len(g.takes))
	takes, states, index := make([]backend.Take, 0, len(g.takes)), make([]*backend.State, 0, len(g.takes)),
		make([]int, len(g.takes))
	for i := range g.takes {
		m := &g.members[i]
		if m.into != i {
			index[i] = index[m.into]
			continue
		}
		index[i] = len(takes)
		takes, states = append(takes, g.takes[i]), append(states, &m.counter.state)
		if m.kind == dropped {
			takes[index[i]].Hits = 0
		}
		if t := &takes[index[i]]; t.Guards && (i+1 == len(g.takes) || g.members[i+1].kind == shared) {
			t.Guards = false // hits of other customers must not start a penalty for this one
		}
		at := place{hash: g.hashes[i], share: m.share.number}
		if m.kind == held {
			at.counter, at.share = m.record, m.record.share()
		}
		places = append(places, at)
	}
	settled := make([]backend.Outcome, len(takes))
	if !slices.ContainsFunc(takes, concerned) {
		backend.Settle(takes, states, settled, g.at)
	} else if !s.settleReservations(g.at, takes, states, places, settled) {
		return false
	}
	for i := range g.takes {
		t, m := &g.takes[i], &g.members[i]
		outcomes[i] = settled[index[i]]
		switch m.kind {
		case held:
			state := &m.counter.state
			s.shards[g.hashes[i]%shardCount].table.store(m.record, state,
				s.keptUntil(state, m.record.share(), t.Limit, &outcomes[i], g.at))
		case added, again:
			if t.Reservation != nil || counted(t, &outcomes[i]) {
				m.counter.expires = expires(t.Limit, &m.counter.state, g.at)
			}
		case shared:
			m.counter.expires = expires(t.Limit, &m.counter.state, g.at)
			m.share.domain.taken.Add(1)
		}
	}
	for i := range g.takes { // last: records are valid until one is added
		t, m := &g.takes[i], &g.members[i]
		if m.kind == looked && t.Guards && !outcomes[i].Allowed &&
			!s.keepPenalty(g.at, g.hashes[i], t, &m.counter.state, m.share) {
			outcomes[i] = backend.Outcome{Allowed: true}
		}
	}
	return true
}

// finish adds the new counters to the store, except those that are still unused.
func (g *group) finish() {
	for i := range g.members {
		m := &g.members[i]
		switch {
		case m.kind != added:
		case m.counter.expires == 0 || m.counter.state.Unused():
			g.store.giveRoom(m.share)
		default:
			hash := g.hashes[i]
			g.store.shards[hash%shardCount].table.add(hash, g.takes[i].Key, m.share.number, m.counter)
		}
	}
}
