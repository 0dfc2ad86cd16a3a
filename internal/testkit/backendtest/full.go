package backendtest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// BoundedStore is a store that counts several customers in one counter when it has no room for a counter for each.
type BoundedStore interface {
	backend.Store
	Sweep(now time.Time)
	Len() int
	Holds(key []byte) bool // whether the key has a counter that is not shared
}

// RunFull checks the promises of a store that is much too small for its customers. No customer is allowed more hits
// than alone in a store with room. A customer with a separate counter is counted exactly. A request that is denied as a
// whole consumes nothing. open makes a store for at most that many counters and shared counters.
func RunFull(t *testing.T, open func(most, shared int) BoundedStore) {
	t.Run("property", func(t *testing.T) {
		rapid.Check(t, func(rt *rapid.T) { newCrowd(rt, open).run() })
	})
	t.Run("concurrent", func(t *testing.T) { runFullConcurrent(t, open) })
}

// crowd holds many customers of a small store.
type crowd struct {
	*rapid.T
	store   BoundedStore
	most    int
	now     int64
	rules   []*crowdedRule
	callers map[string]*caller
}

type crowdedRule struct {
	rule        *descriptor.Rule
	limit       *descriptor.Limit
	countDenied bool
	clean       int64 // time from which on no shared counter of the rule can be in use
}

// caller holds the expectations for one customer of one rule.
type caller struct {
	rule  *crowdedRule
	key   []byte
	alone backend.State // state of a separate counter that would have counted all hits that the customer was allowed
	exact bool          // whether the customer has had a separate counter since alone was last unused
	// Where windows start with a hit, the windows of a shared counter start at other times than those of the customer's
	// separate counter would. So allowed hits are checked separately.
	passed []admission
	shared []bool // whether a shared counter allowed it, for each of passed
	from   int64  // when the customer got a separate counter; 0 after a reset
}

func newCrowd(t *rapid.T, open func(most, shared int) BoundedStore) *crowd {
	c := &crowd{T: t, most: rapid.IntRange(1, 64).Draw(t, "most"), callers: make(map[string]*caller)}
	c.store = open(c.most, rapid.SampledFrom([]int{1, 4, 16, 64, 256}).Draw(t, "shared"))
	scale := rapid.SampledFrom(scales).Draw(t, "scale")
	c.now = epoch.UnixMicro() + rapid.Int64Range(0, scale.span.Microseconds()).Draw(t, "begin")
	for i := range rapid.IntRange(1, 3).Draw(t, "rules") {
		l := drawSmall(t, scale.units)
		c.rules = append(c.rules, &crowdedRule{
			rule: &descriptor.Rule{Domain: fmt.Sprint("d", i/2),
				Levels: []descriptor.Level{{Key: fmt.Sprint("rule", i)}}},
			limit:       l,
			countDenied: l.Has(descriptor.SettingCountDenied) && !l.FirstHit && rapid.Bool().Draw(t, "count_denied"),
		})
	}
	return c
}

func (c *crowd) run() {
	crowd := rapid.IntRange(1, 4*c.most).Draw(c.T, "callers")
	for range rapid.IntRange(1, 150).Draw(c.T, "steps") {
		longest := c.rules[0].limit.Window.Length().Microseconds()
		c.now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, longest/20), rapid.Int64Range(0, 2*longest)).Draw(c.T,
			"pause")
		switch rapid.IntRange(0, 19).Draw(c.T, "what") {
		case 0:
			c.sweep()
		case 1:
			c.reset(c.draw(crowd))
		default:
			c.request(crowd)
		}
		if n := c.store.Len(); n > c.most {
			c.Fatalf("%d counters, %d is the most", n, c.most)
		}
	}
}

func (c *crowd) draw(crowd int) *caller {
	r := rapid.SampledFrom(c.rules).Draw(c.T, "rule")
	k := key("", fmt.Sprint(r.rule.Levels[0].Key, rapid.IntRange(0, crowd).Draw(c.T, "caller")), r.limit)
	if c.callers[string(k)] == nil {
		c.callers[string(k)] = &caller{rule: r, key: k}
	}
	return c.callers[string(k)]
}

func (c *crowd) sweep() {
	c.Logf("at %d, sweep", c.now)
	c.store.Sweep(time.UnixMicro(c.now))
	for _, who := range c.callers {
		who.exact = who.exact && c.store.Holds(who.key)
	}
}

func (c *crowd) reset(who *caller) {
	r, held := who.rule, c.store.Holds(who.key)
	if err := c.store.Reset(context.Background(), []backend.Counter{{Key: who.key, Limit: r.limit,
		Rule: r.rule}}); err != nil {
		c.Fatal(err)
	}
	c.Logf("at %d, reset of %s, a counter of its own: %v, then %v", c.now, who.key, held, c.store.Holds(who.key))
	switch {
	case c.store.Holds(who.key):
		who.alone, who.passed, who.shared, who.from, who.exact = backend.State{}, nil, nil, 0, true
		if got := c.peek(who); got.Used != 0 {
			c.Fatalf("%s: %d in use after a reset", limitText(r.limit), got.Used)
		}
	case held: // the counter is gone: the customer starts again
		who.alone, who.passed, who.shared, who.from, who.exact = backend.State{}, nil, nil, 0, false
	}
}

func (c *crowd) peek(who *caller) backend.Outcome {
	return one(c.T, c.store, time.UnixMicro(c.now), backend.Take{Key: who.key, Limit: who.rule.limit, Rule: who.rule.rule})
}

func (c *crowd) request(crowd int) {
	var who []*caller
	before := make(map[*caller]backend.Outcome)
	r := &backend.Request{Together: rapid.Bool().Draw(c.T, "together")}
	counted := false
	for range rapid.IntRange(1, 4).Draw(c.T, "takes") {
		w := c.draw(crowd)
		if _, twice := before[w]; twice {
			continue
		}
		before[w] = c.peek(w)
		hits := rapid.SampledFrom([]int64{1, 1, 1, 1, 2, 3, 0, -1, -2}).Draw(c.T, "hits")
		if w.rule.limit.FirstHit {
			hits = max(hits, 0)
		}
		counted = counted || hits < 0 || w.rule.countDenied
		r.Takes = append(r.Takes, backend.Take{Key: w.key, Limit: w.rule.limit, Rule: w.rule.rule, Hits: hits,
			Member: len(who), CountDenied: w.rule.countDenied})
		who = append(who, w)
	}
	held := make([]bool, len(who))
	for i, w := range who {
		held[i] = c.store.Holds(w.key)
	}
	r.Outcomes = make([]backend.Outcome, len(who))
	if err := backend.Await(context.Background(), c.store, time.UnixMicro(c.now), r); err != nil {
		c.Fatal(err)
	}
	denied := r.Together && backend.Denied(r.Takes, r.Outcomes)
	for i, w := range who {
		c.Logf("at %d, take of %s, together %v: %s, %d hits: %s, a counter of its own: %v, then %v", c.now, w.key, r.Together,
			limitText(w.rule.limit), r.Takes[i].Hits, outcomeText(&r.Outcomes[i]), held[i], c.store.Holds(w.key))
		c.check(w, r, i, held[i], denied)
		if after := c.peek(w); denied && !counted && after.Used != before[w].Used {
			c.Fatalf("%s: a denied request has changed what is used from %d to %d", limitText(w.rule.limit), before[w].Used,
				after.Used)
		}
	}
}

// check compares the outcome of a take with the outcome that its customer would get if there were no other.
func (c *crowd) check(w *caller, r *backend.Request, i int, held, denied bool) {
	t, o, holds := &r.Takes[i], &r.Outcomes[i], c.store.Holds(w.key)
	if t.Hits > 0 && !holds {
		l := t.Limit
		w.rule.clean = c.now + l.Window.Length().Microseconds()*int64(4+l.Capacity()/max(1, l.Requests))
	}
	if !held {
		// If no shared counter is in use, the new counter starts empty, and it is exact from now on.
		w.exact = holds && c.now > w.rule.clean
		if w.exact {
			w.alone = backend.State{}
		}
		w.from = c.now
	}
	alone, counts := *t, t.Hits < 0 || t.Hits > 0 && (o.Allowed && !denied || !o.Allowed && t.CountDenied)
	if !counts {
		alone.Hits = 0
	}
	if used := backend.Peek(&alone, &w.alone, c.now).Used; alone.Hits < 0 && o.Used < o.Before && used+alone.Hits < 0 {
		// A counter that started with the hits of others holds more than its customer's hits, so a refund of more than these
		// may be carried out. Alone, it gives back all of them.
		alone.Hits = -used
	}
	var want [1]backend.Outcome
	backend.Settle([]backend.Take{alone}, []*backend.State{&w.alone}, want[:], backend.At(c.now))
	switch {
	case w.exact && held && !denied && counts && want[0] != *o:
		c.Fatalf("%s, %d hits: a counter of its own says %s, and should say %s", limitText(t.Limit), t.Hits, outcomeText(o),
			outcomeText(&want[0]))
	case t.Hits > 0 && o.Allowed && !denied && !t.Limit.FirstHit && !want[0].Allowed:
		c.Fatalf("%s, %d hits: admitted, and alone denied: %s", limitText(t.Limit), t.Hits, outcomeText(&want[0]))
	case t.Hits > 0 && o.Allowed && !denied && t.Limit.FirstHit:
		w.passed = append(w.passed, admission{c.now, t.Hits})
		w.shared = append(w.shared, !holds)
		c.checkFirstHit(w)
	}
}

// checkFirstHit checks a limit whose windows start with a hit: against the promise of every shared counter, and against
// the window that starts when the customer gets a separate counter.
func (c *crowd) checkFirstHit(w *caller) {
	l := w.rule.limit
	length, most := l.Window.Length().Microseconds(), int64(l.Requests)
	if l.Interval {
		checkBound(c.T, l, w.passed)
		return
	}
	since := c.now
	if c.store.Holds(w.key) {
		since = w.from
	}
	// hits allowed by a shared counter in the window before, and by the separate one since
	sum, end := int64(0), since+length
	for i, p := range w.passed {
		switch {
		case w.shared[i] && p.at > since-length:
			sum += p.hits
		case w.shared[i] || p.at < since:
		case p.at >= end:
			end, sum = p.at+length, p.hits
		default:
			sum += p.hits
		}
		if sum > most {
			c.Fatalf("%d in the window that ends at %d", sum, end)
		}
	}
}

// runFullConcurrent lets many callers use a small store at the same time. Each customer is allowed at most the limit,
// and exactly the limit if it had a counter before.
func runFullConcurrent(t *testing.T, open func(most, shared int) BoundedStore) {
	const most, each, perCaller = 64, 40, 10
	for name, l := range EveryAlgorithm(perCaller) {
		t.Run(name, func(t *testing.T) {
			s := open(most, 256)
			rule := &descriptor.Rule{Domain: "d", Levels: []descriptor.Level{{Key: "k"}}}
			var admitted [workers * 4]atomic.Int64
			take := func(ctx context.Context, all ...int) error {
				r := backend.Request{Together: true, Outcomes: make([]backend.Outcome, len(all))}
				for i, who := range all {
					r.Takes = append(r.Takes, backend.Take{Key: key("", fmt.Sprint(who), l), Limit: l, Rule: rule, Hits: 1, Member: i})
				}
				err := backend.Await(ctx, s, epoch, &r)
				if err == nil && !backend.Denied(r.Takes, r.Outcomes) {
					for _, who := range all {
						admitted[who].Add(1)
					}
				}
				return err
			}
			const old = 8
			for who := range old {
				if err := take(t.Context(), who); err != nil {
					t.Fatal(err)
				}
			}
			var sweeping sync.WaitGroup
			ctx, stop := context.WithCancel(t.Context())
			sweeping.Go(func() {
				for ctx.Err() == nil {
					s.Sweep(epoch)
				}
			})
			together(t, func(worker int) error {
				for i := range each {
					late := func(n int) int { return old + (worker*4+n)%(len(admitted)-old) }
					for _, all := range [][]int{{i % old}, {late(i)}, {late(i), late(i + 7)}, {late(i + 9), i % old, late(i + 1)}} {
						if err := take(t.Context(), all...); err != nil {
							return err
						}
					}
				}
				return nil
			})
			stop()
			sweeping.Wait()
			for who := range admitted {
				if n := admitted[who].Load(); n > perCaller || who < old && n != perCaller {
					t.Errorf("caller %d: %d admitted, the limit is %d", who, n, perCaller)
				}
			}
			if s.Len() > most {
				t.Errorf("%d counters, %d is the most", s.Len(), most)
			}
		})
	}
}
