package simulate

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// engine is the limiter of the service with a memory store, on a clock that follows the log.
type engine struct {
	limiter *limiter.Limiter
	store   denyingStore
	tree    *descriptor.Tree

	decision limiter.Decision
	denials  []denial           // denials of the current batch's requests
	domain   *descriptor.Domain // domain of the previous request, usually the same one
	named    string

	most         int       // counters that the store may hold
	swept        time.Time // when expired counters were last dropped
	left         int       // how many counters remained then
	rules        []ruleCount
	unknown      int64  // requests whose domain has no rules
	firstUnknown string // the domain of the first of them
	noRule       int64  // requests that no rule matches
	inactive     int64  // requests that match only rules of which no limit applies at their time
	notEnforced  int64  // requests that passed although some limit was over
	overridden   int64  // requests with a descriptor that was decided with an override
	failures     int64
	failure      error // the first one
}

// denyingStore is a store that records every limit that denies: an answer names only one limit, and none of a rule in
// shadow mode.
type denyingStore struct {
	*memory.Store
	denied []deniedTake // the denied takes of the current request
	// time that requests are in flight, in microseconds; 0 means as long as the rule lets them keep a place
	lasts int64
	whole []wholeLimit // whole limits of the current request
}

// wholeLimit is the limit of a take that was made to last as long as requests do.
type wholeLimit struct {
	take  int
	limit *descriptor.Limit
}

// deniedTake is a take that was denied.
type deniedTake struct {
	descriptor int
	limit      *descriptor.Limit // pointer for comparisons only: the limit of an override is reused after the take
	name       string
}

// ruleCount has the results of one rule.
type ruleCount struct {
	requests    int64   // descriptors that match it
	denied      int64   // descriptors over the limit in a denied request
	notEnforced int64   // descriptors over the limit that did not cause a denial: shadow mode, quota mode
	newly       int64   // requests that it denies and the other directory's rules let pass
	limits      []int64 // denials per limit, enforced or not
}

func newEngine(rules *Rules, o *Options) *engine {
	tree := rules.Tree
	e := &engine{tree: tree, most: cmp.Or(o.MaxCounters, memory.DefaultMaxCounters),
		rules: make([]ruleCount, len(tree.Rules))}
	// When memory is full, the service would let customers share counters. Here a request that needs another counter fails
	// instead, and the report warns about it.
	e.store.Store = memory.New(memory.Options{MaxCounters: e.most, Shared: -1})
	e.store.lasts = o.Duration.Microseconds()
	e.limiter = limiter.New(limiter.Options{Store: &e.store})
	e.limiter.Swap(tree, o.Settings)
	e.limiter.SetOverrides(rules.Overrides)
	return e
}

// Start settles the takes of one request immediately, and records the denied takes.
func (s *denyingStore) Start(ctx context.Context, now time.Time, _ *backend.Batch, r *backend.Request,
	_ func(error)) (settled bool, err error) {
	s.whole = s.whole[:0]
	for i := range r.Takes {
		l := r.Takes[i].Limit
		if l.Algorithm == descriptor.Concurrency && s.lasts > 0 && s.lasts < l.Arithmetic.Length {
			lasting := *l
			lasting.Arithmetic.Length = s.lasts
			r.Takes[i].Limit = &lasting
			s.whole = append(s.whole, wholeLimit{i, l})
		}
	}
	err = backend.Await(ctx, s.Store, now, r)
	for _, w := range s.whole {
		r.Takes[w.take].Limit = w.limit
	}
	for i := range r.Outcomes {
		o, t := &r.Outcomes[i], &r.Takes[i]
		if o.Allowed || o.Failed {
			continue
		}
		if t.Guards { // the limit of a penalty denies; once, if it is exceeded too
			if !r.Outcomes[i+1].Allowed {
				continue
			}
			t = &r.Takes[i+1]
		}
		s.denied = append(s.denied, deniedTake{t.Member, t.Limit, t.Limit.Name})
	}
	return true, err
}

// decide answers the requests of a batch.
func (e *engine) decide(ctx context.Context, b *batch, side int) {
	verdicts := b.verdicts[side]
	e.denials = b.denials[side]
	for i := range b.requests {
		a := &b.requests[i]
		now := time.UnixMicro(a.at)
		e.sweep(now)
		e.store.denied = e.store.denied[:0]
		if err := e.limiter.Decide(ctx, now, &a.Request.Request, &e.decision); err != nil {
			if e.failures++; e.failure == nil {
				e.failure = err
			}
			verdicts = append(verdicts, verdict{outcome: failed, rule: -1})
			continue
		}
		verdicts = append(verdicts, e.count(&a.Request.Request))
	}
	b.verdicts[side], b.denials[side] = verdicts, e.denials
}

// count records the result of the current request.
func (e *engine) count(req *limiter.Request) verdict {
	v := verdict{outcome: allowed, rule: -1, from: int32(len(e.denials))}
	if e.decision.Code == limiter.OverLimit {
		v.outcome = denied
	}
	known := e.knows(req.Domain)
	found, overridden := false, false
	for i := range e.decision.Statuses {
		overridden = overridden || e.decision.Statuses[i].Overridden
		r := e.decision.Statuses[i].Rule
		if r == nil {
			continue
		}
		found = true
		c := &e.rules[r.Index]
		c.requests++
		if v.outcome == denied && e.decision.Statuses[i].Code == limiter.OverLimit {
			c.denied++
			if v.rule < 0 {
				v.rule = r.Index
			}
			e.deniedBy(i, r)
		}
	}
	if v.overridden = overridden; overridden {
		e.overridden++
	}
	switch {
	case found || !known:
	case e.matches(req):
		e.inactive++
	default:
		e.noRule++
	}
	if len(e.store.denied) > 0 {
		e.countOver(v.outcome)
	}
	v.to = int32(len(e.denials))
	return v
}

// matches reports whether a rule matches a request of the current domain. The limiter leaves out rules of which no
// limit applies.
func (e *engine) matches(req *limiter.Request) bool {
	return slices.ContainsFunc(req.Descriptors, func(d limiter.Descriptor) bool {
		rule := e.domain.Match(d.Entries)
		return rule != nil && rule.Scheduled()
	})
}

// deniedBy records which limits of a rule deny the current request: the limits whose takes were denied, or the whole
// rule if none of the takes of its limits was denied.
func (e *engine) deniedBy(place int, r *descriptor.Rule) {
	known, overridden := false, e.decision.Statuses[place].Overridden
	for _, take := range e.store.denied {
		if take.descriptor != place {
			continue
		}
		for j := range r.Limits {
			if isLimit(r, j, &take, overridden) && !e.passes(place, j) {
				e.denials = append(e.denials, denial{r.Index, int32(j), overridden})
				known = true
			}
		}
	}
	if !known {
		limit := int32(-1)
		if len(r.Limits) == 1 {
			limit = 0
		}
		e.denials = append(e.denials, denial{r.Index, limit, overridden})
	}
}

// passes reports whether a limit that was exceeded is not enforced for the customer.
func (e *engine) passes(place, limit int) bool {
	return slices.ContainsFunc(e.decision.Notices, func(n limiter.Notice) bool {
		return n.Kind != limiter.NoticeWarn && n.Descriptor == place && n.LimitIndex == limit
	})
}

// isLimit reports whether a take counted under one of a rule's limits. With an override it has a copy of the limit,
// with other numbers; the names of a rule's limits differ.
func isLimit(r *descriptor.Rule, j int, take *deniedTake, overridden bool) bool {
	return &r.Limits[j] == take.limit || overridden && r.Limits[j].Name == take.name
}

// newly records, once each, the rules that deny a request which the other directory's rules let pass.
func (e *engine) newly(by []denial) {
	for i, r := range by {
		if !slices.ContainsFunc(by[:i], func(b denial) bool { return b.rule == r.rule }) {
			e.rules[r.rule].newly++
		}
	}
}

// knows reports whether the domain of a request has rules. It counts the request if not.
func (e *engine) knows(domain string) bool {
	if e.named != domain {
		e.domain = e.tree.Domain(domain)
		e.named = strings.Clone(domain)
	}
	if e.domain != nil {
		return true
	}
	if e.unknown++; e.unknown == 1 {
		e.firstUnknown = e.named
	}
	return false
}

// countOver counts the limits that denied.
func (e *engine) countOver(o outcome) {
	if o == allowed {
		e.notEnforced++
	}
	last := -1
	for _, take := range e.store.denied {
		r := e.decision.Statuses[take.descriptor].Rule
		if r == nil {
			continue
		}
		c := &e.rules[r.Index]
		if take.descriptor != last && (o == allowed || e.decision.Statuses[take.descriptor].Code == limiter.OK) {
			c.notEnforced++
		}
		last = take.descriptor
		for j := range r.Limits {
			if isLimit(r, j, &take, e.decision.Statuses[take.descriptor].Overridden) {
				if c.limits == nil {
					c.limits = make([]int64, len(r.Limits))
				}
				c.limits[j]++
			}
		}
	}
}

// sweep drops expired counters when they may be half of all counters, so each counter is visited only a few times
// however long the log is. A full store is swept once per second of the log.
func (e *engine) sweep(now time.Time) {
	const least = 1 << 16
	if n := e.store.Len(); n < min(e.most, max(least, 2*e.left)) || now.Sub(e.swept) < time.Second {
		return
	}
	e.store.Sweep(now)
	e.swept, e.left = now, e.store.Len()
}
