package memory

import (
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A rule may have a new counter as long as it has less than ruleShare times the number of free counters. The same holds
// for a domain and domainShare. So a rule borrows freely while there is room. One rule alone fills at most 7/8 of the
// store, and all rules of one domain fill at most 15/16. The others may fill the rest by the same formula. The store
// need not know how many rules and domains there are, and the check is two comparisons. Example: with 800 counters, a
// rule that has 700 gets no more, because 7 times the free 100 are 700.
const (
	ruleShare   = 7
	domainShare = 15
)

// shares holds the shares of rules and domains, and the table of shared counters.
//
// Locks are taken in this order: shards, mu for reading, cells. A goroutine that holds mu for writing takes no other
// lock.
type shares struct {
	mu      sync.RWMutex // held for writing to add or drop an element
	byRule  map[uint64]*share
	domains map[string]*domain
	unused  []uint32                 // free numbers of shares
	table   atomic.Pointer[[]*share] // index: number of the share. Elements in use never change, so readers need no lock

	cells  [stripeCount]sync.Mutex // each guards a part of the cells of every row
	adding sync.Mutex              // guards free, and the adding of rows while mu is held for reading
	free   int                     // cells that are not in a row
	rows   atomic.Int64
}

const stripeCount = 64

// share is the part of the store that a rule uses, or several rules that can share counters: a customer whose condition
// changes stays in the same shared counter. The limits that requests of a domain carry count as one rule.
type share struct {
	number uint32 // number in the records of its counters
	domain *domain
	used   atomic.Int64 // number of counters in the shards
	rows   atomic.Pointer[row]
}

// domain is the part of the store that all rules of a domain use.
type domain struct {
	used  atomic.Int64
	taken *domainTakes
}

// row holds the shared counters of all limits of a share that have the same tag. Such limits use the same counter of a
// customer, even if their numbers differ. The hash of a customer's key selects one of the cells.
type row struct {
	next   *row
	tag    string    // descriptor.Rule.Tag
	cells  []counter // a power of two of them
	stripe uint64
}

// Bounds of a row.
const (
	widestRow    = 1 << 12 // cells
	longestTails = 1 << 20 // entries in all cells of a row
)

// shareOf returns the share of a rule. mu is held for reading. If the rule is new, shareOf releases mu for a moment,
// and again is true.
func (s *Store) shareOf(r *descriptor.Rule) (_ *share, again bool) {
	id := s.ruleID(r)
	for {
		if sh := s.shares.byRule[id]; sh != nil {
			return sh, again
		}
		s.shares.mu.RUnlock()
		s.addShare(id, r)
		s.shares.mu.RLock()
		again = true
	}
}

func (s *Store) addShare(id uint64, r *descriptor.Rule) {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	if s.shares.byRule[id] != nil {
		return
	}
	name := ""
	if r != nil {
		name = r.Domain
	}
	d := s.shares.domains[name]
	if d == nil {
		d = &domain{taken: s.metrics.ofDomain(name)}
		s.shares.domains[name] = d
	}
	sh := &share{domain: d}
	s.shares.byRule[id] = sh
	table := *s.shares.table.Load()
	if last := len(s.shares.unused) - 1; last >= 0 {
		sh.number, s.shares.unused = s.shares.unused[last], s.shares.unused[:last]
		table[sh.number] = sh
		return
	}
	sh.number = uint32(len(table))
	table = append(table, sh) // readers of the shorter table do not see it
	s.shares.table.Store(&table)
}

// shareNumbered returns the share of a counter in a table. The shard of the counter is locked.
func (s *Store) shareNumbered(number uint32) *share { return (*s.shares.table.Load())[number] }

// ruleID identifies a rule, or all rules that can share counters with it. It stays the same when the file of the rule
// is read again, even if the numbers of the rule change.
func (s *Store) ruleID(r *descriptor.Rule) uint64 {
	if r == nil {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(s.seed)
	h.WriteString(r.Domain)
	if with := r.CountedWith(); with != "" {
		h.WriteByte(1)
		h.WriteString(with)
		return h.Sum64()
	}
	for i := range r.Levels {
		l := &r.Levels[i]
		h.WriteByte(0)
		h.WriteByte(byte(l.Kind))
		h.WriteString(l.Key)
		h.WriteByte(0)
		h.WriteString(l.Value)
	}
	return h.Sum64()
}

// claimRoom counts one more counter of a rule, if the rule may have one. It reads before it writes, so that denials do
// not make the cores wait for each other.
func (s *Store) claimRoom(sh *share) bool {
	if s.sharing() {
		free := int64(s.opts.MaxCounters) - s.live.Load()
		if sh.used.Load() >= ruleShare*free || sh.domain.used.Load() >= domainShare*free {
			s.askForSweep()
			return false
		}
	}
	return s.occupy(sh)
}

// occupy counts one more counter of a rule, if the store has room for one.
func (s *Store) occupy(sh *share) bool {
	most := int64(s.opts.MaxCounters)
	if s.live.Load() >= most {
		s.askForSweep()
		return false
	}
	if s.live.Add(1) > most { // another call was faster
		s.live.Add(-1)
		return false
	}
	sh.used.Add(1)
	sh.domain.used.Add(1)
	return true
}

// giveRoom counts one counter of a rule less.
func (s *Store) giveRoom(sh *share) {
	s.live.Add(-1)
	sh.used.Add(-1)
	sh.domain.used.Add(-1)
}

// askForSweep makes Run sweep out of turn, unless Run is resting.
func (s *Store) askForSweep() {
	select {
	case s.full <- struct{}{}:
	default:
	}
}

// sharing reports whether there are shared counters.
func (s *Store) sharing() bool { return s.opts.Shared > 0 }

// find returns the row of a limit of a rule, or nil without one.
func (sh *share) find(rule *descriptor.Rule, l *descriptor.Limit) *row {
	first := sh.rows.Load()
	if first == nil {
		return nil
	}
	tag := rule.Tag(l)
	for r := first; r != nil; r = r.next {
		if r.tag == tag {
			return r
		}
	}
	return nil
}

// rowOf returns the row of a limit, and makes one if necessary. It returns nil if there is no room for one. mu is held
// for reading.
//
// A row gets a quarter of the free cells, and at least one cell, so that some remain for the next row. A rule gets one
// cell even if none is free: the number of rules is bounded, because the operator writes them. The number of windows in
// limits that requests carry is not bounded, so they may only use the first half of the cells.
func (s *Store) rowOf(sh *share, t *backend.Take) *row {
	if r := sh.find(t.Rule, t.Limit); r != nil || !s.sharing() {
		return r
	}
	s.shares.adding.Lock()
	defer s.shares.adding.Unlock()
	if r := sh.find(t.Rule, t.Limit); r != nil {
		return r
	}
	free := s.shares.free
	if t.Rule == nil || len(t.Rule.Levels) == 0 {
		if free -= s.opts.Shared / 2; free <= 0 {
			return nil
		}
	}
	most := min(widestRow, free/4)
	most = min(most, longestTails/max(1, backend.Entries(t.Limit)))
	width := 1
	for 2*width <= most {
		width *= 2
	}
	s.shares.free -= width
	r := &row{tag: t.Rule.Tag(t.Limit), cells: make([]counter, width), next: sh.rows.Load(),
		stripe: uint64(s.shares.rows.Add(1))}
	sh.rows.Store(r)
	return r
}

// cell returns the shared counter of a key, and the number of the lock that guards it.
func (r *row) cell(hash uint64) (c *counter, stripe uint8) {
	at := hash >> 32 & uint64(len(r.cells)-1)
	return &r.cells[at], uint8((at + r.stripe) % stripeCount)
}

// inherited returns the first state of a new counter of a key: the hits of the shared counter of that key, if it
// exists. mu is held for reading.
func (s *Store) inherited(sh *share, hash uint64, rule *descriptor.Rule, l *descriptor.Limit,
	at backend.Times) backend.State {
	r := sh.find(rule, l)
	if r == nil {
		return backend.State{}
	}
	c, stripe := r.cell(hash)
	s.shares.cells[stripe].Lock()
	defer s.shares.cells[stripe].Unlock()
	if c.expires <= at.Elapsed {
		return backend.State{}
	}
	return backend.Inherit(l, &c.state, at.Of(l))
}

// tidy drops rows in which everything has expired, and rules that have no rows and no counters left.
func (s *Store) tidy(now int64) {
	s.shares.mu.Lock()
	defer s.shares.mu.Unlock()
	for id, sh := range s.shares.byRule {
		var kept *row
		for r := sh.rows.Load(); r != nil; {
			next := r.next
			if r.expired(now) {
				s.shares.free += len(r.cells)
				s.shares.rows.Add(-1)
			} else {
				r.next, kept = kept, r
			}
			r = next
		}
		sh.rows.Store(kept)
		if kept == nil && sh.used.Load() == 0 {
			delete(s.shares.byRule, id)
			(*s.shares.table.Load())[sh.number] = nil
			s.shares.unused = append(s.shares.unused, sh.number)
		}
	}
}

func (r *row) expired(now int64) bool {
	for i := range r.cells {
		if r.cells[i].expires > now {
			return false
		}
	}
	return true
}
