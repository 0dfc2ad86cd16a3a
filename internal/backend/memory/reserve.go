package memory

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A reservation is kept with its counter, and uses the room of one counter: both count for the share of their rule, so
// the number of reservations is bounded too. The counter must not be shared: its hits could not be given back to one of
// several customers.

// endsPerCall is the number of expired or old reservations that one call handles.
const endsPerCall = 8

// concernsReservations reports whether a take has to look at the reservations of its counter: it is an operation on a
// reservation, or it may pass because reservations have expired.
func concernsReservations(t *backend.Take) bool {
	return t.Reservation != nil || t.Limit.Reservations != nil && t.Limit.Reservations.Release
}

func concerned(t backend.Take) bool { return concernsReservations(&t) }

// needsCounter reports whether an operation on a reservation may add hits to a counter that does not exist.
func needsCounter(t *backend.Take) bool { return t.Reservation.Op == backend.OpReserve || t.Hits > 0 }

// place is where the counter of a take is.
type place struct {
	hash    uint64
	counter record // nil if it is new
	share   uint32
}

// lookup is the result of searching the reservations of a counter for one take.
type lookup struct {
	reservations *reservations // may be nil
	slot         int32         // the reservation that a commit or an extension is about, or none
}

// settleNew settles an operation on a reservation whose counter does not exist. It returns false if the store is full.
// The shard of the key is locked, and mu for reading.
func (s *Store) settleNew(now backend.Times, hash uint64, sh *share, takes []backend.Take,
	outcomes []backend.Outcome) bool {
	t := &takes[0]
	owner := &s.shards[hash%shardCount]
	c := &owner.work
	room := s.claimRoom(sh)
	if !room && needsCounter(t) {
		return false
	}
	c.state = s.inherited(sh, hash, t.Rule, t.Limit, now)
	at, states := [...]place{{hash: hash, share: sh.number}}, [...]*backend.State{&c.state}
	settled := s.settleReservations(now, takes, states[:], at[:], outcomes)
	switch {
	case room && settled && !c.state.Unused():
		c.expires = expires(t.Limit, &c.state, now)
		owner.table.add(hash, t.Key, sh.number, c)
	case room:
		s.giveRoom(sh)
	}
	return settled
}

// settleReservations is backend.Settle for takes that concern reservations. It returns false, and changes nothing, if
// the store has no room for another reservation. The shards of the takes are locked.
func (s *Store) settleReservations(now backend.Times, takes []backend.Take, states []*backend.State, at []place,
	outcomes []backend.Outcome) bool {
	if len(takes) == 1 {
		return s.settleReservation(now.Of(takes[0].Limit), takes, states, &at[0], outcomes)
	}
	for i := range takes {
		if reserves(&takes[i]) && !s.claimRoom(s.shareNumbered(at[i].share)) {
			for j := range takes[:i] {
				if reserves(&takes[j]) {
					s.giveRoom(s.shareNumbered(at[j].share))
				}
			}
			return false
		}
	}
	var few [4]lookup
	found := few[:0]
	for i := range takes {
		found = append(found, s.look(now.Of(takes[i].Limit), &takes[i], states[i], &at[i], true))
	}
	backend.Settle(takes, states, outcomes, now)
	for i := range takes {
		if !reserves(&takes[i]) { // first, because a new reservation may make others go
			s.write(&takes[i], &at[i], found[i])
		}
	}
	for i := range takes {
		if reserves(&takes[i]) {
			s.write(&takes[i], &at[i], found[i])
		}
	}
	return true
}

// settleReservation is settleReservations for one take.
func (s *Store) settleReservation(now int64, takes []backend.Take, states []*backend.State, at *place,
	outcomes []backend.Outcome) bool {
	t := &takes[0]
	if reserves(t) && !s.claimRoom(s.shareNumbered(at.share)) {
		return false
	}
	found := s.look(now, t, states[0], at, false)
	backend.Settle(takes, states, outcomes, backend.At(now))
	s.write(t, at, found)
	return true
}

func reserves(t *backend.Take) bool {
	return t.Reservation != nil && t.Reservation.Op == backend.OpReserve
}

// look settles expired reservations, and fills in the stored reservation of a take. Several takes of a group may
// concern the same counter: then the later ones see that the earlier ones may add reservations, or have found theirs.
func (s *Store) look(now int64, t *backend.Take, state *backend.State, at *place, grouped bool) lookup {
	sh := &s.shards[at.hash%shardCount]
	f := lookup{sh.reservations.find(at.hash, t.Key), none}
	if at.counter == nil {
		state = new(backend.State) // a new counter does not have the hits reserved in an earlier one
	}
	if f.reservations != nil {
		f.reservations.clamp(t.Limit, now)
		s.end(f.reservations, t.Limit, state, now, endsPerCall)
	}
	h := t.Reservation
	if h == nil {
		return f
	}
	h.Result, h.Granted, h.Expires, h.Stored = backend.ReservationDone, 0, 0, backend.StoredReservation{}
	switch {
	case reserves(t):
		if f.reservations == nil && grouped {
			f.reservations = sh.addReservations(at.hash, t.Key)
		}
		if b := f.reservations; b != nil {
			_, same := b.count(h.ID)
			h.Stored.Outstanding, h.Stored.SameID = len(b.open)+b.promised, same+b.promised
			if first := b.open.first(); first != none {
				h.Stored.FirstExpiry = b.slots[first].state.Expires
			}
			b.promised++
		}
	case f.reservations != nil:
		if f.slot = s.claim(f.reservations, h.ID, t.Limit, state, now); f.slot == none {
			break
		}
		h.Stored.ReservationState, h.Stored.Found = f.reservations.slots[f.slot].state, true
		if f.reservations.slots[f.slot].past { // if the clock was set back, its Expires may be later than now
			h.Stored.Expires = min(h.Stored.Expires, now)
		}
		if at.counter == nil && h.Final {
			h.Stored.Charged = min(h.Stored.Charged, t.Hits) // without a counter there are no hits to give back
		}
	}
	return f
}

// claim finds the oldest reservation of an id that no other take of the group has claimed. It returns none if there is
// none.
func (s *Store) claim(b *reservations, id backend.ReservationID, l *descriptor.Limit, state *backend.State,
	now int64) int32 {
	for at := b.find(id); at != none; {
		slot := &b.slots[at]
		next := slot.younger
		if !slot.claimed && s.endOne(b, at, l, state, now) {
			slot.claimed = true
			return at
		}
		at = next
	}
	return none
}

// write changes the reservations of a counter as Settle has decided.
func (s *Store) write(t *backend.Take, at *place, f lookup) {
	sh, h := &s.shards[at.hash%shardCount], t.Reservation
	switch {
	case h == nil:
	case reserves(t):
		if f.reservations != nil {
			f.reservations.promised = max(0, f.reservations.promised-1)
		}
		if !h.Stored.Found {
			s.giveRoom(s.shareNumbered(at.share))
			break
		}
		if f.reservations == nil {
			f.reservations = sh.addReservations(at.hash, t.Key)
		}
		s.keep(f.reservations, t, sh.limit(t), at.share)
	case f.slot == none:
	case h.Stored.Found:
		f.reservations.slots[f.slot].claimed = false
		f.reservations.set(f.slot, h.Stored.ReservationState)
	default:
		f.reservations.slots[f.slot].claimed = false
		s.remove(f.reservations, f.slot)
	}
	if f.reservations != nil && f.reservations.len() == 0 && f.reservations.promised == 0 {
		sh.reservations.remove(f.reservations)
	}
}

// keep adds a new reservation. If there are too many then, those go that have expired.
func (s *Store) keep(b *reservations, t *backend.Take, limit *descriptor.Limit, share uint32) {
	b.limit = limit
	b.add(t.Reservation.ID, t.Reservation.Stored.ReservationState, share)
	if b.len() == 1 {
		return
	}
	for most := backend.ReservationBounds(limit).MaxOutstanding; b.len() > most && len(b.past) > 0; {
		s.remove(b, b.past.first())
	}
	if all, open := b.count(t.Reservation.ID); all > backend.ReservationsOfOneID && all > open {
		oldest := b.find(t.Reservation.ID)
		for !b.slots[oldest].past {
			oldest = b.slots[oldest].younger
		}
		s.remove(b, oldest)
	}
}

// limit returns the limit of a take as reservations may keep it. A rule's limit never changes. The limit of an override
// belongs to the decision, which uses its memory again, so it is copied; counters with equal limits share one copy.
func (sh *shard) limit(t *backend.Take) *descriptor.Limit {
	if t.Rule != nil {
		for i := range t.Rule.Limits {
			if l := &t.Rule.Limits[i]; l == t.Limit {
				return l
			}
		}
	}
	if sh.last == nil || *sh.last != *t.Limit {
		copied := *t.Limit
		sh.last = &copied
	}
	return sh.last
}

// addReservations adds a counter without reservations to the table.
func (sh *shard) addReservations(hash uint64, key []byte) *reservations {
	if sh.reservations == nil {
		sh.reservations = new(reservationTable)
	}
	return sh.reservations.add(hash, key)
}

// end handles at most this many reservations that are due: it settles expired ones, and removes those whose time for
// late commits is over.
func (s *Store) end(b *reservations, l *descriptor.Limit, state *backend.State, now int64, most int) {
	for range most {
		at := b.open.first()
		if at == none || b.slots[at].state.Expires > now {
			at = b.past.first()
		}
		if at == none || b.slots[at].time() > now {
			return
		}
		s.endOne(b, at, l, state, now)
	}
}

// endOne handles one reservation, if its time is over, and reports whether the reservation is kept.
func (s *Store) endOne(b *reservations, at int32, l *descriptor.Limit, state *backend.State, now int64) (kept bool) {
	slot := &b.slots[at]
	if slot.state.Expires > now && !slot.past {
		return true
	}
	if !slot.past {
		kept := slot.state.Expire(l, state, now)
		b.pass(at)
		if kept {
			return true
		}
	}
	if slot.state.Keep > now {
		return true
	}
	s.remove(b, at)
	return false
}

func (s *Store) remove(b *reservations, at int32) {
	s.giveRoom(s.shareNumbered(b.slots[at].share))
	b.remove(at)
}

// forget removes all reservations of a counter. Its shard is locked.
func (s *Store) forget(sh *shard, b *reservations) {
	for _, q := range [...]queue{b.open, b.past} {
		for _, at := range q {
			s.giveRoom(s.shareNumbered(b.slots[at].share))
		}
	}
	sh.reservations.remove(b)
}

// sweepReservations deals with the ends of all reservations in a shard. The shard is locked.
func (s *Store) sweepReservations(sh *shard, at backend.Times) {
	if sh.reservations == nil {
		return
	}
	// backwards, because removing an element may move the last one to its place
	for i := len(sh.reservations.all) - 1; i >= 0; i-- {
		b := sh.reservations.all[i]
		if b == nil {
			continue
		}
		now := at.Of(b.limit)
		b.clamp(b.limit, now+grace.Microseconds()) // a sweep passes a time that is earlier by grace
		first := b.open.first()
		if first == none || b.slots[first].state.Expires > now {
			first = b.past.first()
		}
		if first == none || b.slots[first].time() > now {
			continue
		}
		var state backend.State
		r := sh.table.find(b.hash, b.key)
		if r != nil {
			sh.table.load(r, &state)
		}
		s.end(b, b.limit, &state, now, b.len())
		if r != nil {
			sh.table.store(r, &state, s.keptUntil(&state, r.share(), b.limit, &backend.Outcome{}, at))
		}
		if b.len() == 0 {
			sh.reservations.remove(b)
		}
	}
	if sh.reservations.none() {
		sh.reservations, sh.last = nil, nil // a burst leaves nothing behind
	}
}

// peek judges a take as if all that has expired had been dealt with.
func (b *reservations) peek(t *backend.Take, state backend.State, now int64) backend.Outcome {
	state.Tail = slices.Clone(state.Tail)
	for _, at := range b.open {
		reserved := b.slots[at].state
		reserved.Expire(t.Limit, &state, now)
	}
	return backend.Peek(t, &state, now)
}
