package operator

import (
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// ruleCounters is rules with counters that a test sets.
type ruleCounters struct {
	tree *descriptor.Tree

	mu   sync.Mutex
	hits map[string]limiter.RuleTotals // by path
}

func (c *ruleCounters) RuleTotals() (*descriptor.Tree, func(index int) *limiter.RuleTotals) {
	return c.tree, func(i int) *limiter.RuleTotals {
		c.mu.Lock()
		defer c.mu.Unlock()
		t, ok := c.hits[c.tree.Rules[i].Path]
		if !ok {
			return nil
		}
		return &t
	}
}

func (*ruleCounters) Totals() (t limiter.Totals) { return t }

func (c *ruleCounters) add(path string, hits, refused uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.hits[path]
	c.hits[path] = limiter.RuleTotals{Hits: t.Hits + hits, Refused: t.Refused + refused}
}

// treeOf has a rule for each value of the key k.
func treeOf(t *testing.T, values ...string) *descriptor.Tree {
	t.Helper()
	spec := descriptor.DomainSpec{Name: "d"}
	for _, value := range values {
		rule := &descriptor.Rule{Limits: []descriptor.Limit{{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}}}}
		spec.Children = append(spec.Children, descriptor.NodeSpec{Key: "k", Value: value, Rule: rule})
	}
	tree, err := descriptor.Compile([]descriptor.DomainSpec{spec}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// hourOf is what an hour says of all rules, by path.
func hourOf(t *testing.T, h *hour, now time.Time) map[string][][3]uint64 {
	t.Helper()
	all := make(map[string][][3]uint64)
	_ = h.view(now, func(tree *descriptor.Tree, v *hourView) error {
		refused := v.refused()
		for i, r := range tree.Rules {
			rows := v.of(i)
			if len(rows) > 0 {
				all[r.Path] = rows
			}
			some := false
			for _, row := range rows {
				some = some || row[2] > 0
			}
			if some != refused[i] {
				t.Errorf("%s: refused %t, but %v", r.Path, refused[i], rows)
			}
		}
		return nil
	})
	return all
}

func sameHour(t *testing.T, h *hour, now time.Time, want map[string][][3]uint64) {
	t.Helper()
	if got := hourOf(t, h, now); !reflect.DeepEqual(got, want) {
		t.Errorf("at %s: %v, want %v", now.Format(time.TimeOnly), got, want)
	}
}

// Each minute has what a rule did in it, also when rules are loaded again meanwhile. After an hour it is gone.
func TestHourOfRules(t *testing.T) {
	c := &ruleCounters{tree: treeOf(t, "a", "b", "c"), hits: map[string]limiter.RuleTotals{"d.k_a": {}, "d.k_b": {}, "d.new": {}}} // c has no counters of its own
	h := &hour{totals: c.RuleTotals}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sameHour(t, h, at, map[string][][3]uint64{})
	c.add("d.k_a", 10, 4)
	sameHour(t, h, at.Add(10*time.Second), map[string][][3]uint64{"d.k_a": {{0, 6, 4}}})
	h.end(at.Add(time.Minute + time.Millisecond))
	c.add("d.k_b", 5, 0)
	now := at.Add(time.Minute + 20*time.Second)
	sameHour(t, h, now, map[string][][3]uint64{"d.k_a": {{1, 6, 4}}, "d.k_b": {{0, 5, 0}}})

	// b moves to the front, a goes, and a new rule has counters that are older than it is.
	c.hits["d.k_e"] = limiter.RuleTotals{Hits: 1000, Refused: 500}
	c.tree = treeOf(t, "b", "c", "e")
	sameHour(t, h, now, map[string][][3]uint64{"d.k_b": {{0, 5, 0}}})
	c.add("d.k_e", 3, 3)
	h.end(at.Add(2 * time.Minute))
	c.add("d.k_b", 1<<40, 1)
	sameHour(t, h, at.Add(2*time.Minute), map[string][][3]uint64{"d.k_b": {{0, math.MaxUint32, 1}, {1, 5, 0}}, "d.k_e": {{1, 0, 3}}})

	for i := range 60 {
		h.end(at.Add(time.Duration(3+i) * time.Minute))
	}
	sameHour(t, h, at.Add(62*time.Minute), map[string][][3]uint64{"d.k_b": {{60, math.MaxUint32, 1}}})
	sameHour(t, h, at.Add(63*time.Minute), map[string][][3]uint64{})
	sameHour(t, h, at.Add(-63*time.Minute), map[string][][3]uint64{}) // the clock was set back
}

// A minute ends when the clock's does.
func TestHourFollowsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &ruleCounters{tree: treeOf(t, "a"), hits: map[string]limiter.RuleTotals{}}
		h := &hour{totals: c.RuleTotals}
		<-time.After(25 * time.Second) // of the test's clock
		go h.run(t.Context())
		began := time.Now()
		for range 3 {
			c.add("d.k_a", 1, 0)
			<-time.After(time.Minute)
			synctest.Wait()
		}
		sameHour(t, h, began.Add(3*time.Minute), map[string][][3]uint64{"d.k_a": {{1, 1, 0}, {2, 1, 0}, {3, 1, 0}}})
	})
}

// However many rules have hits in every minute, the memory has a bound: 7.4 MB, and 16 bytes for each rule. (With 100,000 rules this
// test measured 8,982,640 bytes.) Rules that refuse are kept.
func TestHourIsBounded(t *testing.T) {
	const n = 20_000
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprint(i)
	}
	tree := treeOf(t, values...)
	minutes := uint64(0)
	totals := func() (*descriptor.Tree, func(int) *limiter.RuleTotals) {
		return tree, func(i int) *limiter.RuleTotals {
			r := &limiter.RuleTotals{Hits: minutes * 10}
			if i%50 == 0 {
				r.Refused = minutes
			}
			return r
		}
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	h := &hour{totals: totals}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	began := time.Now()
	for range 62 {
		minutes++
		at = at.Add(time.Minute)
		h.end(at)
	}
	took, size := time.Since(began)/62, heap()-before
	t.Logf("%d bytes, %v for each minute", size, took)
	if size > 7_700_000+16*n {
		t.Errorf("%d bytes", size)
	}
	_ = h.view(at, func(_ *descriptor.Tree, v *hourView) error {
		if got := v.of(0); len(got) != 60 || got[0] != [3]uint64{1, 9, 1} {
			t.Errorf("a rule that refuses did %v", got)
		}
		if v.cuts() != 60 {
			t.Errorf("%d minutes are cut", v.cuts())
		}
		return nil
	})
	runtime.KeepAlive(h)
}

// A minute keeps the rules that refused most, and then those with most hits.
func TestMinuteKeeps(t *testing.T) {
	row := func(rule int32, passed, refused uint32) ruleMinute { return ruleMinute{rule, passed, refused} }
	m := minute{rules: []ruleMinute{row(0, 9, 0), row(1, 9, 0), row(2, 0, 1), row(3, 9, 0), row(4, math.MaxUint32, math.MaxUint32), row(5, 8, 0)}}
	m.keep(4)
	if want := []ruleMinute{row(0, 9, 0), row(1, 9, 0), row(2, 0, 1), row(4, math.MaxUint32, math.MaxUint32)}; !m.cut || !slices.Equal(m.rules, want) {
		t.Errorf("%v", m)
	}
}
