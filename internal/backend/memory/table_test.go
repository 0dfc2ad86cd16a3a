package memory

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	runtimemetrics "runtime/metrics"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// A table behaves like a map of Go, for any hashes and lengths of the keys.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			table  table
			want   = make(map[string]entry)
			hashes = make(map[string]uint64)
			steps  = rapid.IntRange(1, 3000).Draw(t, "steps")
			keys   = rapid.IntRange(1, 600).Draw(t, "keys")
			long   = rapid.SampledFrom([]int{0, 0, 200, 9000, 40_000}).Draw(t, "long")
			hashOf = rapid.SampledFrom([]func(n int) uint64{
				func(n int) uint64 { return uint64(n) * 0x9e3779b97f4a7c15 },
				func(int) uint64 { return 0 },
				func(int) uint64 { return 1<<64 - 1 },                    // all start at the last slot
				func(n int) uint64 { return uint64(n%3) << placeBits },   // three tags next to each other
				func(n int) uint64 { return ^uint64(0) << (n % 4 * 20) }, // four tags far from each other
			}).Draw(t, "hashes")
			random = rapid.Uint64().Draw(t, "seed")
		)
		draw := func(n int) int { // a rapid draw for each step would take too long for tables of any size
			random = random*6364136223846793005 + 1442695040888963407
			return int(random>>33) % n
		}
		for range steps {
			n := draw(keys)
			key := fmt.Append(nil, n)
			if n%5 == 0 {
				key = append(key, bytes.Repeat([]byte{'-'}, draw(2)*long)...)
			}
			hash := hashOf(n)
			hashes[string(key)] = hash
			e := entry{share: uint32(draw(1000)), expires: int64(draw(1000)), state: backend.State{Start: -int64(n), Count: 1 << 40, Prev: int64(draw(9))}}
			if draw(3) == 0 {
				e.state.Tail = make([]uint32, draw(3))
			}
			r := table.find(hash, key)
			if _, found := want[string(key)]; found != (r != nil) {
				t.Fatalf("key %.20q: found %v, want %v", key, r != nil, found)
			}
			switch what := draw(100); {
			case what == 0:
				table.shrink()
			case what == 1:
				now, shares := int64(draw(1000)), []uint32(nil)
				table.expire(now, func(share uint32) { shares = append(shares, share) })
				var wantShares []uint32
				for k, e := range want {
					if e.expires <= now {
						wantShares = append(wantShares, e.share)
						delete(want, k)
					}
				}
				slices.Sort(shares)
				slices.Sort(wantShares)
				if !slices.Equal(shares, wantShares) {
					t.Fatalf("expired counters of the shares %v, want %v", shares, wantShares)
				}
			case what < 40:
				table.remove(hash, key)
				delete(want, string(key))
			case r != nil:
				table.store(r, &e.state, e.expires)
				e.share = want[string(key)].share
				want[string(key)] = e
			default:
				table.add(hash, key, e.share, &counter{state: e.state, expires: e.expires})
				want[string(key)] = e
			}
		}
		check(t, &table, want, hashes)
		table.copy()
		check(t, &table, want, hashes)
		if table.records.waste != 0 {
			t.Errorf("%d bytes of waste in a copy", table.records.waste)
		}
	})
}

// entry is the expected content of a table for a key.
type entry struct {
	share   uint32
	expires int64
	state   backend.State
}

func check(t *rapid.T, table *table, want map[string]entry, hashes map[string]uint64) {
	if table.len() != len(want) {
		t.Fatalf("%d counters, want %d", table.len(), len(want))
	}
	live, tails := 0, 0
	for key, hash := range hashes {
		r := table.find(hash, []byte(key))
		e, found := want[key]
		if found != (r != nil) {
			t.Fatalf("key %.20q: found %v, want %v", key, r != nil, found)
		}
		if !found {
			continue
		}
		var s backend.State
		table.load(r, &s)
		if s.Start != e.state.Start || s.Count != e.state.Count || s.Prev != e.state.Prev || !slices.Equal(s.Tail, e.state.Tail) ||
			r.expires() != e.expires || r.share() != e.share {
			t.Fatalf("key %.20q: %+v, expires %d, share %d, want %+v", key, s, r.expires(), r.share(), e)
		}
		live += len(r.whole())
		if e.state.Tail != nil {
			tails++
		}
	}
	if live != table.records.size-table.records.waste {
		t.Fatalf("records of %d bytes, the table counts %d and %d of waste", live, table.records.size, table.records.waste)
	}
	if n := table.tails.size - len(table.tails.unused); n != tails {
		t.Fatalf("%d tails, want %d", n, tails)
	}
}

// Whatever is added and removed, a table needs little more memory than its counters.
func TestTableKeepsNoWaste(t *testing.T) {
	racetest.Sequential(t)
	var table table
	key := make([]byte, 100)
	for i := range 300_000 {
		key[0], key[1] = byte(i), byte(i>>8)
		hash := uint64(i%(1<<16)) * 0x9e3779b97f4a7c15
		table.remove(hash, key)
		table.add(hash, key, 0, &counter{})
	}
	all := 0
	for _, c := range table.records.chunks {
		all += cap(c)
	}
	if live := table.len() * (recordKey + 1 + len(key)); all > live*3/2 {
		t.Errorf("%d bytes for %d counters of %d bytes in all", all, table.len(), live)
	}
}

// A million counters cost the garbage collector nothing: it has no pointer to follow for them.
func TestCountersHaveNoPointers(t *testing.T) {
	racetest.Sequential(t)
	const counters = 300_000
	scannable := func() uint64 {
		sample := []runtimemetrics.Sample{{Name: "/gc/scan/heap:bytes"}}
		runtime.GC()
		runtime.GC()
		runtimemetrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	s := New(Options{})
	r := backend.Request{Takes: []backend.Take{{Limit: &perMinute, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	key := make([]byte, 0, 64)
	before := scannable()
	for i := range counters {
		r.Takes[0].Key = fmt.Appendf(key, "messaging|to_number=%d|f60", i)
		if err := backend.Await(context.Background(), s, march, &r); err != nil {
			t.Fatal(err)
		}
	}
	after := scannable()
	if s.Len() != int(counters) {
		t.Fatalf("%d counters, want %d", s.Len(), counters)
	}
	t.Logf("%d bytes with pointers before, %d after", before, after)
	if after > before+counters && !racetest.On { // one pointer for each would be eight times that
		t.Errorf("%d bytes with pointers before %d counters, %d after", before, counters, after)
	}
}

// Neighbouring shards do not share a cache line.
func TestShardsFillCacheLines(t *testing.T) {
	if n := unsafe.Sizeof(shard{}); n%64 != 0 {
		t.Errorf("a shard has %d bytes", n)
	}
}

// A take that finds its counter allocates nothing, alone or together with others. A new counter costs a part of a
// chunk.
func TestTakesDoNotAllocate(t *testing.T) {
	s, keys := fill(t, 5000)
	for _, takes := range []int{1, 4, 40} {
		r := backend.Request{Outcomes: make([]backend.Outcome, takes), Together: true}
		for i := range takes {
			r.Takes = append(r.Takes, backend.Take{Key: keys[i], Limit: &perMinute, Hits: 1, Member: i})
		}
		if n := testing.AllocsPerRun(100, func() {
			if err := backend.Await(context.Background(), s, march, &r); err != nil {
				t.Fatal(err)
			}
		}); n != 0 && !racetest.On {
			t.Errorf("%d takes of counters that exist: %v allocations", takes, n)
		}
	}
	one := backend.Request{Takes: []backend.Take{{Limit: &perMinute, Hits: 1}}, Outcomes: make([]backend.Outcome, 1)}
	buf, i := make([]byte, 0, 64), 0
	if n := testing.AllocsPerRun(20, func() {
		for range 10_000 {
			i++
			one.Takes[0].Key = strconv.AppendInt(buf, int64(i), 10)
			if err := backend.Await(context.Background(), s, march, &one); err != nil {
				t.Fatal(err)
			}
		}
	}); n > 1000 && !racetest.On {
		t.Errorf("10,000 new counters: %v allocations", n)
	}
}
