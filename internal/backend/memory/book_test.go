package memory

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// The oldest record of an id is removed when the book has just become too large to do without a map.
func TestBookThatGrowsLosesARecord(t *testing.T) {
	var b book
	for i := range byte(smallBook) {
		b.add(backend.HoldID{i}, backend.Reservation{}, 0)
	}
	id := backend.HoldID{smallBook - 1}
	b.remove(b.find(backend.HoldID{0}))
	b.add(id, backend.Reservation{Charged: 1}, 0) // in the place before that of the oldest
	b.add(id, backend.Reservation{Charged: 2}, 0)
	b.remove(b.find(id))
	if place := b.find(id); place == none || b.lines[place].held.Charged != 1 {
		t.Errorf("the record in place %d is found, want the next oldest", place)
	}
	if all, open := b.count(id); all != 2 || open != 2 {
		t.Errorf("%d records of the id, %d open; want 2", all, open)
	}
}

// A book does the same as a list that is searched from its beginning.
func TestBookIsAList(t *testing.T) {
	type entry struct {
		id   backend.HoldID
		held backend.Reservation
		past bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var b book
		var list []entry
		next := int64(0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			id := backend.HoldID{byte(rapid.IntRange(0, 9).Draw(t, "id"))}
			at := slices.IndexFunc(list, func(e entry) bool { return e.id == id })
			place := b.find(id)
			if (place != none) != (at >= 0) {
				t.Fatalf("found %v, want %v", place != none, at >= 0)
			}
			if at >= 0 && b.lines[place].held != list[at].held {
				t.Fatalf("found %+v, want %+v", b.lines[place].held, list[at].held)
			}
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what >= 3 || at < 0:
				next++
				held := backend.Reservation{
					Charged: next,
					Expires: rapid.Int64Range(0, 50).Draw(t, "expires"), Keep: rapid.Int64Range(0, 50).Draw(t, "keep"),
				}
				b.add(id, held, 0)
				list = append(list, entry{id: id, held: held})
			case what == 0:
				b.remove(place)
				list = slices.Delete(list, at, at+1)
			case what == 1:
				list[at].held.Expires = rapid.Int64Range(0, 50).Draw(t, "expires")
				list[at].held.Keep = rapid.Int64Range(0, 50).Draw(t, "keep")
				b.set(place, list[at].held)
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
				t.Fatalf("%d records, %d and %d of one id; want %d, %d and %d", b.len(), all, open, len(list), count, ahead)
			}
			for _, past := range []bool{false, true} {
				q, first, some := b.open, int64(0), false
				if past {
					q = b.past
				}
				for i := range list {
					at := list[i].held.Expires
					if past {
						at = list[i].held.Keep
					}
					if list[i].past == past && (!some || at < first) {
						first, some = at, true
					}
				}
				place := q.first()
				if (place != none) != some || some && b.lines[place].time() != first {
					t.Fatalf("past %v: first in place %d, want %v at %d", past, place, some, first)
				}
			}
		}
	})
}
