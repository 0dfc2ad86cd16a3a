package hotkeys

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// check compares a summary with the exact counts, by the properties of every Space-Saving sketch.
func (s *summary) check(truth map[uint64]uint64) error {
	var hits, counted uint64
	for _, n := range truth {
		hits += n
	}
	there := make(map[uint64]bool)
	for i := range s.used {
		hash, count, err := s.slots[i].hash, s.counts[i], s.slots[i].err
		there[hash] = true
		counted += count
		if n := truth[hash]; count-err > n || n > count {
			return fmt.Errorf("key %x has %d hits, and is said to have %d to %d", hash, n, count-err, count)
		}
	}
	if s.hits != hits || counted != hits {
		return fmt.Errorf("%d hits, counts of %d, want %d", s.hits, counted, hits)
	}
	if want := min(len(truth), slots); s.used != want || len(there) != want {
		return fmt.Errorf("%d slots with %d keys in use, want %d", s.used, len(there), want)
	}
	floor := s.floor()
	if floor > hits/slots {
		return fmt.Errorf("the smallest count is %d of %d hits", floor, hits)
	}
	for hash, n := range truth {
		if !there[hash] && n > floor {
			return fmt.Errorf("key %x is not there and has %d hits, more than %d", hash, n, floor)
		}
	}
	return nil
}

func TestSummaryKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSummary()
		for range rapid.IntRange(1, 3).Draw(t, "sub-windows") {
			s.reset()
			count(t, s)
		}
	})
}

func count(t *rapid.T, s *summary) {
	truth := make(map[uint64]uint64)
	heaviest := rapid.SampledFrom([]uint64{1, 1, 5, 1 << 32}).Draw(t, "heaviest")
	crowded := rapid.Bool().Draw(t, "crowded") // hashes whose places in the index are close together
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	draw := drawn(t, random, uint64(rapid.IntRange(1, 4*slots).Draw(t, "keys")))
	for range rapid.IntRange(1, 5000).Draw(t, "uses") {
		hash := bits.Reverse64(draw()+1) * 0x9e3779b97f4a7c15
		if crowded {
			hash = hash&^(indexed-1) | hash%(indexed-1)&(indexed-8)
		}
		n := 1 + random.Uint64N(heaviest)
		s.add(hash, fmt.Appendf(nil, "%x", hash), n)
		truth[hash] += n
	}
	if err := s.check(truth); err != nil {
		t.Fatal(err)
	}
	for i := range s.used {
		if want := fmt.Sprintf("%x", s.slots[i].hash); s.slots[i].text.String() != want {
			t.Fatalf("key %s is named %s", want, s.slots[i].text.String())
		}
	}
}

// drawn draws one of the given number of keys, evenly or with a few hot ones.
func drawn(t *rapid.T, random *rand.Rand, keys uint64) func() uint64 {
	if rapid.Bool().Draw(t, "evenly") {
		return func() uint64 { return random.Uint64N(keys) }
	}
	return rand.NewZipf(random, rapid.Float64Range(1.01, 3).Draw(t, "skew"), 1, keys-1).Uint64
}

// A key with more than its share of the hits is there, however many others come by.
func TestHeavyKeyIsNotPushedOut(t *testing.T) {
	racetest.Sequential(t)
	s := newSummary()
	random := rand.New(rand.NewPCG(1, 2))
	truth := make(map[uint64]uint64)
	for range 1_000_000 {
		hash := random.Uint64()
		if random.IntN(50) == 0 {
			hash = 7
		}
		s.add(hash, nil, 1)
		truth[hash]++
	}
	if err := s.check(truth); err != nil {
		t.Fatal(err)
	}
	l := s.list()
	for _, e := range l.entries {
		if e.hash == 7 {
			return
		}
	}
	t.Errorf("the key of %d of a million hits is not there", truth[7])
}

// A sum of several summaries has the same properties.
func TestSumKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		truth := make(map[uint64]uint64)
		var hits uint64
		var lists []keyHits
		for range rapid.IntRange(1, 8).Draw(t, "summaries") {
			s := newSummary()
			draw := drawn(t, random, 1000)
			shift := random.Uint64N(50)
			for range rapid.IntRange(0, 5000).Draw(t, "uses") {
				hash := (draw() + shift + 1) * 0x9e3779b97f4a7c15
				s.add(hash, nil, 1)
				truth[hash]++
				hits++
			}
			lists = append(lists, s.list())
		}
		all := sum(lists)
		if all.hits != hits || len(all.entries) > slots {
			t.Fatalf("%d hits of %d, %d entries", all.hits, hits, len(all.entries))
		}
		there := make(map[uint64]bool)
		for _, e := range all.entries {
			there[e.hash] = true
			if n := truth[e.hash]; e.least > n || n > e.most || e.most-e.least > hits/slots {
				t.Fatalf("key %x has %d of %d hits, and is said to have %d to %d", e.hash, n, hits, e.least, e.most)
			}
		}
		for hash, n := range truth {
			if !there[hash] && (n > all.floor || n > 2*hits/slots) {
				t.Fatalf("key %x is not there and has %d of %d hits; others are said to have %d at most", hash, n, hits, all.floor)
			}
		}
	})
}

// Bounds from before a reset do not affect the counts after it.
func TestResetForgetsTheSmallest(t *testing.T) {
	s := newSummary()
	for i := range uint64(slots + 1) {
		s.add(i, nil, 5)
	}
	s.reset()
	truth := make(map[uint64]uint64)
	for i := range uint64(slots + 1) {
		truth[i] = 5
		if i == 0 {
			truth[i] = 1
		}
		s.add(i, nil, truth[i])
	}
	if err := s.check(truth); err != nil {
		t.Error(err)
	}
}

// Sums stay at their maximum, and the key with the most hits stays the first.
func TestSumsOfLargeHits(t *testing.T) {
	s, other := newSummary(), newSummary()
	for i := range uint64(4 * slots) {
		s.add(i, []byte{byte(i)}, 1<<63)
		other.add(i, []byte{byte(i)}, 1<<53)
	}
	all := sum([]keyHits{s.list(), other.list()})
	if all.hits != 1<<64-1 || all.floor != 1<<64-1 {
		t.Errorf("%d hits, at most %d of other keys", all.hits, all.floor)
	}
	for _, e := range all.entries {
		if e.least > e.most {
			t.Errorf("%q has %d to %d hits", e.text, e.least, e.most)
		}
	}
}
