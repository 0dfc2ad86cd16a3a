package usage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func entry(key, value string) descriptor.Entry { return descriptor.Entry{Key: key, Value: value} }

// list returns all pages, and checks that each is within its bound.
func list(t *testing.T, x *Index, now time.Time, count int, where ...descriptor.Entry) (all []string) {
	t.Helper()
	var each [][]descriptor.Entry
	for _, e := range where {
		each = append(each, []descriptor.Entry{e})
	}
	for at := uint64(0); ; {
		found, next, err := x.List(t.Context(), now, "d", each, at, count)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > count {
			t.Errorf("a page of %d, want %d at most", len(found), count)
		}
		for _, entries := range found {
			all = append(all, fmt.Sprint(entries))
		}
		if at = next; at == 0 {
			slices.Sort(all)
			return all
		}
	}
}

func TestDescriptorsAreListedByTheirEntries(t *testing.T) {
	x := New(Options{Store: new(Memory)})
	record := func(key string, ends, moves time.Duration, entries ...descriptor.Entry) {
		x.Record(noon, []byte(key), "d", entries, ends, moves)
	}
	acme, other := entry("tenant", "acme"), entry("tenant", "a")
	record("1", time.Minute, 0, acme)
	record("2", time.Minute, 0, acme, entry("path", "/x"))
	record("3", time.Second, time.Hour, entry("path", "/x"), acme)
	record("4", time.Minute, 0, other, entry("path", "cme"))
	x.Record(noon, []byte("5"), "dd", []descriptor.Entry{acme}, time.Minute, 0)
	x.Flush(t.Context(), noon)
	for _, c := range []struct {
		after time.Duration
		where []descriptor.Entry
		want  []string
	}{
		{0, []descriptor.Entry{acme}, []string{"[{path /x} {tenant acme}]", "[{tenant acme} {path /x}]", "[{tenant acme}]"}},
		{0, []descriptor.Entry{acme, entry("path", "/x")}, []string{"[{path /x} {tenant acme}]", "[{tenant acme} {path /x}]"}},
		{0, []descriptor.Entry{entry("path", "cme")}, []string{"[{tenant a} {path cme}]"}},
		{0, []descriptor.Entry{entry("tenant", "nobody")}, nil},
		{2 * time.Minute, []descriptor.Entry{acme}, []string{"[{path /x} {tenant acme}]"}}, // the others have ended
		{2 * time.Hour, []descriptor.Entry{acme}, nil},
	} {
		for _, count := range []int{1, 2, 100} {
			if got := list(t, x, noon.Add(c.after), count, c.where...); !slices.Equal(got, c.want) {
				t.Errorf("%v after %s in pages of %d: %q, want %q", c.where, c.after, count, got, c.want)
			}
		}
	}
}

// counted is a store that counts its writes.
type counted struct {
	Memory
	writes int
}

func (c *counted) Add(ctx context.Context, now time.Time, sets map[string]map[string]int64) (int, error) {
	c.writes++
	return c.Memory.Add(ctx, now, sets)
}

// A counter is written once per window, and again for the next one.
func TestCounterIsWrittenOncePerWindow(t *testing.T) {
	for name, moves := range map[string]time.Duration{"window": 0, "bucket": time.Minute} {
		store := new(counted)
		x := New(Options{Store: store})
		entries := []descriptor.Entry{entry("tenant", "acme")}
		for i := range 1000 { // ten minutes
			now := noon.Add(time.Duration(i) * 600 * time.Millisecond)
			ends := now.Truncate(time.Minute).Add(time.Minute).Sub(now)
			if moves > 0 {
				ends = time.Duration(i%50) * time.Second
			}
			// answers are not equally fast
			x.Record(now, []byte("k"), "d", entries, ends+time.Duration(i%7)*time.Millisecond, moves)
			x.Flush(t.Context(), now)
			if got := list(t, x, now, 10, entries[0]); len(got) != 1 {
				t.Fatalf("%s: %q after %d uses", name, got, i+1)
			}
		}
		if store.writes < 3 || store.writes > 11 {
			t.Errorf("%s: written %d times in 10 windows", name, store.writes)
		}
	}
}

// sick is a store that fails.
type sick struct {
	Memory
	err error
}

func (s *sick) Add(ctx context.Context, now time.Time, sets map[string]map[string]int64) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.Memory.Add(ctx, now, sets)
}

// Dropped descriptors are counted, and written at the next use.
func TestWhatIsDroppedIsWrittenAtTheNextUse(t *testing.T) {
	const room = shardCount * maxQueue
	const uses = room + 10
	store := &sick{err: errors.New("out of order")}
	x := New(Options{Store: store})
	use := func() {
		for i := range uses {
			x.Record(noon, fmt.Append(nil, i), "d", []descriptor.Entry{entry("tenant", "acme"), entry("n", fmt.Sprint(i))}, time.Minute, 0)
		}
		x.Flush(t.Context(), noon)
	}
	use()
	if n := x.dropped.Load(); n != uses {
		t.Errorf("%d dropped, want all", n)
	}
	store.err = nil
	use()
	kept := len(list(t, x, noon, 1000, entry("tenant", "acme")))
	if n := x.dropped.Load() - uses; kept > room || int(n) != uses-kept {
		t.Errorf("%d listed and %d dropped of %d, want at most %d listed", kept, n, uses, room)
	}
	for range 3 {
		use()
	}
	if got := list(t, x, noon, 1000, entry("tenant", "acme")); len(got) != uses {
		t.Errorf("%d listed, want %d", len(got), uses)
	}
	before := x.dropped.Load()
	x.Record(noon, []byte("long"), "d", []descriptor.Entry{entry("k", strings.Repeat("x", maxBytes))}, time.Minute, 0)
	if n := x.dropped.Load() - before; n != 1 {
		t.Errorf("%d dropped for a descriptor that is too long", n)
	}
}

// However many counters there are, an index remembers a bounded number of them.
func TestFloodOfCountersIsBounded(t *testing.T) {
	x := New(Options{Store: new(Memory)})
	for i := range 2 * shardCount * maxRecent {
		x.Record(noon, binary.AppendUvarint(nil, uint64(i)), "d", []descriptor.Entry{entry("n", "1")}, time.Minute, 0)
		if i%1000 == 0 {
			x.Flush(t.Context(), noon)
		}
	}
	for i := range x.shards {
		if sh := &x.shards[i]; len(sh.until) > maxRecent || len(sh.queue) > maxQueue {
			t.Errorf("shard %d remembers %d counters, and %d wait", i, len(sh.until), len(sh.queue))
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	m := new(Memory)
	texts := make(map[string]int64)
	for i := range maxTexts {
		texts[fmt.Sprint(i)] = noon.UnixMilli() + 1000
	}
	one := map[string]map[string]int64{"other": {"x": noon.UnixMilli() + 100_000}}
	for _, c := range []struct {
		after       time.Duration
		sets        map[string]map[string]int64
		dropped     int
		texts, kept int
	}{
		{0, map[string]map[string]int64{"set": texts}, 0, maxTexts, 1},
		{0, map[string]map[string]int64{"set": {"new": noon.UnixMilli() + 1000}}, 1, maxTexts, 1}, // it is full
		{0, one, 1, maxTexts, 2},    // another domain takes a place
		{time.Minute, nil, 0, 1, 1}, // the others have ended
		{2 * time.Minute, nil, 0, 0, 0},
	} {
		dropped, err := m.Add(t.Context(), noon.Add(c.after), c.sets)
		if err != nil || dropped != c.dropped || m.texts != c.texts || len(m.domains) != c.kept {
			t.Errorf("after %s: %v, %d dropped, %d texts of %d domains; want %+v", c.after, err, dropped, m.texts, len(m.domains), c)
		}
	}
}

// However many descriptors one domain has, those of another domain are listed: whether they come before the flood, in
// the middle of it, or after it.
func TestFloodOfOneDomainHidesNoOther(t *testing.T) {
	x := New(Options{Store: new(Memory)})
	const some = 50
	quiet := func(when string) {
		for i := range some {
			x.Record(noon, fmt.Append(nil, when, i), "d", []descriptor.Entry{entry("tenant", when), entry("n", fmt.Sprint(i))}, time.Minute, 0)
		}
	}
	n := 0
	flood := func(texts, each int) {
		for range texts / each {
			for range each {
				x.Record(noon, binary.AppendUvarint(nil, uint64(n)), "flood", []descriptor.Entry{entry("n", fmt.Sprint(n))}, time.Minute, 0)
				n++
			}
			x.Flush(t.Context(), noon)
		}
	}
	quiet("before")
	flood(maxTexts*3/2, 5_000)
	for range 4 * shardCount * maxQueue { // more than can wait
		x.Record(noon, binary.AppendUvarint(nil, uint64(n)), "flood", []descriptor.Entry{entry("n", fmt.Sprint(n))}, time.Minute, 0)
		n++
	}
	quiet("between")
	flood(maxTexts/2, 5_000)
	quiet("after")
	x.Flush(t.Context(), noon)
	// few find the place of one of their own
	for when, least := range map[string]int{"before": some, "between": some * 8 / 10, "after": some} {
		if got := list(t, x, noon, 1000, entry("tenant", when)); len(got) < least {
			t.Errorf("%s: %d of %d descriptors are listed", when, len(got), some)
		}
	}
}

// Long texts take more memory, so there are fewer of them. They make room when they end.
func TestMemoryOfLongTextsIsBounded(t *testing.T) {
	var m Memory
	now := time.UnixMilli(1_700_000_000_000)
	texts := make(map[string]int64)
	for i := range 2 * maxMemory / maxBytes {
		texts[fmt.Sprintf("%0*d", maxBytes, i)] = now.Add(time.Minute).UnixMilli()
	}
	for range 2 {
		dropped, err := m.Add(t.Context(), now, map[string]map[string]int64{"set": texts})
		if kept := len(texts) - dropped; err != nil || kept*maxBytes > maxMemory || kept*maxBytes < maxMemory*9/10 {
			t.Errorf("%d texts of %d bytes are kept, %v", kept, maxBytes, err)
		}
		now = now.Add(2 * time.Minute)
		for text := range texts {
			texts[text] = now.Add(time.Minute).UnixMilli()
		}
	}
}

func TestPackedEntriesAreReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []descriptor.Entry
		for range rapid.IntRange(0, 5).Draw(t, "entries") {
			entries = append(entries, entry(rapid.String().Draw(t, "key"), rapid.String().Draw(t, "value")))
		}
		text := pack(entries)
		if got, ok := unpack(text); !ok || !slices.Equal(got, entries) {
			t.Errorf("%q became %q", entries, got)
		}
		_, _ = unpack(string(rapid.SliceOf(rapid.Byte()).Draw(t, "foreign"))) // no panic
		if _, ok := unpack(text + "\x05x"); ok {
			t.Error("a text that is cut is read")
		}
	})
}

// A decision about a counter that was recorded allocates nothing.
func TestRecordAllocatesNothing(t *testing.T) {
	x := New(Options{Store: new(Memory)})
	key, entries := []byte("d|tenant=acme|f60"), []descriptor.Entry{entry("tenant", "acme")}
	x.Record(noon, key, "d", entries, time.Minute, 0)
	if n := testing.AllocsPerRun(1000, func() { x.Record(noon, key, "d", entries, time.Minute, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	x := New(Options{Store: new(Memory)})
	key, entries := []byte("d|tenant=acme|f60"), []descriptor.Entry{entry("tenant", "acme")}
	b.ReportAllocs()
	for b.Loop() {
		x.Record(noon, key, "d", entries, time.Minute, 0)
	}
}
