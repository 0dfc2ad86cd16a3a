package simulate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// comparedLimit has the differences between the exact log and its alternatives, for one limit of the rules.
type comparedLimit struct {
	place limitPlace
	plain *alternatives // for counters without an override

	decisions, refused int64 // of the exact log
	counts             [maxAlternatives]differences
}

// differences are how an algorithm differs from the exact log.
type differences struct {
	decisions         int64
	refused, admitted int64   // where the exact log does the opposite
	most              float64 // that passed in any window, as a part of the limit
}

// alternatives are a limit under all algorithms that can count it.
type alternatives struct {
	requests int64
	window   int64                              // microseconds
	limits   [maxAlternatives]*descriptor.Limit // nil: that algorithm cannot count it
}

// alternative is an algorithm that limits are compared under.
type alternative struct {
	settings string // as in rule files; empty: the defaults
	limit    descriptor.Limit
}

// asWritten is the place of the algorithm that the rules themselves have.
const asWritten = 0

const maxAlternatives = 11

// compared has a row for each alternative but asWritten. Their precisions divide every unit of time.
var compared = [maxAlternatives]alternative{
	1:  {"", descriptor.Limit{Algorithm: descriptor.FixedWindow}},
	2:  {"align: first_hit", descriptor.Limit{Algorithm: descriptor.FixedWindow, FirstHit: true}},
	3:  {"precision: 1", descriptor.Limit{Algorithm: descriptor.SlidingWindow, Precision: 1}},
	4:  {"precision: 2", descriptor.Limit{Algorithm: descriptor.SlidingWindow, Precision: 2}},
	5:  {"precision: 5", descriptor.Limit{Algorithm: descriptor.SlidingWindow, Precision: 5}},
	6:  {"precision: 10", descriptor.Limit{Algorithm: descriptor.SlidingWindow, Precision: 10}},
	7:  {"", descriptor.Limit{Algorithm: descriptor.SlidingLog}},
	8:  {"", descriptor.Limit{Algorithm: descriptor.TokenBucket}},
	9:  {"refill: interval", descriptor.Limit{Algorithm: descriptor.TokenBucket, Interval: true}},
	10: {"", descriptor.Limit{Algorithm: descriptor.LeakyBucket}},
}

// newAlternatives makes the alternatives of a limit. Refused hits do not count under any of them.
func newAlternatives(written *descriptor.Limit) *alternatives {
	own := *written
	a := &alternatives{requests: int64(own.Requests), window: own.Window.Length().Microseconds()}
	a.limits[asWritten] = &own
	for i := asWritten + 1; i < maxAlternatives; i++ {
		l := compared[i].limit
		l.Requests, l.Window.Unit, l.Window.Multiplier = own.Requests, own.Window.Unit, own.Window.Multiplier
		if l.Has(descriptor.SettingBurst) {
			l.Burst = own.Requests
		}
		if l.Compile() == nil {
			a.limits[i] = &l
		}
	}
	return a
}

func newComparedLimit(place limitPlace) *comparedLimit {
	return &comparedLimit{place: place, plain: newAlternatives(&place.rule.Limits[place.limit])}
}

// reported returns the comparison for a report.
func (c *comparison) reported() *Comparison {
	out := &Comparison{LeftOut: c.left, Limits: []LimitDifference{}}
	var sum comparedLimit
	for _, l := range c.order {
		sum.decisions += l.decisions
		sum.refused += l.refused
		for i := range sum.counts {
			sum.counts[i].add(&l.counts[i])
		}
		out.Limits = append(out.Limits, l.reported())
	}
	out.Decisions, out.Refused = sum.decisions, sum.refused
	out.Algorithms = sum.algorithms("as in the rules")
	slices.SortStableFunc(out.Limits, func(a, b LimitDifference) int {
		return cmp.Or(cmp.Compare(b.Algorithms[asWritten].Differ(), a.Algorithms[asWritten].Differ()), strings.Compare(a.Rule, b.Rule))
	})
	return out
}

func (d *differences) add(other *differences) {
	d.decisions += other.decisions
	d.refused += other.refused
	d.admitted += other.admitted
	d.most = max(d.most, other.most)
}

func (l *comparedLimit) reported() LimitDifference {
	limit := &l.place.rule.Limits[l.place.limit]
	return LimitDifference{
		Rule: l.place.rule.Path, Name: limit.Name, Limit: limit.Words(),
		Decisions: l.decisions, Refused: l.refused, Algorithms: l.algorithms(limit.Algorithm.String()),
	}
}

// algorithms returns the differences of each algorithm. An algorithm that cannot count the limit is left out.
func (l *comparedLimit) algorithms(written string) (all []AlgorithmDifference) {
	for i := range l.counts {
		d := &l.counts[i]
		row := AlgorithmDifference{
			Algorithm: compared[i].limit.Algorithm.String(), Settings: compared[i].settings, Decisions: d.decisions,
			Refused: d.refused, Admitted: d.admitted, MostPercent: 100 * d.most,
		}
		if i == asWritten {
			row.Algorithm, row.AsWritten = written, true
		}
		if d.decisions > 0 || i == asWritten {
			all = append(all, row)
		}
	}
	return all
}
