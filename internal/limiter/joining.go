package limiter

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// joining is which takes are for several charges. Many takes of one atomic step are found in a hash table.
type joining struct {
	table  []int32 // indexes in the request's takes plus one; 0 for a free slot
	hashed int     // how many takes are in the table
	seed   maphash.Seed

	members []int64 // number of descriptors each take reserves for; empty if reservations are all or nothing
}

// fewTakes is how many takes are compared one by one. More are found by the hashes of their keys, so that the cost of a
// request does not grow with the square of its size.
const fewTakes = 16

// joinable reports whether the hits of a take can be added to another take. Whether its reservation was shared must not
// depend on the number of hits.
func joinable(t *backend.Take) bool { return t.Hits > 0 || t.Reservation != nil }

// findJoinable returns the index of the take that t can join, or none.
func (w *work) findJoinable(t *backend.Take) int {
	takes, sh := w.request.Takes, &w.joining
	if len(takes) <= fewTakes {
		for i := range takes {
			if w.canJoin(&takes[i], t) {
				return i
			}
		}
		return none
	}
	if 2*len(takes) > len(sh.table) {
		size := 4 << bits.Len(uint(len(takes)))
		sh.table, sh.hashed = slices.Grow(sh.table[:0], size)[:size], 0
		clear(sh.table)
	}
	for ; sh.hashed < len(takes); sh.hashed++ {
		if o := &takes[sh.hashed]; joinable(o) {
			*w.slot(o) = int32(sh.hashed + 1)
		}
	}
	return int(*w.slot(t)) - 1
}

// slot returns the element of the table for the take that t can join, or the free one for t.
func (w *work) slot(t *backend.Take) *int32 {
	table := w.joining.table
	last := uint64(len(table) - 1)
	for i := maphash.Bytes(w.joining.seed, t.Key) & last; ; i = (i + 1) & last {
		if n := table[i]; n == 0 || w.canJoin(&w.request.Takes[n-1], t) {
			return &table[i]
		}
	}
}

func (w *work) canJoin(a, b *backend.Take) bool {
	return joinable(a) && a.Vote == b.Vote && (a.Reservation == nil) == (b.Reservation == nil) &&
		bytes.Equal(a.Key, b.Key) &&
		(a.Reservation == nil || w.subjects[a.Member].sameReservation(&w.subjects[b.Member]))
}

// join adds t to a take that is there: the sum of their hits, under the smaller of their limits. It returns the take's
// guard. A counter's key determines neither: the descriptors may have different rules, and their order must not matter.
func (w *work) join(j int, t *backend.Take) (guard int) {
	same := &w.request.Takes[j]
	same.Hits = min(same.Hits+t.Hits, backend.MaxHits)
	same.CountDenied = same.CountDenied || t.CountDenied
	if same.Reservation != nil && t.Reservation != nil {
		same.Reservation.Least = min(same.Reservation.Least+t.Reservation.Least, backend.MaxHits)
	}
	if t.Limit.Capacity() < same.Limit.Capacity() {
		same.Limit = t.Limit
	}
	if j > 0 && w.request.Takes[j-1].Guards {
		return j - 1
	}
	return none
}

// countMember counts one more descriptor whose reservation is a part of a take, and that may get less than it asks for.
func (s *joining) countMember(take int) {
	for len(s.members) <= take {
		s.members = append(s.members, 0)
	}
	s.members[take]++
}

// membersOf returns the number of descriptors that share the hits granted to a take in equal parts.
func (s *joining) membersOf(take int) int64 {
	if take < len(s.members) {
		return s.members[take]
	}
	return 1
}

// grantEqually makes a reservation all or nothing if some takes are for more descriptors than others: stores grant each
// take the same number of hits, so the number per descriptor would differ.
func (w *work) grantEqually() {
	equal, parts := true, int64(0)
	for t, n := range w.joining.members {
		if h := w.request.Takes[t].Reservation; h != nil && h.Least > 0 {
			equal = equal && (parts == 0 || parts == n)
			parts = n
		}
	}
	for t := range w.joining.members {
		if h := w.request.Takes[t].Reservation; h != nil && !equal {
			h.Least = 0
		}
	}
}
