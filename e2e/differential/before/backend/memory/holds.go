package memory

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A reservation has a record in the book of its counter. A record takes up the place of a counter: both count for the share of
// their rule, so the number of records is bounded too. A reservation needs a counter of its own: what several callers have used
// in a shared counter cannot be given back to one of them.

// endsPerCall is the number of records whose end one call deals with.
const endsPerCall = 8

// concernsHolds reports whether a take has to look at the book of its counter: it is a step of a reservation, or it may pass
// because reservations have expired.
func concernsHolds(t *backend.Take) bool {
	return t.Hold != nil || t.Limit.Reservations != nil && t.Limit.Reservations.Release
}

func concerned(t backend.Take) bool { return concernsHolds(&t) }

// needsCounter reports whether a step of a reservation may add hits to a counter that does not exist.
func needsCounter(t *backend.Take) bool { return t.Hold.Op == backend.HoldReserve || t.Hits > 0 }

// place is where the counter of a take is.
type place struct {
	hash    uint64
	counter record // nil: it is new
	share   uint32
}

// booked is what a take has found in the book of its counter.
type booked struct {
	book *book // may be nil
	line int32 // the record that a commit or an extension is about, or none
}

// holdNew settles a step of a reservation whose counter does not exist. It returns false if there is no room. The shard of the
// key is locked, and mu for reading.
func (s *Store) holdNew(now backend.Times, hash uint64, sh *share, takes []backend.Take, outcomes []backend.Outcome) bool {
	t := &takes[0]
	owner := &s.shards[hash%shardCount]
	c := &owner.work
	room := s.reserve(sh)
	if !room && needsCounter(t) {
		return false
	}
	c.state = s.inherited(sh, hash, t.Limit, now)
	at, states := [...]place{{hash: hash, share: sh.number}}, [...]*backend.State{&c.state}
	settled := s.settleHolds(now, takes, states[:], at[:], outcomes)
	switch {
	case room && settled && !c.state.Unused():
		c.expires = expires(t.Limit, &c.state, now)
		owner.table.add(hash, t.Key, sh.number, c)
	case room:
		s.release(sh)
	}
	return settled
}

// settleHolds is backend.Settle for takes that concern reservations. It returns false, and changes nothing, if there is no room
// for another record. The shards of the takes are locked.
func (s *Store) settleHolds(now backend.Times, takes []backend.Take, states []*backend.State, at []place, outcomes []backend.Outcome) bool {
	if len(takes) == 1 {
		return s.settleHold(now.Of(takes[0].Limit), takes, states, &at[0], outcomes)
	}
	for i := range takes {
		if reserves(&takes[i]) && !s.reserve(s.shareNumbered(at[i].share)) {
			for j := range takes[:i] {
				if reserves(&takes[j]) {
					s.release(s.shareNumbered(at[j].share))
				}
			}
			return false
		}
	}
	var few [4]booked
	found := few[:0]
	for i := range takes {
		found = append(found, s.look(now.Of(takes[i].Limit), &takes[i], states[i], &at[i], true))
	}
	backend.SettleAt(takes, states, outcomes, now)
	for i := range takes {
		if !reserves(&takes[i]) { // first, because a new record may make others go
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

// settleHold is settleHolds for one take.
func (s *Store) settleHold(now int64, takes []backend.Take, states []*backend.State, at *place, outcomes []backend.Outcome) bool {
	t := &takes[0]
	if reserves(t) && !s.reserve(s.shareNumbered(at.share)) {
		return false
	}
	found := s.look(now, t, states[0], at, false)
	backend.Settle(takes, states, outcomes, now)
	s.write(t, at, found)
	return true
}

func reserves(t *backend.Take) bool { return t.Hold != nil && t.Hold.Op == backend.HoldReserve }

// look deals with records that have expired, and fills in what the book says about the reservation of a take. Several takes of
// a group may concern the same counter: then the later ones see that the earlier ones may add records, or have found theirs.
func (s *Store) look(now int64, t *backend.Take, state *backend.State, at *place, grouped bool) booked {
	sh := &s.shards[at.hash%shardCount]
	f := booked{sh.books.find(at.hash, t.Key), none}
	if at.counter == nil {
		state = new(backend.State) // a new counter has nothing of what was reserved in an earlier one
	}
	if f.book != nil {
		f.book.clamp(t.Limit, now)
		s.end(f.book, t.Limit, state, now, endsPerCall)
	}
	h := t.Hold
	if h == nil {
		return f
	}
	h.Result, h.Granted, h.Expires, h.Record = backend.HoldDone, 0, 0, backend.HoldRecord{}
	switch {
	case reserves(t):
		if f.book == nil && grouped {
			f.book = sh.addBook(at.hash, t.Key)
		}
		if b := f.book; b != nil {
			_, same := b.count(h.ID)
			h.Record.Outstanding, h.Record.SameID = len(b.open)+b.promised, same+b.promised
			if first := b.open.first(); first != none {
				h.Record.FirstExpiry = b.lines[first].held.Expires
			}
			b.promised++
		}
	case f.book != nil:
		if f.line = s.claim(f.book, h.ID, t.Limit, state, now); f.line == none {
			break
		}
		h.Record.Reservation, h.Record.Found = f.book.lines[f.line].held, true
		if f.book.lines[f.line].past { // by a clock that was set back since, it may not have expired yet
			h.Record.Expires = min(h.Record.Expires, now)
		}
		if at.counter == nil && h.Final {
			h.Record.Charged = min(h.Record.Charged, t.Hits) // there is nothing to give back
		}
	}
	return f
}

// claim finds the oldest record of an id that no other take of the group has claimed. It returns none if there is none.
func (s *Store) claim(b *book, id backend.HoldID, l *descriptor.Limit, state *backend.State, now int64) int32 {
	for at := b.find(id); at != none; {
		line := &b.lines[at]
		next := line.younger
		if !line.claimed && s.endLine(b, at, l, state, now) {
			line.claimed = true
			return at
		}
		at = next
	}
	return none
}

// write changes the book of a take as Settle has decided.
func (s *Store) write(t *backend.Take, at *place, f booked) {
	sh, h := &s.shards[at.hash%shardCount], t.Hold
	switch {
	case h == nil:
	case reserves(t):
		if f.book != nil {
			f.book.promised = max(0, f.book.promised-1)
		}
		if !h.Record.Found {
			s.release(s.shareNumbered(at.share))
			break
		}
		if f.book == nil {
			f.book = sh.addBook(at.hash, t.Key)
		}
		s.record(f.book, t, sh.limit(t), at.share)
	case f.line == none:
	case h.Record.Found:
		f.book.lines[f.line].claimed = false
		f.book.set(f.line, h.Record.Reservation)
	default:
		f.book.lines[f.line].claimed = false
		s.remove(f.book, f.line)
	}
	if f.book != nil && f.book.len() == 0 && f.book.promised == 0 {
		sh.books.remove(f.book)
	}
}

// record adds the record of a new reservation. If there are too many then, those go that have expired.
func (s *Store) record(b *book, t *backend.Take, limit *descriptor.Limit, share uint32) {
	b.limit = limit
	b.add(t.Hold.ID, t.Hold.Record.Reservation, share)
	if b.len() == 1 {
		return
	}
	for most := backend.HoldBounds(limit).MaxOutstanding; b.len() > most && len(b.past) > 0; {
		s.remove(b, b.past.first())
	}
	if all, open := b.count(t.Hold.ID); all > backend.HoldsOfOneID && all > open {
		oldest := b.find(t.Hold.ID)
		for !b.lines[oldest].past {
			oldest = b.lines[oldest].younger
		}
		s.remove(b, oldest)
	}
}

// limit returns the limit of a take as a book may keep it. A rule's limit never changes. The limit of an override belongs to the
// decision, which uses its memory again, so it is copied; books with equal limits share one copy.
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

// addBook adds a book for a counter. It has none.
func (sh *shard) addBook(hash uint64, key []byte) *book {
	if sh.books == nil {
		sh.books = new(books)
	}
	return sh.books.add(hash, key)
}

// end handles at most this many records whose time is over: it settles what has expired and removes what is kept no longer.
func (s *Store) end(b *book, l *descriptor.Limit, state *backend.State, now int64, most int) {
	for range most {
		at := b.open.first()
		if at == none || b.lines[at].held.Expires > now {
			at = b.past.first()
		}
		if at == none || b.lines[at].time() > now {
			return
		}
		s.endLine(b, at, l, state, now)
	}
}

// endLine handles one record, if its time is over, and reports whether the record is kept.
func (s *Store) endLine(b *book, at int32, l *descriptor.Limit, state *backend.State, now int64) (kept bool) {
	line := &b.lines[at]
	if line.held.Expires > now && !line.past {
		return true
	}
	if !line.past {
		kept := line.held.Expire(l, state, now)
		b.pass(at)
		if kept {
			return true
		}
	}
	if line.held.Keep > now {
		return true
	}
	s.remove(b, at)
	return false
}

func (s *Store) remove(b *book, at int32) {
	s.release(s.shareNumbered(b.lines[at].share))
	b.remove(at)
}

// forget removes all records of a counter. Its shard is locked.
func (s *Store) forget(sh *shard, b *book) {
	for _, q := range [...]queue{b.open, b.past} {
		for _, at := range q {
			s.release(s.shareNumbered(b.lines[at].share))
		}
	}
	sh.books.remove(b)
}

// sweepBooks deals with the ends of all records in a shard. The shard is locked.
func (s *Store) sweepBooks(sh *shard, at backend.Times) {
	if sh.books == nil {
		return
	}
	for i := len(sh.books.all) - 1; i >= 0; i-- { // what is removed may make way for the last one
		b := sh.books.all[i]
		if b == nil {
			continue
		}
		now := at.Of(b.limit)
		b.clamp(b.limit, now+grace.Microseconds()) // a sweep passes a time that is earlier by grace
		first := b.open.first()
		if first == none || b.lines[first].held.Expires > now {
			first = b.past.first()
		}
		if first == none || b.lines[first].time() > now {
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
			sh.books.remove(b)
		}
	}
	if sh.books.none() {
		sh.books, sh.last = nil, nil // a burst leaves nothing behind
	}
}

// peek judges a take as if all that has expired had been dealt with.
func (b *book) peek(t *backend.Take, state backend.State, now int64) backend.Outcome {
	state.Tail = slices.Clone(state.Tail)
	for _, at := range b.open {
		held := b.lines[at].held
		held.Expire(t.Limit, &state, now)
	}
	return backend.Peek(t, &state, now)
}
