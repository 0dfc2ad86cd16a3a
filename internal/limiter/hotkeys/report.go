package hotkeys

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Query selects and orders the contents of a report.
type Query struct {
	Domain string // only this domain; empty means all
	Rule   string // the rule with this path, and those below it; empty means all
	Limit  int    // keys in each list, at most MaxLimit; 0 means 10
	ByUsed bool   // rules are sorted by hits used, not by hits denied
}

// MaxLimit is the longest list of keys: a rule has one summary of uses and one of denials.
const MaxLimit = 2 * slots

// Report lists the hottest counters of the last minute. Its JSON uses the names of the admin service.
type Report struct {
	From   time.Time    `json:"from"` // start of counting
	To     time.Time    `json:"to"`
	Denied []Key        `json:"most_denied,omitzero"` // keys of all rules, the hottest first; nil is left out of JSON
	Used   []Key        `json:"most_used,omitzero"`
	Rules  []RuleReport `json:"rules"`
}

// RuleReport lists the hottest counters of one rule.
type RuleReport struct {
	Name

	HitsUsed   uint64 `json:"hits_used"` // exact number of hits of all the rule's counters, denied or not
	HitsDenied uint64 `json:"hits_denied"`
	// hits that were not counted; each AtMost of the rule may be too small by this number
	HitsDropped uint64 `json:"hits_dropped"`
	Denied      []Key  `json:"most_denied,omitzero"` // the most denied first; nil in JSON: left out
	Used        []Key  `json:"most_used,omitzero"`
}

// Key is a counter.
type Key struct {
	Name // its rule

	Key    string `json:"-"`   // the backend's key, with the middle of a long one cut out. It may contain any bytes
	Text   string `json:"key"` // Key as Printable writes it
	Cut    bool   `json:"cut"` // Key is not the whole key
	Used   Range  `json:"used"`
	Denied Range  `json:"denied"`
}

// Range bounds a number of hits that is not known exactly; both bounds are included.
type Range struct {
	AtLeast uint64 `json:"at_least"`
	AtMost  uint64 `json:"at_most"`
}

const defaultLimit = 10

// Top reports the hottest counters in the minute before now. Decisions do not wait for it.
func (t *Tracker) Top(now time.Time, q Query) Report {
	if q.Limit <= 0 {
		q.Limit = defaultLimit
	}
	q.Limit = min(q.Limit, MaxLimit)

	t.mu.Lock()
	defer t.mu.Unlock()
	t.collect()
	t.forget(now)
	r := Report{From: t.since, To: now, Rules: []RuleReport{}}
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
		if rule := b.report(name, scratch, q.Limit); rule.HitsUsed+rule.HitsDropped+rule.HitsDenied > 0 {
			r.Rules = append(r.Rules, rule)
			r.Denied = append(r.Denied, rule.Denied...)
			r.Used = append(r.Used, rule.Used...)
		}
	}
	scratch.reset()
	t.spare = append(t.spare, scratch)

	slices.SortFunc(r.Rules, func(a, b RuleReport) int {
		denied, used := cmp.Compare(b.HitsDenied, a.HitsDenied), cmp.Compare(b.HitsUsed, a.HitsUsed)
		if q.ByUsed {
			denied, used = used, denied
		}
		return cmp.Or(denied, used, cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule))
	})
	r.Denied = first(r.Denied, deniedOf, q.Limit)
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

// report sums the hits that a board counted. A lane is locked only while it is copied.
func (b *board) report(name Name, scratch *summary, limit int) RuleReport {
	var used, denied []keyHits
	r := RuleReport{Name: name, HitsDropped: b.dropped.Load() - b.pastDropped}
	for i := range b.past {
		used, denied = append(used, b.past[i].used), append(denied, b.past[i].denied)
		r.HitsDropped += b.past[i].dropped
	}
	for i := range b.width.Load() {
		l := &b.lanes[i]
		for _, c := range []struct {
			of   **summary
			into *[]keyHits
		}{{&l.used, &used}, {&l.denied, &denied}} {
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
	u, f := sum(used), sum(denied)
	r.HitsUsed, r.HitsDenied = u.hits, f.hits
	keys := join(name, &u, &f)
	r.Denied = first(slices.Clone(keys), deniedOf, limit)
	r.Used = first(keys, usedOf, limit)
	return r
}

// join merges the uses and the denials of each key. A denied hit is a used hit too.
func join(name Name, used, denied *keyHits) []Key {
	keys := make([]Key, 0, len(used.entries)+len(denied.entries))
	places := make(map[uint64]int, len(used.entries))
	for _, e := range used.entries {
		places[e.hash] = len(keys)
		keys = append(keys, Key{Name: name, Key: e.text, Cut: e.cut, Used: Range{e.least, e.most},
			Denied: Range{0, denied.floor}})
	}
	for _, e := range denied.entries {
		at, known := places[e.hash]
		if !known {
			at = len(keys)
			keys = append(keys, Key{Name: name, Key: e.text, Cut: e.cut, Used: Range{0, used.floor}})
		}
		keys[at].Denied = Range{e.least, e.most}
	}
	for i := range keys {
		k := &keys[i]
		k.Used.AtLeast = max(k.Used.AtLeast, k.Denied.AtLeast)
		k.Used.AtMost = max(k.Used.AtMost, k.Used.AtLeast) // uses may have been dropped although their denials were counted
		k.Denied.AtMost = min(k.Denied.AtMost, k.Used.AtMost)
	}
	return keys
}

func usedOf(k *Key) Range   { return k.Used }
func deniedOf(k *Key) Range { return k.Denied }

// first returns the keys with the highest lower bound of uses or denials. Keys whose lower bound is 0 are left out.
func first(keys []Key, of func(*Key) Range, limit int) []Key {
	keys = slices.DeleteFunc(keys, func(k Key) bool { return of(&k).AtLeast == 0 })
	slices.SortFunc(keys, func(a, b Key) int {
		x, y := of(&a), of(&b)
		return cmp.Or(cmp.Compare(y.AtLeast, x.AtLeast), cmp.Compare(y.AtMost, x.AtMost), cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Rule, b.Rule))
	})
	keys = keys[:min(len(keys), limit)]
	for i := range keys {
		keys[i].Text = Printable(keys[i].Key)
	}
	return keys
}
