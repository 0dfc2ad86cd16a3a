package memory

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// takeNew settles a take whose counter does not exist: in a new counter if its rule may have one, otherwise in a shared
// counter. It returns false if there is neither. The shard of the key is locked.
func (s *Store) takeNew(at backend.Times, hash uint64, takes []backend.Take, outcomes []backend.Outcome) bool {
	t := &takes[0]
	s.shares.mu.RLock()
	defer s.shares.mu.RUnlock()
	share, _ := s.shareOf(t.Rule)
	sh := &s.shards[hash%shardCount]
	c := &sh.work

	switch {
	case t.Reservation != nil:
		return s.settleNew(at, hash, share, takes, outcomes)
	case t.Hits == 0:
		c.state = s.inherited(share, hash, t.Rule, t.Limit, at)
		outcomes[0] = backend.Peek(t, &c.state, at.Of(t.Limit))
		return true
	case s.claimRoom(share):
		c.state = s.inherited(share, hash, t.Rule, t.Limit, at)
		states := [1]*backend.State{&c.state}
		backend.Settle(takes, states[:], outcomes, at)
		if c.state.Unused() || !counted(t, &outcomes[0]) {
			s.giveRoom(share)
			return true
		}
		c.expires = expires(t.Limit, &c.state, at)
		sh.table.add(hash, t.Key, share.number, c)
		return true
	case t.Hits < 0:
		c.state = s.inherited(share, hash, t.Rule, t.Limit, at)
		s.dropRefund(&c.state, t, &outcomes[0], at)
		return true
	}
	r := s.rowOf(share, t)
	if r == nil {
		return false
	}
	c, stripe := r.cell(hash)
	limit := backend.SharedLimit(t.Limit)
	inCell := [1]backend.Take{*t}
	inCell[0].Limit = limit
	s.shares.cells[stripe].Lock()
	defer s.shares.cells[stripe].Unlock()
	states := [1]*backend.State{&c.state}
	backend.Settle(inCell[:], states[:], outcomes, at)
	c.expires = expires(limit, &c.state, at)
	share.domain.taken.Add(1)
	return true
}

// expires is when a state that was settled at a time is equivalent to an unused one, as an elapsed time.
func expires(l *descriptor.Limit, state *backend.State, at backend.Times) int64 {
	return at.ToElapsed(l, backend.Expires(l, state))
}

// counted reports whether a take changed the state. If a denied hit replaces an older one in a full log, the number in
// use stays the same, but the log has changed.
func counted(t *backend.Take, o *backend.Outcome) bool {
	return o.Used != o.Before || t.CountDenied && !o.Allowed
}

// dropRefund answers a refund whose hits were counted in a shared counter, from a copy of its state. The hits stay
// there, because the refund could give back hits of another customer.
func (s *Store) dropRefund(state *backend.State, t *backend.Take, o *backend.Outcome, at backend.Times) {
	read := *t
	read.Hits = 0
	*o = backend.Peek(&read, state, at.Of(t.Limit))
	o.Allowed, o.RetryAfter = true, 0
}

// takeGroup settles several takes as one. It locks all their shards in ascending order, and then all shared counters,
// so two requests cannot wait for each other.
func (s *Store) takeGroup(at backend.Times, takes []backend.Take, outcomes []backend.Outcome) bool {
	g := loadedPool.Get().(*loaded)
	defer g.release()
	for i := range takes {
		hash := s.hash(takes[i].Key)
		g.hashes, g.order = append(g.hashes, hash), append(g.order, uint8(hash%shardCount))
	}
	slices.Sort(g.order)
	g.order = slices.Compact(g.order)
	for _, i := range g.order {
		s.shards[i].mu.Lock()
	}
	defer func() {
		for _, i := range g.order {
			s.shards[i].mu.Unlock()
		}
	}()

	if !g.load(s, takes) {
		missing := group{store: s, at: at, takes: slices.Clone(takes), hashes: g.hashes}
		return missing.settle(outcomes)
	}
	if !slices.ContainsFunc(takes, concerned) {
		backend.Settle(takes, g.states, outcomes, at)
	} else if !s.settleReservations(at, takes, g.states, g.places(), outcomes) {
		return false
	}
	for i, r := range g.records {
		if r != nil {
			s.shards[g.hashes[i]%shardCount].table.store(r, g.states[i],
				s.keptUntil(g.states[i], r.share(), takes[i].Limit, &outcomes[i], at))
		}
	}
	for i, r := range g.records { // last: records are valid until one is added
		if r == nil && !g.states[i].Unused() && !s.addPenalty(at, g.hashes[i], &takes[i], g.states[i]) {
			outcomes[i] = backend.Outcome{Allowed: true}
		}
	}
	return true
}
