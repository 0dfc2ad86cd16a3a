package hotkeys

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func after(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// newRule is a tracker since noon, and one of its rules.
func newRule(o Options) (*Tracker, *Rule) {
	t := New(noon, o)
	return t, t.Rules([]Name{{Domain: "d", Rule: "d.k"}})[0]
}

func (r *Rule) use(key string, times int, denied bool) {
	for range times {
		r.Count(0, []byte(key), 1, denied)
	}
}

// shown is a list as a test writes it: key, denied, used.
func shown(keys []Key) []string {
	text := func(r Range) string {
		if r.AtLeast == r.AtMost {
			return fmt.Sprint(r.AtLeast)
		}
		return fmt.Sprintf("%d-%d", r.AtLeast, r.AtMost)
	}
	var lines []string
	for _, k := range keys {
		lines = append(lines, k.Key+" "+text(k.Denied)+" "+text(k.Used))
	}
	return lines
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestFewKeysAreExact(t *testing.T) {
	tr := New(noon, Options{})
	rules := tr.Rules([]Name{{"d", "d.a", false}, {"d", "d.b", true}, {"e", "e.a", false}, {"e", "e.idle", false}})
	rules[0].use("x", 5, false)
	rules[0].use("x", 2, true)
	rules[0].use("y", 9, false)
	rules[1].use("z", 3, true)
	rules[2].Count(3, []byte("w"), 100, false)
	rules[2].Count(3, []byte("w"), 0, true)   // a peek
	rules[2].Count(3, []byte("w"), -50, true) // a refund
	tr.Rotate(after(10))
	rules[0].use("x", 1, true)

	r := tr.Top(after(12), Query{})
	same(t, "most denied", []string{"x 3 8", "z 3 3"}, shown(r.Denied))
	same(t, "most used", []string{"w 0 100", "y 0 9", "x 3 8", "z 3 3"}, shown(r.Used))
	if !r.From.Equal(noon) || !r.To.Equal(after(12)) {
		t.Errorf("from %v to %v", r.From, r.To)
	}
	var rulesGot []string
	for _, of := range r.Rules {
		rulesGot = append(rulesGot, fmt.Sprint(of.Rule, " ", of.Shadow, " ", of.HitsDenied, " ", of.HitsUsed, " ", shown(of.Denied), shown(of.Used)))
	}
	same(t, "rules", []string{"d.a false 3 17 [x 3 8] [y 0 9 x 3 8]", "d.b true 3 3 [z 3 3] [z 3 3]", "e.a false 0 100 [] [w 0 100]"}, rulesGot)

	for name, c := range map[string]struct {
		q    Query
		want []string
	}{
		"a domain":         {Query{Domain: "e"}, []string{"w 0 100"}},
		"a rule":           {Query{Rule: "d.b"}, []string{"z 3 3"}},
		"above rules":      {Query{Rule: "d"}, []string{"y 0 9", "x 3 8", "z 3 3"}},
		"half a name":      {Query{Rule: "d.", Domain: "d"}, nil},
		"another's domain": {Query{Rule: "d.a", Domain: "e"}, nil},
		"one":              {Query{Limit: 1}, []string{"w 0 100"}},
	} {
		same(t, name, c.want, shown(tr.Top(after(12), c.q).Used))
	}
	if byUsed := tr.Top(after(12), Query{ByUsed: true}); byUsed.Rules[0].Rule != "e.a" {
		t.Errorf("by use, %s comes first", byUsed.Rules[0].Rule)
	}
}

// A report covers at most a minute, and at least the last 50 seconds.
func TestOldUsesAreForgotten(t *testing.T) {
	tr, r := newRule(Options{})
	for second := 1; second <= 200; second++ {
		r.use("k", 1, second%2 == 0)
		now := after(float64(second))
		if second%10 == 0 {
			tr.Rotate(now)
		}
		got := tr.Top(now, Query{})
		seconds := now.Sub(got.From).Seconds()
		n := got.Used[0].Used
		if n.AtLeast != n.AtMost || float64(n.AtLeast) != seconds || seconds > 60 || seconds < min(50, float64(second)) {
			t.Fatalf("in second %d: %+v of the last %v s", second, n, seconds)
		}
	}
	for second := 210; second <= 270; second += 10 {
		tr.Rotate(after(float64(second)))
	}
	if got := tr.Top(after(270), Query{}); len(got.Rules)+len(got.Used)+len(got.Denied) != 0 {
		t.Errorf("after a minute of silence: %+v", got)
	}
	if n := tr.lists.Load(); n != 0 {
		t.Errorf("%d lists are in use after a minute of silence", n)
	}
	r.use("k", 2, false)
	same(t, "used again", []string{"k 0 2"}, shown(tr.Top(after(271), Query{}).Used))
}

func TestRunEndsSubWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := New(time.Now(), Options{})
		r := tr.Rules([]Name{{Domain: "d", Rule: "d.k"}})[0]
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- tr.Run(ctx) }()
		r.use("old", 3, false)
		time.Sleep(45 * time.Second) //nolint:forbidigo // virtual time
		r.use("new", 1, false)
		same(t, "after 45 s", []string{"old 0 3", "new 0 1"}, shown(tr.Top(time.Now(), Query{}).Used))
		time.Sleep(20 * time.Second) //nolint:forbidigo // virtual time
		got := tr.Top(time.Now(), Query{})
		same(t, "after 65 s", []string{"new 0 1"}, shown(got.Used))
		if d := got.To.Sub(got.From); d != 55*time.Second {
			t.Errorf("after 65 s the report is about %v", d)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A million values neither take memory nor hide the key that is denied.
func TestMillionKeysAreBounded(t *testing.T) {
	racetest.Sequential(t)
	before := heap()
	tr, r := newRule(Options{})
	long := strings.Repeat("v", 150)
	for i := range 1_000_000 {
		r.Count(0, fmt.Appendf(nil, "d|%s%d|f60", long, i), 1, true)
		if i%20 == 0 {
			r.Count(0, []byte("d|attacker|f60"), 1, true)
		}
		if i%100_000 == 0 {
			tr.Rotate(after(float64(i) / 100_000))
		}
	}
	grown := heap() - before
	if grown > 1<<20 {
		t.Errorf("a million keys take %d bytes", grown)
	}
	got := tr.Top(after(20), Query{})
	if k := got.Denied[0]; k.Key != "d|attacker|f60" || k.Denied.AtLeast > 50_000 || k.Denied.AtMost < 50_000 || k.Denied.AtMost-k.Denied.AtLeast > 1_050_000/slots {
		t.Errorf("most denied is %+v, want the attacker's 50,000", k)
	}
	if r := got.Rules[0]; r.HitsUsed != 1_050_000 || r.HitsDenied != 1_050_000 {
		t.Errorf("%d hits, %d denied", r.HitsUsed, r.HitsDenied)
	}
	runtime.KeepAlive(tr)
}

// The bounds of a report hold for every distribution over lanes and sub-windows.
func TestReportKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tr := New(noon, Options{})
		r := tr.Rules([]Name{{Domain: "d", Rule: "d.k"}})[0]
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		used, denied := make(map[string]uint64), make(map[string]uint64)
		var hits, hitsDenied uint64
		for second := range rapid.IntRange(1, 5).Draw(t, "sub-windows") {
			draw := drawn(t, random, uint64(rapid.IntRange(1, 1000).Draw(t, "keys")))
			lanes := rapid.SampledFrom([]uint32{1, 1, 3, 8}).Draw(t, "lanes")
			over := uint64(rapid.IntRange(0, 1000).Draw(t, "over")) // keys from here on are denied
			for range rapid.IntRange(0, 3000).Draw(t, "uses") {
				n := draw()
				key := fmt.Sprint(n)
				r.Count(random.Uint32(), []byte(key), 1, n >= over)
				if b := r.board.Load(); b.width.Load() < lanes { // simulates decisions that met in a lane
					b.width.Store(lanes)
				}
				used[key]++
				hits++
				if n >= over {
					denied[key]++
					hitsDenied++
				}
			}
			tr.Rotate(after(10 * float64(second+1)))
		}
		got := tr.Top(after(51), Query{Limit: MaxLimit})
		if hits == 0 {
			return
		}
		if r := got.Rules[0]; r.HitsUsed != hits || r.HitsDenied != hitsDenied || r.HitsDropped != 0 {
			t.Fatalf("%d hits, %d denied, %d dropped, want %d, %d and none", r.HitsUsed, r.HitsDenied, r.HitsDropped, hits, hitsDenied)
		}
		for _, c := range []struct {
			what  string
			keys  []Key
			of    func(*Key) Range
			truth map[string]uint64
			hits  uint64
		}{{"used", got.Used, usedOf, used, hits}, {"denied", got.Denied, deniedOf, denied, hitsDenied}} {
			listed := make(map[string]bool)
			for i := range c.keys {
				k := &c.keys[i]
				listed[k.Key] = true
				for _, is := range []struct {
					Range
					n, hits uint64
				}{{k.Used, used[k.Key], hits}, {k.Denied, denied[k.Key], hitsDenied}} {
					if is.n < is.AtLeast || is.n > is.AtMost || is.AtMost-is.AtLeast > is.hits/64 {
						t.Fatalf("most %s: key %s is said to have %d to %d, and has %d of %d", c.what, k.Key, is.AtLeast, is.AtMost, is.n, is.hits)
					}
				}
			}
			for key, n := range c.truth {
				if n > c.hits/64 && !listed[key] {
					t.Fatalf("most %s: key %s is not there, and has %d of %d hits", c.what, key, n, c.hits)
				}
			}
		}
	})
}

// With every list in use and full of the longest keys for the whole time, the default needs the memory that its flag
// documents.
func TestMemoryAtTheBound(t *testing.T) {
	before := heap()
	tr := New(noon, Options{})
	var names []Name
	for i := range 200 {
		names = append(names, Name{Domain: "d", Rule: fmt.Sprintf("d.%03d", i)})
	}
	rules := tr.Rules(names)
	key := []byte(strings.Repeat("v", 2*textSize))
	for second := 1; second <= 8; second++ {
		for _, r := range rules {
			for i := range 2 * slots {
				r.Count(0, fmt.Appendf(key[:2*textSize-4], "%04d", i), 1, true)
			}
		}
		tr.Rotate(after(10 * float64(second)))
	}
	if grown := heap() - before; grown > 55e6 || tr.lists.Load() != 256 {
		t.Errorf("%d lists take %d bytes, want 256 that take 55 MB at most", tr.lists.Load(), grown)
	} else {
		t.Logf("%d bytes", grown)
	}
	if got := tr.Top(after(81), Query{}); got.Rules[0].Rule != Overflow {
		t.Errorf("nothing ran over: %+v", got.Rules[0])
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Rules that find no list share one, and get their own when others are idle.
func TestListsRunOut(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	tr := New(noon, Options{Keys: 3 * slots, Metrics: prom.With(registry)})
	var names []Name
	for i := range 20 {
		names = append(names, Name{Domain: "d", Rule: fmt.Sprintf("d.%02d", i)})
	}
	rules := tr.Rules(names)
	for i, r := range rules {
		r.use(fmt.Sprint("key", i), i+1, i%2 == 1)
	}
	got := tr.Top(after(1), Query{Limit: 100})
	if len(got.Used) != 20 || got.Used[0].Key != "key19" || got.Used[0].Rule != Overflow || got.Used[0].Used != (Range{20, 20}) {
		t.Errorf("most used: %v", shown(got.Used))
	}
	lists := map[string]uint64{}
	for _, r := range got.Rules {
		lists[r.Rule] = r.HitsUsed
	}
	// The first rule takes one list, the second one two: one for uses, one for denials.
	same(t, "rules with lists", map[string]uint64{"d.00": 1, "d.01": 2, Overflow: 207}, lists)
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP ratelimitd_hot_keys_overflow_total Uses tracked in the shared list.
# TYPE ratelimitd_hot_keys_overflow_total counter
ratelimitd_hot_keys_overflow_total 207
# HELP ratelimitd_hot_keys_dropped_total Uses not tracked.
# TYPE ratelimitd_hot_keys_dropped_total counter
ratelimitd_hot_keys_dropped_total 0
`)); err != nil {
		t.Error(err)
	}
	for second := 10.0; second <= 80; second += 10 {
		tr.Rotate(after(second))
	}
	rules[7].use("again", 1, true)
	rules[7].use("again", 1, false)
	same(t, "after the others are idle", []string{"again 1 2"}, shown(tr.Top(after(81), Query{Rule: "d.07"}).Used))
}

// A list of denials is given back when there are no more denials, while the rule is still used.
func TestListOfDenialsIsGivenBack(t *testing.T) {
	tr, r := newRule(Options{})
	r.use("k", 1, true)
	for second := 10.0; second <= 90; second += 10 {
		r.use("k", 1, false)
		tr.Rotate(after(second))
	}
	if n := tr.lists.Load(); n != 1 {
		t.Errorf("%d lists in use, want 1", n)
	}
	r.use("k", 1, true)
	if got := tr.Top(after(91), Query{}); got.Denied[0].Denied != (Range{1, 1}) || tr.lists.Load() != 2 {
		t.Errorf("denied again: %+v, %d lists", got.Denied, tr.lists.Load())
	}
}

// A reload keeps the counts, including those of removed rules, and marks the rules that are now in shadow.
func TestReload(t *testing.T) {
	tr, r := newRule(Options{})
	r.use("k", 1, true)
	next := tr.Rules([]Name{{Domain: "d", Rule: "d.k", Shadow: true}, {Domain: "d", Rule: "d.new"}})
	if next[0] != r {
		t.Error("a rule that stayed has another handle")
	}
	next[0].use("k", 1, true)
	tr.Rules(nil)
	tr.Rotate(after(10))
	if back := tr.Rules([]Name{{Domain: "d", Rule: "d.k", Shadow: true}}); back[0] != r {
		t.Error("a rule that was gone for a moment has another handle")
	}
	got := tr.Top(after(11), Query{})
	if same(t, "denied", []string{"k 2 2"}, shown(got.Denied)); !got.Rules[0].Shadow || !got.Denied[0].Shadow {
		t.Errorf("the rule is in shadow mode: %+v", got.Rules)
	}
	twice := tr.Rules([]Name{{Domain: "d", Rule: "same"}, {Domain: "d", Rule: "same"}})
	if twice[0] != twice[1] {
		t.Error("two rules of one name have two lists")
	}
}

func TestCountDoesNotAllocate(t *testing.T) {
	_, r := newRule(Options{})
	keys := make([][]byte, 4*slots)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "d|%d|f60", i)
	}
	i := 0
	count := func() {
		r.Count(1, keys[i%len(keys)], 1, i%3 == 0)
		i++
	}
	for range len(keys) {
		count()
	}
	if n := testing.AllocsPerRun(5000, count); n > 0 {
		t.Errorf("%v allocations for a use", n)
	}
}

// Decisions, readers and rotations run at the same time: nothing is lost or counted twice, except uses reported as
// dropped.
func TestAtOnce(t *testing.T) {
	const counters, uses = 8, 20_000
	tr := New(noon, Options{})
	tr.width = mostLanes // simulates a machine with as many processors
	rules := tr.Rules([]Name{{"d", "d.a", false}, {"d", "d.b", false}})
	stop := make(chan struct{})
	var counting, reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				tr.Top(after(1), Query{})
				tr.Rules([]Name{{"d", "d.a", false}, {"d", "d.b", true}})
				tr.Rotate(after(1)) // within one sub-window's time: nothing is forgotten, but boards that are idle close
			}
		}
	})
	for g := range counters {
		counting.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 0))
			zipf := rand.NewZipf(random, 1.2, 1, 10_000)
			for i := range uses {
				rules[i%2].Count(uint32(g), fmt.Appendf(nil, "%d", zipf.Uint64()), 1, i%4 == 0)
				if i%100 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	counting.Wait()
	close(stop)
	reading.Wait()
	got := tr.Top(after(2), Query{})
	var used, denied, dropped uint64
	for _, r := range got.Rules {
		used += r.HitsUsed
		denied += r.HitsDenied
		dropped += r.HitsDropped
	}
	// A use that is dropped because a board was closed twice under it is only in the metric.
	if total := tr.dropped.Load(); used+total != counters*uses || dropped > total || denied > counters*uses/4 || denied+total < counters*uses/4 {
		t.Errorf("%d used, %d denied, %d (%d) dropped of %d", used, denied, dropped, total, counters*uses)
	}
	if tr.dropped.Load() > counters*uses/20 {
		t.Errorf("%d of %d uses were dropped", tr.dropped.Load(), counters*uses)
	}
	if len(got.Used) == 0 || got.Used[0].Key != "0" {
		t.Errorf("most used: %v", shown(got.Used))
	}
}

// A use that finds every lane taken is dropped, and the report counts it.
func TestUseIsDroppedRatherThanWaitedFor(t *testing.T) {
	tr, r := newRule(Options{})
	tr.width = 2
	r.use("k", 1, false)
	b := r.board.Load()
	b.lanes[0].mu.Lock()
	r.Count(0, []byte("k"), 1, false) // makes a second lane
	b.lanes[1].mu.Lock()
	r.Count(0, []byte("k"), 5, false)
	b.lanes[0].mu.Unlock()
	r.Count(1, []byte("k"), 1, true) // the second is taken
	b.lanes[1].mu.Unlock()
	for range 2 { // before and after the end of a sub-window
		got := tr.Top(after(11), Query{})
		if same(t, "used", []string{"k 1 3"}, shown(got.Used)); got.Rules[0].HitsDropped != 5 {
			t.Errorf("%d hits dropped, want 5", got.Rules[0].HitsDropped)
		}
		tr.Rotate(after(10))
	}
	if tr.dropped.Load() != 1 {
		t.Errorf("%d uses dropped, want 1", tr.dropped.Load())
	}
}

// A decision may still hold a board that was taken from an idle rule: its counts there would be lost.
func TestClosedBoardIsNotCountedIn(t *testing.T) {
	tr, r := newRule(Options{})
	r.use("k", 1, false)
	b := r.board.Load()
	for second := 10.0; second <= 70; second += 10 {
		tr.Rotate(after(second))
	}
	if b.count(0, 1, []byte("k"), 1, true) || tr.lists.Load() != 0 {
		t.Errorf("a closed board counts; %d lists in use", tr.lists.Load())
	}
	r.board.Store(b) // simulates a decision that looked before
	r.use("k", 1, false)
	if tr.dropped.Load() != 1 {
		t.Errorf("%d uses dropped, want 1", tr.dropped.Load())
	}
}

// Bounds for denials also bound uses, and vice versa.
func TestUsesAndDenialsAgree(t *testing.T) {
	used := keyHits{hits: 100, floor: 7, entries: []hitBounds{{hash: 1, least: 10, most: 12, text: "a"}, {hash: 2, least: 1, most: 8, text: "b"}}}
	denied := keyHits{hits: 50, floor: 9, entries: []hitBounds{{hash: 1, least: 11, most: 20, text: "a"}, {hash: 3, least: 5, most: 6, text: "c"}, {hash: 4, least: 8, most: 9, text: "d"}}}
	same(t, "keys", []string{"a 11-12 11-12", "b 0-8 1-8", "c 5-6 5-7", "d 8 8"}, shown(join(Name{}, &used, &denied)))
}

// A denial that finds no list of its rule is counted where rules share one; its use is not counted twice.
func TestDenialWithoutAList(t *testing.T) {
	tr, r := newRule(Options{Keys: slots})
	r.use("k", 3, true)
	got := tr.Top(after(1), Query{})
	same(t, "most denied", []string{"k 3 3"}, shown(got.Denied))
	same(t, "most used", []string{"k 0 3", "k 3 3"}, shown(got.Used))
	if of := got.Rules[0]; of.Rule != Overflow || of.HitsDenied != 3 || of.HitsUsed != 0 || got.Rules[1].HitsUsed != 3 || got.Rules[1].HitsDenied != 0 {
		t.Errorf("%+v", got.Rules)
	}
}
