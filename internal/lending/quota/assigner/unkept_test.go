package assigner_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
	"github.com/ratelimitd/ratelimitd/internal/lending/quota/assigner"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// room counts the bytes in use.
type room struct{ kept atomic.Int64 }

func (r *room) Add(bytes int64) { r.kept.Add(bytes) }

func (*room) Free() int64 { return math.MaxInt64 }

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Buckets without a rule, and ids that are too long, use no memory, however many of them a stream names.
func TestNothingIsKeptWithoutARule(t *testing.T) {
	racetest.Sequential(t)
	room := new(room)
	inWorld(t, assigner.Options{Room: room}, []descriptor.NodeSpec{node("k", limitOf(10, descriptor.Second))}, func(w *world) {
		for key, want := range map[string]quota.Kind{"nobody": quota.AllowAll, "k": quota.DenyAll} {
			s := w.Open("client")
			padding := strings.Repeat("x", 60_000)
			before := heap()
			const n = 1000
			for i := range n {
				s.Report(time.Now(), "d", []assigner.Usage{{ID: []descriptor.Entry{pair(key, fmt.Sprint(i, padding))}, Allowed: 1}})
				got, err := next(s)
				if err != nil || len(got) != 1 || got[0].Assignment.Kind != want || got[0].Assignment.TTL != 15*time.Second {
					t.Fatalf("%s: %d actions, %v", key, len(got), err)
				}
				s.Sent(time.Now())
			}
			w.pass(time.Second)
			if more := heap() - before; more > 8<<20 {
				t.Errorf("%s: %d ids of 60 kB take %d bytes", key, n, more)
			}
			if g := room.kept.Load(); g != 0 {
				t.Errorf("%s: %d bytes are kept", key, g)
			}
			s.Close(time.Now())
		}
	})
}

// The ids of all buckets are bounded in bytes. A single stream may use half of them, and the memory is free after the
// end of the stream.
func TestBytesOfIDs(t *testing.T) {
	racetest.Sequential(t)
	room := new(room)
	const most = 8 << 20
	inWorld(t, assigner.Options{Room: room, MaxBytes: most}, []descriptor.NodeSpec{node("k", limitOf(1_000_000, descriptor.Second))}, func(w *world) {
		before := heap()
		fill := func() (*assigner.Stream, int) {
			s, n := w.Open("client"), 0
			for i := range 3000 {
				s.Report(time.Now(), "d", []assigner.Usage{{ID: []descriptor.Entry{pair("k", fmt.Sprintf("%p-%d-%s", s, i, strings.Repeat("x", 4000)))}, Allowed: 1}})
			}
			for {
				w.pass(time.Second)
				got := held(s)
				if n += got; got == 0 {
					return s, n
				}
			}
		}
		large, n := fill()
		if g := room.kept.Load(); g > most/2 || g < most/4 || n < 400 || n > 700 {
			t.Errorf("one stream: %d bytes of %d, %d assignments", g, most, n)
		}
		if more := heap() - before; more > 2*most { // counters in memory keep separate copies
			t.Errorf("one stream: %d bytes of memory", more)
		}
		small, n := fill()
		if g := room.kept.Load(); g > most || n < 150 {
			t.Errorf("two streams: %d bytes of %d, %d assignments for the second", g, most, n)
		}
		large.Close(time.Now())
		small.Close(time.Now())
		large, small = nil, nil
		w.pass(11 * time.Minute) // limits without requests stay for ten minutes, if there is room
		if g := room.kept.Load(); g != 0 {
			t.Errorf("after the streams have ended: %d bytes are kept", g)
		}
		if more := heap() - before; more > most/2 {
			t.Errorf("after the streams have ended: %d bytes of memory", more)
		}
	})
}

// A client that reports and does not read costs at most its part of all bytes, and nothing after its end.
func TestAnswersThatNobodyReads(t *testing.T) {
	room := new(room)
	const most = 1 << 20
	inWorld(t, assigner.Options{Room: room, MaxBytes: most}, []descriptor.NodeSpec{node("k", limitOf(10, descriptor.Second))}, func(w *world) {
		s := w.Open("client")
		usages := make([]assigner.Usage, 1000)
		for i := range usages {
			usages[i] = assigner.Usage{ID: []descriptor.Entry{pair("nobody", fmt.Sprint(i, strings.Repeat("x", 1000)))}, Allowed: 1}
		}
		for range 20 {
			s.Report(time.Now(), "d", usages)
		}
		if g := room.kept.Load(); g > most/2 || g < most/4 {
			t.Errorf("%d bytes of %d", g, most)
		}
		all, err := next(s)
		if err != nil || len(all) == 0 || len(all) > 500 {
			t.Errorf("%d actions at once, %v", len(all), err)
		}
		s.Close(time.Now())
		if g := room.kept.Load(); g != 0 {
			t.Errorf("%d bytes after its end", g)
		}
	})
}

// An added rule and a removed one reach a client; an idle bucket without a rule is abandoned.
func TestRuleThatAppears(t *testing.T) {
	ruled, other := node("k", limitOf(0, descriptor.Second)), node("other", limitOf(10, descriptor.Second))
	inWorld(t, assigner.Options{Idle: time.Minute}, []descriptor.NodeSpec{other}, func(w *world) {
		c := w.join(10, pair("k", "a"))
		for range 3 {
			w.pass(6 * time.Second)
			if !c.holds(quota.AllowAll) {
				t.Errorf("without a rule: %s", c.Held.Kind)
			}
			w.limiter.Swap(treeOf(t, ruled, other), limiter.Settings{})
			w.pass(6 * time.Second)
			if !c.holds(quota.DenyAll) {
				t.Errorf("with a rule: %s", c.Held.Kind)
			}
			w.limiter.Swap(treeOf(t, other), limiter.Settings{})
			w.pass(2 * time.Second)
			if !c.holds(quota.AllowAll) {
				t.Errorf("after the rule has gone: %s", c.Held.Kind)
			}
		}
		w.pass(20 * time.Second)
		if !c.holds(quota.AllowAll) {
			t.Errorf("it is not renewed: %s", c.Held.Kind)
		}
		c.Demand = 0
		w.pass(2 * time.Minute)
		if c.abandoned == 0 {
			t.Error("an idle bucket is not abandoned")
		}
	})
}

// Streams name different buckets, all with a rule, and read nothing. Their memory is bounded, a newcomer gets its
// assignments, and after their end no memory is used.
func TestBytesOfAllThatIsKept(t *testing.T) {
	racetest.Sequential(t)
	room := new(room)
	const most = 64 << 20
	inWorld(t, assigner.Options{Room: room, MaxBytes: most}, []descriptor.NodeSpec{node("k", limitOf(1000, descriptor.Hour))}, func(w *world) {
		usages := func(of string, n int) []assigner.Usage {
			all := make([]assigner.Usage, n)
			for i := range all {
				all[i] = assigner.Usage{ID: []descriptor.Entry{pair("k", fmt.Sprint(of, i))}, Allowed: 1}
			}
			return all
		}
		before := heap()
		var streams []*assigner.Stream
		for i := range 40 {
			s := w.Open("attacker")
			streams = append(streams, s)
			s.Report(time.Now(), "d", usages(fmt.Sprint(i, "-"), 2000))
			w.pass(time.Second)
		}
		if g := room.kept.Load(); g > most || g < most*2/3 {
			t.Errorf("40 streams: %d bytes of %d", g, most)
		}
		if more := heap() - before; more > most*3/2 { // counters in memory are not part of it
			t.Errorf("40 streams: %d bytes of memory, the bound is %d", more, most)
		}
		newcomer := w.Open("newcomer")
		newcomer.Report(time.Now(), "d", usages("new", 5))
		w.pass(time.Second)
		if n := held(newcomer); n != 5 {
			t.Errorf("the newcomer has %d assignments of 5", n)
		}
		for _, s := range append(streams, newcomer) {
			s.Close(time.Now())
		}
		w.pass(2 * time.Minute) // the assignments have expired, and the limits are per hour
		if g := room.kept.Load(); g > most/2 {
			t.Errorf("2 minutes after their end: %d bytes", g)
		}
		w.pass(12 * time.Minute)
		if g := room.kept.Load(); g != 0 {
			t.Errorf("after their end: %d bytes are kept", g)
		}
	})
}
