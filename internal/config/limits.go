package config

import (
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// maxLimits is how many limits one descriptor may have: each is a counter more that a request must pass.
const maxLimits = 16

// The keys of a rate limit, and of what stands in one.
var (
	limitKeys = []key[rateLimit]{
		limitKey("unit", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			name, ok := r.text("unit", n)
			if name == "" && ok {
				l.given = l.given[:len(l.given)-1] // as if it were absent
				return true
			}
			l.limit.Window.Unit = descriptor.ParseUnit(name)
			if l.limit.Window.Unit == descriptor.UnitUnknown && ok {
				l.unknown = name
			}
			return ok && l.limit.Window.Unit.Valid()
		}),
		limitKey("requests_per_unit", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.Requests, ok = r.number("requests_per_unit", n)
			return ok
		}),
		limitKey("unlimited", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			l.unlimited = r.flag("unlimited", n)
			return true
		}),
		limitKey("name", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.Name, ok = r.text("name", n)
			return ok
		}),
		limitKey("replaces", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			r.replaces(l, n)
			return true
		}),
		limitKey("unit_multiplier", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.Window.Multiplier, ok = r.numberFrom("unit_multiplier", n, 1, math.MaxUint32)
			return ok
		}),
		limitKey("algorithm", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			name, ok := r.choice("algorithm", n, descriptor.AlgorithmNames)
			l.limit.Algorithm = descriptor.Algorithm(max(slices.Index(descriptor.AlgorithmNames, name), 0))
			return ok
		}),
		limitKey("burst", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.Burst, ok = r.number("burst", n)
			return ok
		}),
		limitKey("refill", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			name, ok := r.choice("refill", n, []string{"greedy", "interval"})
			l.limit.Interval = name == "interval"
			return ok
		}),
		limitKey("align", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			name, ok := r.choice("align", n, []string{"clock", "first_hit"})
			l.limit.FirstHit = name == "first_hit"
			return ok
		}),
		limitKey("calendar", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.Window.Location, ok = r.zone("calendar", n)
			return ok
		}),
		limitKey("precision", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.Precision, ok = r.numberFrom("precision", n, 1, 60)
			return ok
		}),
		limitKey("nodelay", func(r *reader, l *rateLimit, n *yaml.Node) (ok bool) {
			l.limit.NoDelay, ok = r.nodelay(n)
			return ok
		}),
		limitKey("lease", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			l.limit.Lease = r.flag("lease", n)
			return true
		}),
		limitKey("count_denied", func(r *reader, l *rateLimit, n *yaml.Node) bool {
			l.limit.CountDenied = descriptor.DeniedDrop
			if r.flag("count_denied", n) {
				l.limit.CountDenied = descriptor.DeniedCount
			}
			return true
		}),
	}

	rateLimitShape  = shape[rateLimit]{"`rate_limit`", limitKeys}
	rateLimitsShape = shape[rateLimit]{"an entry of `rate_limits`", limitKeys}

	replacesShape = shape[replaced]{"an entry of `replaces`", []key[replaced]{
		{"name", func(r *reader, p *replaced, n *yaml.Node) {
			name, ok := r.text("name", n)
			p.name, p.bad, p.at = name, !ok, r.position(n)
		}},
	}}

	// belongs says which limits a key has a meaning for.
	belongs = []struct {
		key   string
		to    func(*descriptor.Limit) bool
		names string
	}{
		{"burst", func(l *descriptor.Limit) bool {
			return l.Algorithm == descriptor.TokenBucket || l.Algorithm == descriptor.LeakyBucket
		}, "`token_bucket` or `leaky_bucket`"},
		{"refill", func(l *descriptor.Limit) bool { return l.Algorithm == descriptor.TokenBucket }, "`token_bucket`"},
		{"align", func(l *descriptor.Limit) bool {
			return l.Algorithm == descriptor.FixedWindow || l.Algorithm == descriptor.TokenBucket && l.Interval
		}, "`fixed_window`, or `token_bucket` with `refill: interval`"},
		{"calendar", func(l *descriptor.Limit) bool { return l.Algorithm == descriptor.FixedWindow }, "`fixed_window`"},
		{"precision", func(l *descriptor.Limit) bool { return l.Algorithm == descriptor.SlidingWindow }, "`sliding_window`"},
		{"nodelay", func(l *descriptor.Limit) bool { return l.Algorithm == descriptor.LeakyBucket }, "`leaky_bucket`"},
		{"count_denied", func(l *descriptor.Limit) bool {
			return l.Algorithm == descriptor.FixedWindow || l.Algorithm == descriptor.SlidingLog
		}, "`fixed_window` or `sliding_log`"},
	}

	// besidesUnlimited are the keys that have a meaning where nothing is limited; requests_per_unit has none and is
	// taken, as the reference does. A unit has an error of its own.
	besidesUnlimited = []string{"unlimited", "name", "replaces", "requests_per_unit", "unit"}
)

// limitKey is a key of a rate limit. read says whether the value is what it must be.
func limitKey(name string, read func(*reader, *rateLimit, *yaml.Node) bool) key[rateLimit] {
	return key[rateLimit]{name, func(r *reader, l *rateLimit, n *yaml.Node) {
		l.given = append(l.given, givenKey{name, n})
		if !read(r, l, n) {
			l.bad = true
		}
	}}
}

// rateLimit is a rate limit while its map is being read.
type rateLimit struct {
	limit     descriptor.Limit
	unlimited bool
	replaces  []replaced
	given     []givenKey
	unknown   string // a unit that there is not
	bad       bool   // told already
}

type givenKey struct {
	name  string
	value *yaml.Node
}

// at is the value of a key, nil if it is not given.
func (l *rateLimit) at(name string) *yaml.Node {
	for i := range l.given {
		if l.given[i].name == name {
			return l.given[i].value
		}
	}
	return nil
}

// replaced is one entry of replaces.
type replaced struct {
	name string
	bad  bool // told already
	at   descriptor.Position
}

// rateLimit reads a rate_limit and returns the rule it makes, nil if it cannot be one.
func (r *reader) rateLimit(n *yaml.Node) *descriptor.Rule {
	l := &r.limit
	if !r.readLimit(&rateLimitShape, l, n) {
		return nil
	}
	r.checkReplaces(l.replaces, l.limit.Name)
	made := new(ruleAndLimit)
	made.rule.Name = l.limit.Name
	made.rule.Unlimited = l.unlimited
	for _, p := range l.replaces {
		made.rule.Replaces = append(made.rule.Replaces, p.name)
	}
	if !l.unlimited {
		made.limit[0] = l.limit
		made.rule.Limits = made.limit[:]
	}
	return &made.rule
}

// rateLimits reads a list of limits and returns the rule that they make together, nil if they cannot be one.
func (r *reader) rateLimits(n *yaml.Node) *descriptor.Rule {
	t, ok := r.enter(n)
	if !ok {
		return nil
	}
	defer r.leave(n)
	switch {
	case t.Kind != yaml.SequenceNode:
		r.errorf(n, "`rate_limits` must be a list, this is %s: begin each limit with `- name:`, or write `rate_limit` for one", KindOf(t))
		return nil
	case len(t.Content) == 0:
		r.errorf(n, "`rate_limits` is empty: write a limit, or leave it out")
		return nil
	case len(t.Content) > maxLimits:
		r.errorf(n, "`rate_limits` has %d limits: %d are the most", len(t.Content), maxLimits)
		return nil
	}
	rule := new(descriptor.Rule)
	var names []string
	var replaces []replaced
	for _, e := range t.Content {
		l := &r.limit
		if !r.readLimit(&rateLimitsShape, l, e) {
			continue
		}
		name := l.limit.Name
		switch at := l.at("name"); {
		case l.unlimited:
			r.errorf(l.at("unlimited"), "`unlimited: true` among limits: write `rate_limit: {unlimited: true}` in place of `rate_limits`")
			continue
		case name == "":
			if !l.bad {
				r.errorf(e, "a limit of `rate_limits` without a `name`: the answer tells by it which limit refused")
			}
		case slices.Contains(names, name):
			r.errorf(at, "the name %s twice in `rate_limits`", Quote(name))
		}
		replaces = append(replaces, l.replaces...)
		if !l.bad {
			for i := range rule.Limits {
				if other := &rule.Limits[i]; l.limit.SharesCounter(other) {
					r.errorf(e, "the limits %s and %s have the same algorithm and window, so they would be one counter: change one of them, or keep the smaller one",
						Quote(other.Name), Quote(name))
					break
				}
			}
		}
		names = append(names, name)
		rule.Limits = append(rule.Limits, l.limit)
	}
	r.checkReplaces(replaces, names...)
	for _, p := range replaces {
		if !slices.Contains(rule.Replaces, p.name) {
			rule.Replaces = append(rule.Replaces, p.name)
		}
	}
	return rule
}

// readLimit reads the map of one limit. It says false if there is no limit to speak of.
func (r *reader) readLimit(s *shape[rateLimit], l *rateLimit, n *yaml.Node) bool {
	*l = rateLimit{replaces: l.replaces[:0], given: l.given[:0]}
	read, unknown := readMap(r, s, l, n)
	if !read {
		return false
	}
	l.bad = l.bad || unknown
	unit := l.at("unit")
	if l.unknown != "" {
		if l.unlimited && r.lenient {
			r.warnf(unit, "unknown unit %s: it is ignored beside `unlimited: true`", Quote(l.unknown))
			unit = nil
		} else {
			r.unknownUnit(l.unknown, unit)
		}
	}
	switch {
	case l.unlimited && unit != nil:
		r.errorf(unit, "`unlimited: true` and a `unit`: leave out one of them")
		return false
	case l.unlimited:
		for _, g := range l.given {
			if !slices.Contains(besidesUnlimited, g.name) {
				r.errorf(g.value, "`unlimited: true` and `%s`: nothing is counted, so leave it out", g.name)
			}
		}
	case unit == nil && !unknown:
		or := ""
		if s == &rateLimitShape {
			or = ", or `unlimited: true`"
		}
		r.errorf(n, "%s without a `unit`: write `unit` (%s) and `requests_per_unit`%s", s.what, List(descriptor.UnitNames, "or"), or)
		return false
	case !l.bad:
		l.bad = !r.checkLimit(l, n)
	}
	return true
}

// checkLimit looks whether what a limit says makes sense together, and fills in its defaults and its arithmetic.
func (r *reader) checkLimit(l *rateLimit, n *yaml.Node) bool {
	ok := true
	no := func(key, format string, args ...any) {
		r.errorf(l.at(key), format, args...)
		ok = false
	}
	limit := &l.limit
	for _, b := range belongs {
		if l.at(b.key) == nil || b.to(limit) {
			continue
		}
		this := "`" + limit.Algorithm.String() + "`"
		switch {
		case l.at("algorithm") == nil:
			this += ", the default algorithm"
		case b.key == "align" && limit.Algorithm == descriptor.TokenBucket:
			this += " with `refill: greedy`"
		}
		no(b.key, "`%s` means nothing to %s: it is for %s", b.key, this, b.names)
	}
	if !ok {
		return false
	}
	if limit.Window.Location != nil {
		switch {
		case limit.Window.Unit < descriptor.Day:
			no("calendar", "`calendar` needs a `unit` of a day or longer, this is `%s`", limit.Window.Unit)
		case limit.Window.Multiplier > 1:
			no("unit_multiplier", "`calendar` and `unit_multiplier`: windows on a calendar are one unit long")
		case limit.FirstHit:
			no("align", "`calendar` and `align: first_hit`: a window can only follow one of them")
		}
	}
	if l.at("burst") == nil && limit.Algorithm == descriptor.LeakyBucket {
		limit.Burst = limit.Requests
	}
	if l.at("burst") != nil && limit.Algorithm == descriptor.TokenBucket && limit.Burst == 0 {
		no("burst", "`burst` of a `token_bucket` must be at least 1: it is what the bucket holds")
	}
	if !ok {
		return false
	}
	if err := limit.Compile(); err != nil {
		r.inexact(l, n, err.Error())
		return false
	}
	return true
}

// inexact tells what cannot be counted, at the key that the message begins with. A default that cannot be counted
// comes from requests_per_unit.
func (r *reader) inexact(l *rateLimit, n *yaml.Node, msg string) {
	name, rest, _ := strings.Cut(msg, ": ")
	for _, key := range []string{name, "requests_per_unit"} {
		if at := l.at(key); at != nil {
			n = at
			break
		}
	}
	r.errorf(n, "`%s`: %s", name, rest)
}

// checkReplaces looks at the replaces of a rule whose limits have these names.
func (r *reader) checkReplaces(replaces []replaced, names ...string) {
	for _, p := range replaces {
		switch {
		case p.bad:
		case p.name == "":
			r.errorAt(p.at, "an entry of `replaces` without a name: write `- name: NAME`, the `name` of another rate limit")
		case slices.Contains(names, p.name):
			r.errorAt(p.at, "the rate limit %s replaces itself: give the name of another one", Quote(p.name))
		}
	}
}

func (r *reader) unknownUnit(name string, n *yaml.Node) {
	if c := Closest(name, descriptor.UnitNames); c != "" {
		r.errorf(n, "unknown unit %s: did you mean `%s`?", Quote(name), c)
	} else {
		r.errorf(n, "unknown unit %s: write %s", Quote(name), List(descriptor.UnitNames, "or"))
	}
}

func (r *reader) replaces(l *rateLimit, n *yaml.Node) {
	t, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	if t.Kind != yaml.SequenceNode {
		r.errorf(n, "`replaces` must be a list, this is %s: begin each entry with `- name:`", KindOf(t))
		return
	}
	for _, e := range t.Content {
		p := replaced{at: r.position(e)}
		read, unknown := readMap(r, &replacesShape, &p, e)
		p.bad = p.bad || unknown
		if read {
			l.replaces = append(l.replaces, p)
		}
	}
}

// nodelay reads how many of a leaky bucket's waiting pass at once: a number, or the word all.
func (r *reader) nodelay(n *yaml.Node) (uint32, bool) {
	t, ok := r.enter(n)
	if !ok {
		return 0, false
	}
	defer r.leave(n)
	if t.Kind == yaml.ScalarNode && t.Tag == "!!str" {
		if t.Value == "all" {
			return descriptor.NoDelayAll, true
		}
		r.errorf(n, "`nodelay` must be a whole number or `all`, this is %s", KindOf(t))
		return 0, false
	}
	return r.numberFrom("nodelay", n, 0, descriptor.NoDelayAll-1)
}
