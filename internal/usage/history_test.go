package usage

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lastHour returns the hour of one counter as text: the minutes in which something was counted, by how long ago they began.
func lastHour(t *testing.T, x *Index, now time.Time, key string) string {
	t.Helper()
	all, err := x.History(t.Context(), now, [][]byte{[]byte(key)})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || len(all[0]) != HistoryMinutes {
		t.Fatalf("%d histories", len(all))
	}
	var b strings.Builder
	for i, m := range all[0] {
		if want := now.Truncate(time.Minute).Add(time.Duration(i-HistoryMinutes+1) * time.Minute); !m.At.Equal(want) {
			t.Errorf("minute %d begins at %s, want %s", i, m.At, want)
		}
		if m.Allowed.Hits+m.Refused.Hits > 0 {
			fmt.Fprintf(&b, "%d:%d+%d ", HistoryMinutes-1-i, m.Allowed.Hits, m.Refused.Hits)
		}
	}
	return strings.TrimSpace(b.String())
}

func TestHistoryOfACounter(t *testing.T) {
	x := New(Options{Store: new(Memory), Sketches: new(MemorySketches)})
	key := []byte("k")
	if got := lastHour(t, x, noon, "k"); got != "" {
		t.Errorf("%q before anything was counted", got)
	}
	count := func(after time.Duration, hits int64, refused bool) { x.Count(noon.Add(after), key, hits, refused) }
	flush := func(after time.Duration) { x.FlushHistory(t.Context(), noon.Add(after)) }
	count(0, 3, false)
	count(time.Second, 2, true)
	flush(10 * time.Second)
	count(59*time.Second, 4, false)
	flush(60*time.Second + 20*time.Millisecond) // a moment late
	count(65*time.Second, 5, true)
	flush(70 * time.Second)
	flush(119*time.Second + 999*time.Millisecond) // a moment early
	count(121*time.Second, 6, false)
	for _, c := range []struct {
		after time.Duration
		want  string
	}{
		{125 * time.Second, "2:7+2 1:0+5 0:6+0"},
		{59*time.Minute + 59*time.Second, "59:7+2 58:0+5 57:6+0"},
		{60 * time.Minute, "59:0+5 58:6+0"},
		{3 * time.Hour, ""},
	} {
		if got := lastHour(t, x, noon.Add(c.after), "k"); got != c.want {
			t.Errorf("after %s: %q, want %q", c.after, got, c.want)
		}
	}
	if got := lastHour(t, x, noon.Add(125*time.Second), "another"); got != "" {
		t.Errorf("another counter has %q", got)
	}
}

// With many counters estimates are never too low, and too high within the bound for 98 of 100 at least.
func TestErrorOfHistoryIsBounded(t *testing.T) {
	x := New(Options{Store: new(Memory), Sketches: new(MemorySketches)})
	const counters, looked = 50_000, 2_000
	var keys [][]byte
	hits := func(i int) int64 { return int64(1 + i%7 + 1_000_000/(i+1)) } // some are used far more than others
	var counted [2]int64
	for i := range counters {
		counted[i%2] += hits(i)
		keys = append(keys, fmt.Appendf(nil, "domain|user=%d|f60", i))
		x.Count(noon, keys[i], hits(i), i%2 == 0)
	}
	all, err := x.History(t.Context(), noon, keys[counters-looked:]) // the least used ones, whose estimates suffer most
	if err != nil {
		t.Fatal(err)
	}
	over := 0
	for j := range all {
		i, m := counters-looked+j, all[j][HistoryMinutes-1]
		got := m.Allowed
		if i%2 == 0 {
			got = m.Refused
		}
		if int64(got.Hits) < hits(i) {
			t.Fatalf("counter %d: %d, which is less than the %d that were counted", i, got.Hits, hits(i))
		}
		if int64(got.Hits) > hits(i)+int64(got.Error) {
			over++
		}
		if want := math.E / 4096 * float64(counted[i%2]); got.Error != uint32(want) {
			t.Fatalf("the bound is %d, want %f", got.Error, want)
		}
	}
	if over > looked*2/100 {
		t.Errorf("%d of %d estimates are beyond the bound", over, looked)
	}
}

func TestHistoryStaysAtItsMaximum(t *testing.T) {
	x := New(Options{Store: new(Memory), Sketches: new(MemorySketches)})
	for range 3 {
		x.Count(noon, []byte("k"), 1<<32, false)
		x.Count(noon, []byte("k"), 1<<31, true)
		x.FlushHistory(t.Context(), noon)
	}
	if got, want := lastHour(t, x, noon, "k"), fmt.Sprintf("0:%d+%d", uint32(math.MaxUint32), uint32(math.MaxUint32)); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Hits that are counted while others are written are neither lost nor counted twice.
func TestHistoryCountsWhileItIsWritten(t *testing.T) {
	x := New(Options{Store: new(Memory), Sketches: new(MemorySketches)})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20_000 {
				x.Count(noon, []byte("k"), 1, false)
			}
		})
	}
	for range 50 {
		x.FlushHistory(t.Context(), noon)
	}
	wg.Wait()
	if got := lastHour(t, x, noon.Add(askedEvery), "k"); got != "0:80000+0" {
		t.Errorf("%q", got)
	}
}

// Whatever the clock does, minutes in memory are bounded.
func TestMinutesInMemoryAreBounded(t *testing.T) {
	m := new(MemorySketches)
	for _, step := range []int64{1, 100, -100_000, -1, 7} {
		for i := range int64(200) {
			if err := m.AddTo(t.Context(), 1_000_000+i*step, []uint32{0, Cells - 1}, []uint32{1, 1}); err != nil {
				t.Fatal(err)
			}
			if len(m.minutes) > HistoryMinutes {
				t.Fatalf("%d minutes", len(m.minutes))
			}
		}
	}
	got, err := m.Read(t.Context(), 1_000_000+199*7, 1, []uint32{0, 1, Cells - 1})
	if err != nil || fmt.Sprint(got) != "[[1 0 1]]" {
		t.Errorf("%v, %v: cells of a minute that was forgotten are used again", got, err)
	}
}

type sickSketches struct {
	MemorySketches
	err error
}

func (s *sickSketches) AddTo(ctx context.Context, minute int64, cells, hits []uint32) error {
	if s.err != nil {
		return s.err
	}
	return s.MemorySketches.AddTo(ctx, minute, cells, hits)
}

// Hits that cannot be written are dropped and counted. Later ones are written.
func TestHistoryThatCannotBeWritten(t *testing.T) {
	s := &sickSketches{err: errors.New("out of order")}
	x := New(Options{Store: new(Memory), Sketches: s})
	x.Count(noon, []byte("k"), 3, false)
	x.Count(noon, []byte("k"), 4, true)
	x.FlushHistory(t.Context(), noon)
	if n := x.history.dropped.Load(); n != 7 {
		t.Errorf("%d hits dropped, want 7", n)
	}
	s.err = nil
	x.Count(noon, []byte("k"), 1, false)
	if got := lastHour(t, x, noon.Add(askedEvery-1), "k"); got != "" {
		t.Errorf("%q: it was written again at once", got)
	}
	if got := lastHour(t, x, noon.Add(askedEvery), "k"); got != "0:1+0" {
		t.Errorf("%q", got)
	}
}

// Run writes hits every ten seconds and when a minute ends, and the rest when it ends.
func TestRunWritesHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := new(MemorySketches)
		x := New(Options{Store: new(Memory), Sketches: m})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- x.Run(ctx) }()
		written := func() (n uint32) {
			for i := range HistoryMinutes {
				got, err := m.Read(t.Context(), minuteOf(time.Now())-int64(i), 1, []uint32{sumCell})
				if err != nil {
					t.Fatal(err)
				}
				n += got[0][0]
			}
			return n
		}
		for i := range uint32(10) {
			x.Count(time.Now(), []byte("k"), 1, false)
			<-time.After(historyEvery) // of the test's clock
			synctest.Wait()
			if n := written(); n != i+1 {
				t.Errorf("%d hits written after %d", n, i+1)
			}
		}
		x.Count(time.Now(), []byte("k"), 1, false)
		stop()
		if err := <-done; err != nil || written() != 11 {
			t.Errorf("%d hits written at the end: %v", written(), err)
		}
	})
}

func TestCountAllocatesNothing(t *testing.T) {
	x := New(Options{Store: new(Memory), Sketches: new(MemorySketches)})
	key := []byte("d|tenant=acme|f60")
	x.Count(noon, key, 1, false)
	if n := testing.AllocsPerRun(1000, func() { x.Count(noon, key, 1, false) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
