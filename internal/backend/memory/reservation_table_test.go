package memory

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
)

// Reservations are found by the keys of their counters, even where keys have the same hash, and whether there are few
// or many.
func TestReservationTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x reservationTable
		want := map[string]*reservations{}
		hash := func(key string) uint64 { return uint64(len(key)%3) << placeBits } // three tags for all
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			key := fmt.Sprintf("%0*d", rapid.IntRange(1, 70).Draw(t, "length"), rapid.IntRange(0, 9).Draw(t, "key"))
			b := x.find(hash(key), []byte(key))
			if b != want[key] {
				t.Fatalf("%s: found %p, want %p", key, b, want[key])
			}
			if b == nil {
				want[key] = x.add(hash(key), []byte(key))
				if n := want[key].len(); n != 0 {
					t.Fatalf("a new counter has %d reservations", n)
				}
				want[key].add(backend.ReservationID{1}, backend.ReservationState{}, 0)
				continue
			}
			b.remove(b.find(backend.ReservationID{1}))
			x.remove(b)
			x.remove(b) // changes nothing
			delete(want, key)
			if x.none() != (len(want) == 0) {
				t.Fatalf("none: %v, %d are left", x.none(), len(want))
			}
		}
	})
}
