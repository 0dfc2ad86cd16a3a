package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// The oldest reservation of an id is removed when there have just become too many to do without a map.
func TestBookThatGrowsLosesARecord(t *testing.T) {
	var b reservations
	for i := range byte(fewReservations) {
		b.add(backend.ReservationID{i}, backend.ReservationState{}, 0)
	}
	id := backend.ReservationID{fewReservations - 1}
	b.remove(b.find(backend.ReservationID{0}))
	b.add(id, backend.ReservationState{Charged: 1}, 0) // its place is before that of the oldest
	b.add(id, backend.ReservationState{Charged: 2}, 0)
	b.remove(b.find(id))
	if place := b.find(id); place == none || b.slots[place].state.Charged != 1 {
		t.Errorf("the reservation in place %d is found, want the next oldest", place)
	}
	if all, open := b.count(id); all != 2 || open != 2 {
		t.Errorf("%d reservations of the id, %d open; want 2", all, open)
	}
}

// Reservations do the same as a list that is searched from its start.
func TestReservationsAreAList(t *testing.T) {
	type entry struct {
		id    backend.ReservationID
		state backend.ReservationState
		past  bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var b reservations
		var list []entry
		next := int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			id := backend.ReservationID{byte(rapid.IntRange(0, 9).Draw(t, "id"))}
			at := slices.IndexFunc(list, func(e entry) bool { return e.id == id })
			place := b.find(id)
			if (place != none) != (at >= 0) {
				t.Fatalf("found %v, want %v", place != none, at >= 0)
			}
			if at >= 0 && b.slots[place].state != list[at].state {
				t.Fatalf("found %+v, want %+v", b.slots[place].state, list[at].state)
			}
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what >= 3 || at < 0:
				next++
				state := backend.ReservationState{
					Charged: next,
					Expires: rapid.Int64Range(0, 50).Draw(t, "expires"), Keep: rapid.Int64Range(0, 50).Draw(t, "keep"),
				}
				b.add(id, state, 0)
				list = append(list, entry{id: id, state: state})
			case what == 0:
				b.remove(place)
				list = slices.Delete(list, at, at+1)
			case what == 1:
				list[at].state.Expires = rapid.Int64Range(0, 50).Draw(t, "expires")
				list[at].state.Keep = rapid.Int64Range(0, 50).Draw(t, "keep")
				b.set(place, list[at].state)
			case what == 2 && !list[at].past:
				b.pass(place)
				list[at].past = true
			}
			count, ahead := 0, 0
			for i := range list {
				if list[i].id == id {
					count++
					if !list[i].past {
						ahead++
					}
				}
			}
			if all, open := b.count(id); b.len() != len(list) || all != count || open != ahead {
				t.Fatalf("%d reservations, %d and %d of one id; want %d, %d and %d", b.len(), all, open, len(list), count, ahead)
			}
			for _, past := range []bool{false, true} {
				q, first, some := b.open, int64(0), false
				if past {
					q = b.past
				}
				for i := range list {
					at := list[i].state.Expires
					if past {
						at = list[i].state.Keep
					}
					if list[i].past == past && (!some || at < first) {
						first, some = at, true
					}
				}
				place := q.first()
				if (place != none) != some || some && b.slots[place].time() != first {
					t.Fatalf("past %v: first in place %d, want %v at %d", past, place, some, first)
				}
			}
		}
	})
}
