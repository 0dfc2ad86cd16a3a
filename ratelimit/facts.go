package ratelimit

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// facts are properties of the active rules that each call checks before it decides.
type facts struct {
	tree        *descriptor.Tree
	delays      bool // a limit delays requests
	concurrency bool // a limit is a number of requests at the same time

	// whether a rule can match a request, by its domain and keys; only for requests that no rule matched
	hasKeys atomic.Pointer[map[string]bool]
}

// maxRemembered is the most combinations of domain and keys in hasKeys. A program has a few.
const maxRemembered = 1000

// canMatch reports whether a rule can match the keys of these entries, regardless of their values.
func (f *facts) canMatch(name string, entries []descriptor.Entry) bool {
	var space [256]byte
	id := append(binary.AppendUvarint(space[:0], uint64(len(name))), name...)
	for i := range entries {
		id = append(binary.AppendUvarint(id, uint64(len(entries[i].Key))), entries[i].Key...)
	}
	known := f.hasKeys.Load()
	if known != nil {
		if can, ok := (*known)[string(id)]; ok {
			return can
		}
	}
	can := f.tree.Domain(name).HasKeys(entries)
	next := map[string]bool{string(id): can}
	if known != nil && len(*known) < maxRemembered {
		maps.Copy(next, *known)
	}
	f.hasKeys.Store(&next)
	return can
}

// facts returns those of the rules that are active now.
func (l *Limiter) facts() *facts {
	tree := l.engine.Tree()
	if f := l.known.Load(); f != nil && f.tree == tree {
		return f
	}
	f := &facts{tree: tree}
	for _, r := range tree.Rules {
		for i := range r.Limits {
			limit := &r.Limits[i]
			f.delays = f.delays || limit.Has(descriptor.SettingNoDelay) && limit.NoDelay != descriptor.NoDelayAll
			f.concurrency = f.concurrency || limit.Algorithm == descriptor.Concurrency
		}
	}
	l.known.Store(f)
	return f
}

// checkDecide returns an error for a request that must not be decided: a descriptor would take a place of a Concurrency
// limit, which only a reservation gives back.
func (f *facts) checkDecide(domain string, all []limiter.Descriptor) error {
	if !f.concurrency {
		return nil
	}
	d := f.tree.Domain(domain)
	if d == nil {
		return nil
	}
	var taken []int
	for i := range all {
		if peeks := all[i].HasHits && all[i].Hits == 0 && len(all[i].Amounts) == 0; !peeks &&
			countsAtOnce(d.Match(all[i].Entries)) {
			taken = append(taken, i)
		}
	}
	if taken == nil {
		return nil
	}
	return &limits.ConcurrencyError{Descriptors: taken}
}

// countsAtOnce reports whether a rule has a Concurrency limit.
func countsAtOnce(r *descriptor.Rule) bool {
	return r != nil && slices.ContainsFunc(r.Limits,
		func(l descriptor.Limit) bool { return l.Algorithm == descriptor.Concurrency })
}

// checkMatched returns an error for a descriptor that no rule can match, because of its domain or its keys. Unless the
// limiter is strict, such a descriptor passes, and is logged once.
func (l *Limiter) checkMatched(c *call) error {
	for i := range c.decision.Statuses {
		if s := &c.decision.Statuses[i]; s.Rule != nil || s.Limited || s.FromRequest {
			continue
		}
		entries := c.request.Descriptors[i].Entries
		f := l.facts()
		if f.canMatch(c.request.Domain, entries) {
			continue
		}
		if err := l.unmatched(c.request.Domain, f.tree.Domain(c.request.Domain), entries); err != nil {
			return err
		}
	}
	return nil
}

// maxUnmatched is the most combinations of domain and keys without rules that are logged.
const maxUnmatched = 100

func (l *Limiter) unmatched(name string, domain *descriptor.Domain, entries []descriptor.Entry) error {
	var keys []string
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	list := strings.Join(keys, ", ")
	id := name + ": " + list
	if !l.strict {
		if _, known := l.logged.Load(id); known || l.unmatchedLogged.Load() >= maxUnmatched {
			return nil
		}
	}
	x := domain.Explain(entries, descriptor.KeyBuilder{})
	if n := len(x.Levels); n > 0 {
		x.Reason = cmp.Or(x.Levels[n-1].Reason, x.Reason)
	}
	err := fmt.Errorf("%w: no rule of domain %q can match the keys %s: %s", limits.ErrInvalid, name, list, x.Reason)
	if l.strict {
		return err
	}
	if _, known := l.logged.LoadOrStore(id, true); !known {
		l.unmatchedLogged.Add(1)
		l.log.Warn("requests pass without a limit", "error", err)
	}
	return nil
}

// CheckKeys returns an error if no rule of a domain can match a descriptor with these keys, in this order. A program
// that writes both its rules and its descriptors checks them with it when it starts. It returns nil if the rules may
// change: with Options.Dir.
func (l *Limiter) CheckKeys(domain string, keys ...string) error {
	if !l.strict {
		return nil
	}
	entries := make([]descriptor.Entry, len(keys))
	for i, k := range keys {
		entries[i].Key = k
	}
	if d := l.engine.Tree().Domain(domain); !d.HasKeys(entries) {
		return l.unmatched(domain, d, entries)
	}
	return nil
}
