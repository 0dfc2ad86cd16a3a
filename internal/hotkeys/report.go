package hotkeys

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Query says what a report is to be about.
type Query struct {
	Domain string // this domain alone; empty: all
	Rule   string // the rule with this path, and those below it; empty: all
	Limit  int    // keys in each list; 0: 10, at most MaxLimit
	ByUsed bool   // rules stand in the order of what was asked of them, not of what they refused
}

// MaxLimit is how many keys a list may have: what is known of the uses of a rule, and of its refusals.
const MaxLimit = 2 * slots

// Report is what was hot.
type Report struct {
	From, To      time.Time // what it is about
	Refused, Used []Key     // of all rules, the hottest first
	Rules         []RuleReport
}

// RuleReport is what was hot of one rule.
type RuleReport struct {
	Name

	HitsUsed    uint64 // asked of all counters of the rule, exactly
	HitsRefused uint64
	HitsDropped uint64 // asked, but not counted: every "at most" may be too small by so many
	Refused     []Key  // the most refused first
	Used        []Key  // the most asked first
}

// Key is a counter.
type Key struct {
	Name // the rule that it belongs to

	Key           string // as the backend names it; of a long one the beginning and the end. May have any bytes
	Cut           bool   // Key is not all of it
	Used, Refused Range  // hits
}

// Range is between which numbers, both included, the true one is.
type Range struct{ AtLeast, AtMost uint64 }

const defaultLimit = 10

// Top tells what was hot in the minute before now. Decisions do not wait for it.
func (t *Tracker) Top(now time.Time, q Query) Report {
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, MaxLimit)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.meet()
	t.forget(now)
	r := Report{From: t.since, To: now}
	if len(t.past) > 0 {
		r.From = t.past[0]
	}
	scratch := t.fresh()
	for _, b := range t.boards {
		name := *b.rule.name.Load()
		if !q.matches(name) {
			continue
		}
		b.forget(now)
		if rule := b.report(name, scratch, q.Limit); rule.HitsUsed+rule.HitsDropped+rule.HitsRefused > 0 {
			r.Rules = append(r.Rules, rule)
			r.Refused = append(r.Refused, rule.Refused...)
			r.Used = append(r.Used, rule.Used...)
		}
	}
	scratch.reset()
	t.spare = append(t.spare, scratch)

	slices.SortFunc(r.Rules, func(a, b RuleReport) int {
		refused, used := cmp.Compare(b.HitsRefused, a.HitsRefused), cmp.Compare(b.HitsUsed, a.HitsUsed)
		if q.ByUsed {
			refused, used = used, refused
		}
		return cmp.Or(refused, used, cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule))
	})
	r.Refused = first(r.Refused, refusedOf, q.Limit)
	r.Used = first(r.Used, usedOf, q.Limit)
	return r
}

func (q *Query) matches(n Name) bool {
	if q.Domain != "" && n.Domain != q.Domain {
		return false
	}
	below, ok := strings.CutPrefix(n.Rule, q.Rule)
	return q.Rule == "" || ok && (below == "" || below[0] == '.')
}

// report adds up what a board has counted. A lane is locked for as long as copying it takes.
func (b *board) report(name Name, scratch *summary, limit int) RuleReport {
	var used, refused []list
	r := RuleReport{Name: name, HitsDropped: b.dropped.Load() - b.toldDropped}
	for i := range b.past {
		used, refused = append(used, b.past[i].used), append(refused, b.past[i].refused)
		r.HitsDropped += b.past[i].dropped
	}
	for i := range b.width.Load() {
		l := &b.lanes[i]
		for _, c := range []struct {
			of   **summary
			into *[]list
		}{{&l.used, &used}, {&l.refused, &refused}} {
			l.mu.Lock()
			there := *c.of != nil
			if there {
				*scratch = **c.of
			}
			l.mu.Unlock()
			if there {
				*c.into = append(*c.into, scratch.list())
			}
		}
	}
	u, f := sum(used), sum(refused)
	r.HitsUsed, r.HitsRefused = u.hits, f.hits
	keys := join(name, &u, &f)
	r.Refused = first(slices.Clone(keys), refusedOf, limit)
	r.Used = first(keys, usedOf, limit)
	return r
}

// join brings what is known of a key's uses and of its refusals together: what was refused was asked.
func join(name Name, used, refused *list) []Key {
	keys := make([]Key, 0, len(used.entries)+len(refused.entries))
	places := make(map[uint64]int, len(used.entries))
	for _, e := range used.entries {
		places[e.hash] = len(keys)
		keys = append(keys, Key{Name: name, Key: e.text, Cut: e.cut, Used: Range{e.least, e.most}, Refused: Range{0, refused.floor}})
	}
	for _, e := range refused.entries {
		at, known := places[e.hash]
		if !known {
			at = len(keys)
			keys = append(keys, Key{Name: name, Key: e.text, Cut: e.cut, Used: Range{0, used.floor}})
		}
		keys[at].Refused = Range{e.least, e.most}
	}
	for i := range keys {
		k := &keys[i]
		k.Used.AtLeast = max(k.Used.AtLeast, k.Refused.AtLeast)
		k.Used.AtMost = max(k.Used.AtMost, k.Used.AtLeast) // refusals of a rule may have been counted where its uses were dropped
		k.Refused.AtMost = min(k.Refused.AtMost, k.Used.AtMost)
	}
	return keys
}

func usedOf(k *Key) Range    { return k.Used }
func refusedOf(k *Key) Range { return k.Refused }

// first are the keys with most of something, by what is certain. Those of which nothing is certain are left out.
func first(keys []Key, of func(*Key) Range, limit int) []Key {
	keys = slices.DeleteFunc(keys, func(k Key) bool { return of(&k).AtLeast == 0 })
	slices.SortFunc(keys, func(a, b Key) int {
		x, y := of(&a), of(&b)
		return cmp.Or(cmp.Compare(y.AtLeast, x.AtLeast), cmp.Compare(y.AtMost, x.AtMost), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rule, b.Rule))
	})
	return keys[:min(len(keys), limit)]
}
