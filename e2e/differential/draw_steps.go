package differential

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// steps draws what happens.
func (d *drawer) steps(w *World, count int) {
	now, version := d.start, 0
	rough := d.oneIn(3) // the store fails often
	w.Sets = [][]Override{nil, d.overrides(now), d.overrides(now.Add(time.Minute)), d.overrides(now.Add(48 * time.Hour))}
	for range count {
		now = d.later(now)
		s := Step{Now: now, Kind: d.kind(&w.Options), Resolve: d.oneIn(4), Version: version}
		switch s.Kind {
		case Swap:
			version = d.IntN(len(w.Versions))
			s.Version = version
		case SetOverrides, PeekWith:
			s.Set = d.IntN(len(w.Sets))
			s.Request = d.request()
		case SetReplicas:
			s.Replicas = d.between(1, 4)
		case Sweep:
		default:
			s.Request = d.request()
		}
		if d.oneIn(25) || rough && d.oneIn(2) {
			s.Store = d.failure(s.Kind)
		}
		if d.oneIn(10) {
			s.Local = d.failure(Decide)
		}
		if d.oneIn(4) {
			s.Cached = d.Uint64()
		}
		s.Ended = d.oneIn(150)
		w.Steps = append(w.Steps, s)
	}
}

func (d *drawer) kind(o *Options) StepKind {
	if o.NoMetrics && d.oneIn(2) {
		return Allow
	}
	switch n := d.IntN(100); {
	case n < 62:
		return Decide
	case n < 70:
		return Begin
	case n < 78:
		return BeginLater
	case n < 84:
		return Peek
	case n < 86:
		return PeekWith
	case n < 89:
		return Reset
	case n < 93:
		return QuotaBucket
	case n < 95:
		return Swap
	case n < 97:
		return SetOverrides
	case n < 98:
		return SetReplicas
	default:
		return Sweep
	}
}

// later draws the time of the next step. Clocks may also be set back.
func (d *drawer) later(now time.Time) time.Time {
	var by time.Duration
	switch n := d.IntN(100); {
	case n < 20:
	case n < 75:
		by = time.Duration(d.Int64N(int64(400 * time.Millisecond)))
	case n < 92:
		by = time.Duration(d.Int64N(int64(5 * time.Second)))
	case n < 96:
		by = time.Duration(d.Int64N(int64(20 * time.Minute)))
	case n < 98:
		by = time.Duration(d.Int64N(int64(30 * time.Hour)))
	case n < 99:
		by = -time.Duration(d.Int64N(int64(3 * time.Minute)))
	default:
		by = pick(d, -48*time.Hour, 40*24*time.Hour, -time.Hour, 7*24*time.Hour)
	}
	if !d.oneIn(5) {
		by = by.Truncate(time.Microsecond)
	}
	if now = now.Add(by); now.Year() > 2033 { // the rules of times are about the beginning
		now = d.start
	}
	return now
}

func (d *drawer) failure(kind StepKind) Failure {
	if (kind == BeginLater) && d.oneIn(20) {
		return Failure{Kind: FailPanic}
	}
	f := Failure{Kind: pick(d, FailAll, FailAll, FailSome, FailSome, FailSome, FailFull, FailCounted, FailEnded)}
	if f.Kind == FailSome {
		f.Some = d.Uint64() & d.Uint64()
	}
	return f
}

// request draws a request that may match rules.
func (d *drawer) request() Request {
	domain := pick(d, d.domains...)
	r := Request{Domain: domain}
	switch d.IntN(200) {
	case 0:
		r.Domain = fmt.Sprint("nowhere", d.IntN(3))
	case 1:
		r.Domain = ""
	}
	if d.oneIn(3) {
		r.Hits = uint32(d.between(0, 5))
	} else if d.oneIn(60) {
		r.Hits = math.MaxUint32
	}
	reserving := d.oneIn(6)
	count := pick(d, 1, 1, 1, 1, 2, 2, 2, 3, 4, 5)
	switch d.IntN(150) {
	case 0:
		count = d.between(17, 40) // so many takes are found by their hashes
	case 1:
		count = 0
	}
	if d.oneIn(20) {
		r.Purpose = pick(d, Look, Passed)
	}
	if reserving {
		r.Hold, r.Purpose = d.hold(), Count
		if r.Hold.Op == Commit && d.oneIn(5) {
			r.Purpose = Passed
		}
	}
	for range count {
		if len(r.Descriptors) > 0 && d.oneIn(5) {
			r.Descriptors = append(r.Descriptors, pick(d, r.Descriptors...))
			continue
		}
		r.Descriptors = append(r.Descriptors, d.descriptor(domain, reserving))
	}
	if len(r.Descriptors) == 0 && d.oneIn(2) {
		r.Descriptors = []Descriptor{{}}
	}
	if len(r.Descriptors) == 0 {
		r.Descriptors = []Descriptor{d.descriptor(domain, false)}
		r.Domain = ""
	}
	return r
}

func (d *drawer) hold() *Hold {
	return &Hold{
		Op: pick(d, Reserve, Reserve, Commit, Commit, Extend), ID: pick(d, d.ids...), TTL: pick(d, 0, 0, time.Second, time.Minute, 48*time.Hour),
		Least: pick[uint64](d, 0, 0, 1, 2, 5), Final: !d.oneIn(4), Unready: d.oneIn(40), ChargeUnknown: d.oneIn(4),
	}
}

func (d *drawer) descriptor(domain string, reserving bool) Descriptor {
	var one Descriptor
	s := d.shape(domain, reserving)
	for _, l := range s.levels {
		values := l.values
		if d.oneIn(25) {
			values = l.other
		}
		one.Entries = append(one.Entries, Entry{pick(d, l.keys...), pick(d, values...)})
	}
	switch d.IntN(30) {
	case 0:
		one.Entries = one.Entries[:len(one.Entries)-1]
	case 1:
		one.Entries = append(one.Entries, Entry{"more", "a"})
	case 2:
		one.Entries[0].Value = fmt.Sprint("v", d.IntN(1000)) // a new counter
	case 3:
		if d.oneIn(4) {
			one.Entries[0].Value = strings.Repeat("x", pick(d, 600, 5000)) + "y"
		}
	}
	if (s.reserves || d.oneIn(40)) && d.oneIn(3) {
		one.Entries = append(one.Entries, Entry{pick(d, descriptor.ReserveID, descriptor.CommitID), pick(d, d.names...)})
	}
	if d.oneIn(3) {
		one.HasHits, one.Hits = true, uint64(d.between(0, 4))
		if d.oneIn(40) {
			one.Hits = pick[uint64](d, math.MaxUint64, 1<<53, 1<<53-1, 1<<40)
		}
	}
	one.Refund = d.oneIn(12)
	if s.reserves && d.oneIn(3) || d.oneIn(60) {
		for range d.between(1, 2) {
			one.Amounts = append(one.Amounts, Amount{pick(d, "input", "output", "output", "other"), pick[uint64](d, 0, 1, 2, 3, 7, math.MaxUint64)})
		}
	}
	if d.oneIn(8) {
		one.Limit = &RequestLimit{uint32(d.between(0, 6)), int32(d.between(1, 7)), pick[uint32](d, 0, 1, 2, 10)}
		if d.oneIn(30) {
			one.Limit = pick(d, &RequestLimit{1, -1, 1}, &RequestLimit{1, 99, 1}, &RequestLimit{1, 0, 1}, &RequestLimit{math.MaxUint32, 6, 91}, &RequestLimit{math.MaxUint32, 4, math.MaxUint32})
		}
	}
	return one
}

func (d *drawer) shape(domain string, reserving bool) *shape {
	for range 30 {
		s := &d.shapes[d.IntN(len(d.shapes))]
		if s.domain == domain && (!reserving || s.reserves || d.oneIn(10)) {
			return s
		}
	}
	return &d.shapes[d.IntN(len(d.shapes))]
}

// overrides draws overrides for callers that requests have.
func (d *drawer) overrides(now time.Time) (all []Override) {
	for range 150 {
		domain := pick(d, d.domains...)
		one := d.descriptor(domain, false)
		var entries []descriptor.Entry
		for _, e := range one.Entries {
			entries = append(entries, descriptor.Entry{Key: e.Key, Value: e.Value})
		}
		rule := pick(d, d.trees...).Domain(domain).Match(entries)
		if rule == nil || !rule.Overridable() {
			continue
		}
		o := Override{Domain: domain, Rule: rule.Path, Entries: one.Entries}
		if !d.oneIn(5) {
			o.Entries = nil
			for _, e := range rule.CountedEntries(entries) {
				o.Entries = append(o.Entries, Entry{e.Key, e.Value})
			}
		}
		if len(rule.Limits) > 1 && d.oneIn(2) {
			o.Limit = rule.Limits[d.IntN(len(rule.Limits))].Name
		}
		o.Kind = pick(d, Replace, Replace, Replace, Scale, Scale, Unlimited, Blocked)
		switch o.Kind {
		case Replace:
			o.Requests, o.Burst = uint64(d.between(0, 40)), uint64(pick(d, 0, 0, 3, 30))
		case Scale:
			o.Requests = uint64(pick(d, 500_000, 1_500_000, 3_000_000, 1))
		case Unlimited, Blocked:
		}
		if d.oneIn(3) {
			o.NotBefore = now.Unix() + int64(d.between(-20, 20))
		}
		if d.oneIn(3) {
			o.ExpiresAt = now.Unix() + int64(d.between(1, 60))
		}
		all = append(all, o)
		if len(all) == 12 {
			break
		}
	}
	return slices.Clip(all)
}
