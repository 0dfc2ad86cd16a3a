package operator

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// hour remembers what each rule did in each of the last 60 minutes. It reads the rules' counters once a minute, so that decisions
// pay nothing. Only rules that had hits in a minute take memory for it: 12 bytes each.
type hour struct {
	totals func() (*descriptor.Tree, func(index int) *limiter.RuleTotals)

	mu      sync.Mutex
	tree    *descriptor.Tree // whose indexes all below has; nil: there were no rules yet
	last    []ruleHits       // by Rule.Index: the counters when the present minute began
	minutes []minute         // the oldest first, without the present one
}

// ruleHits are counters of a rule since the process began.
type ruleHits struct{ all, refused uint64 }

// minute is what rules did in a minute.
type minute struct {
	at    time.Time    // when it began
	rules []ruleMinute // by index
	cut   bool         // it had more rules than there was room for
}

// ruleMinute is what a rule did in a minute. A number that is too large is the largest.
type ruleMinute struct {
	rule            int32 // index
	passed, refused uint32
}

const (
	hourMinutes = 60

	// maxMinuteRules bounds the memory: of a minute with more rules, those are kept that refused most, and then those with
	// most hits.
	maxMinuteRules = 10_000
)

// run remembers each minute when it ends.
func (h *hour) run(ctx context.Context) {
	for {
		now := time.Now()
		next := time.NewTimer(now.Truncate(time.Minute).Add(time.Minute).Sub(now))
		select {
		case <-next.C:
			h.end(time.Now())
		case <-ctx.Done():
			next.Stop()
			return
		}
	}
}

// end ends the present minute. now is at most half a minute from the end of that minute by the clock.
func (h *hour) end(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	tree, totals := h.totals()
	if tree == nil {
		return
	}
	h.follow(tree, totals)
	m := minute{at: now.Add(-30 * time.Second).Truncate(time.Minute)}
	for i := range h.last {
		is, ok := hitsOf(totals(i))
		if !ok {
			continue
		}
		if row := h.since(i, is); row.passed > 0 || row.refused > 0 {
			m.rules = append(m.rules, row)
		}
		h.last[i] = is
	}
	m.keep(maxMinuteRules)
	if len(h.minutes) == hourMinutes {
		h.minutes = slices.Delete(h.minutes, 0, 1)
	}
	h.minutes = append(h.minutes, m)
}

// keep drops the least important rules until there are n.
func (m *minute) keep(n int) {
	if len(m.rules) > n {
		ranks := make([]uint64, len(m.rules))
		for i, r := range m.rules {
			ranks[i] = r.rank()
		}
		slices.Sort(ranks)
		least := ranks[len(ranks)-n]
		above, _ := slices.BinarySearch(ranks, least+1)
		equal := n - (len(ranks) - above) // how many with the rank least have room
		m.rules = slices.DeleteFunc(m.rules, func(r ruleMinute) bool {
			if r.rank() == least {
				equal--
				return equal < 0
			}
			return r.rank() < least
		})
		m.cut = true
	}
	m.rules = slices.Clone(m.rules) // without the room that append left
}

// rank is larger for a rule that is more important.
func (r ruleMinute) rank() uint64 { return uint64(r.refused)<<32 | uint64(r.passed) }

func hitsOf(t *limiter.RuleTotals) (ruleHits, bool) {
	if t == nil {
		return ruleHits{}, false
	}
	return ruleHits{t.Hits, t.Refused}, true
}

// since is what a rule did since the present minute began. The counters are read one after the other while decisions change
// them, so that a rule may seem to have refused more than it had.
func (h *hour) since(i int, is ruleHits) ruleMinute {
	all, refused := less(is.all, h.last[i].all), less(is.refused, h.last[i].refused)
	return ruleMinute{int32(i), narrow(less(all, refused)), narrow(refused)}
}

func less(a, b uint64) uint64 { return a - min(a, b) }

func narrow(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// follow gives what is remembered the indexes of the rules now in force. What is remembered of rules that are gone is dropped. A
// new rule begins with what its counters say now: they may be older than the rule.
func (h *hour) follow(tree *descriptor.Tree, totals func(index int) *limiter.RuleTotals) {
	if tree == h.tree {
		return
	}
	last := make([]ruleHits, len(tree.Rules))
	if h.tree != nil {
		type identity struct{ domain, path string }
		was := make(map[identity]int, len(h.tree.Rules))
		for i, r := range h.tree.Rules {
			was[identity{r.Domain, r.Path}] = i
		}
		now := make([]int32, len(h.tree.Rules))
		for i := range now {
			now[i] = -1
		}
		for i, r := range tree.Rules {
			if before, ok := was[identity{r.Domain, r.Path}]; ok {
				last[i], now[before] = h.last[before], int32(i)
			} else {
				last[i], _ = hitsOf(totals(i))
			}
		}
		for i := range h.minutes {
			m := &h.minutes[i]
			for j := range m.rules {
				m.rules[j].rule = now[m.rules[j].rule]
			}
			m.rules = slices.DeleteFunc(m.rules, func(r ruleMinute) bool { return r.rule < 0 })
			slices.SortFunc(m.rules, func(a, b ruleMinute) int { return cmp.Compare(a.rule, b.rule) })
		}
	}
	h.tree, h.last = tree, last
}

// hourView is what rules did in the last hour, up to a time.
type hourView struct {
	*hour
	now    time.Time
	totals func(index int) *limiter.RuleTotals
}

// view calls do with the rules in force and what they did. Nothing is remembered meanwhile.
func (h *hour) view(now time.Time, do func(*descriptor.Tree, *hourView) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	tree, totals := h.totals()
	if tree == nil {
		return do(nil, nil)
	}
	h.follow(tree, totals)
	return do(tree, &hourView{h, now, totals})
}

// of returns what a rule did: for each minute in which it had hits how many minutes ago that was, hits that passed, and hits that
// were refused. The present minute comes first.
func (v *hourView) of(i int) [][3]uint64 {
	rows := [][3]uint64{}
	add := func(ago int64, m ruleMinute) {
		if m.passed > 0 || m.refused > 0 {
			rows = append(rows, [3]uint64{uint64(ago), uint64(m.passed), uint64(m.refused)})
		}
	}
	if is, ok := hitsOf(v.totals(i)); ok {
		add(0, v.since(i, is))
	}
	for _, m := range slices.Backward(v.minutes) {
		at, found := slices.BinarySearchFunc(m.rules, int32(i), func(r ruleMinute, i int32) int { return cmp.Compare(r.rule, i) })
		if ago := v.ago(&m); found && ago > 0 {
			add(ago, m.rules[at])
		}
	}
	return rows
}

// ago is how many minutes ago a minute was; 0: that is not in the last hour, because the clock was set.
func (v *hourView) ago(m *minute) int64 {
	ago := int64(v.now.Truncate(time.Minute).Sub(m.at) / time.Minute)
	if ago < 1 || ago > hourMinutes {
		return 0
	}
	return ago
}

// refused returns, by Rule.Index, which rules refused something.
func (v *hourView) refused() []bool {
	refused := make([]bool, len(v.last))
	for i := range refused {
		is, ok := hitsOf(v.totals(i))
		refused[i] = ok && v.since(i, is).refused > 0
	}
	for i := range v.minutes {
		m := &v.minutes[i]
		if v.ago(m) == 0 {
			continue
		}
		for _, r := range m.rules {
			refused[r.rule] = refused[r.rule] || r.refused > 0
		}
	}
	return refused
}

// cuts returns for how many minutes some rules are not known.
func (v *hourView) cuts() int {
	n := 0
	for i := range v.minutes {
		if v.minutes[i].cut && v.ago(&v.minutes[i]) > 0 {
			n++
		}
	}
	return n
}
