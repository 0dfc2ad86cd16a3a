package simulate

import (
	"cmp"
	"slices"
)

// blame counts which rules and limits denied the requests of one customer. The counts of up to maxBlamed limits are
// exact. Beyond that a new limit replaces the one with the smallest count and inherits it (Space-Saving), so a limit
// with more than one in maxBlamed denials is always present.
type blame []blamed

const maxBlamed = 32

// blamed is a limit, and how often it denied a customer.
type blamed struct {
	denial
	count     int64 // requests
	inherited int64 // the part of count that may belong to other limits
}

// denial is a limit that denied a request.
type denial struct {
	rule  int32 // Rule.Index
	limit int32 // index in Rule.Limits; -1: the whole rule

	overridden bool // the limit had the numbers of an override
}

func (b *blame) add(by []denial) {
	for _, r := range by {
		b.count(r)
	}
}

func (b *blame) count(r denial) {
	least := 0
	for i := range *b {
		x := &(*b)[i]
		if x.denial == r {
			x.count++
			return
		}
		if x.count < (*b)[least].count {
			least = i
		}
	}
	if len(*b) < maxBlamed {
		*b = append(*b, blamed{denial: r, count: 1})
		return
	}
	x := &(*b)[least]
	x.denial, x.inherited = r, x.count
	x.count++
}

// reportedBlame is how many limits a report has for a customer.
const reportedBlame = 5

// reported returns the limits that denied most, sorted, with the lower bounds of their counts.
func (b blame) reported(e *engine) []DeniedBy {
	all := slices.Clone(b)
	slices.SortFunc(all, func(a, b blamed) int {
		return cmp.Or(cmp.Compare(b.count-b.inherited, a.count-a.inherited), cmp.Compare(a.rule, b.rule),
			cmp.Compare(a.limit, b.limit))
	})
	var out []DeniedBy
	for _, x := range all[:min(len(all), reportedBlame)] {
		r := e.tree.Rules[x.rule]
		by := DeniedBy{Rule: r.Path, Requests: x.count - x.inherited}
		if x.limit >= 0 {
			l := &r.Limits[x.limit]
			by.Name, by.Limit, by.Burst = l.Name, limitText(l), burstText(l)
			if x.overridden {
				by.Limit, by.Burst, by.Overridden = "(override)", "", true
			}
		}
		out = append(out, by)
	}
	return out
}
