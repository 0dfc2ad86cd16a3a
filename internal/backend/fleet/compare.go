package fleet

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// upToDate is the time within which a replica that reaches Redis has learned of a change of the overrides, with some
// to spare.
const upToDate = 2 * time.Second

// compare marks live replicas whose rules or overrides differ from the ones that most replicas have, or whose overrides
// are older than the overrides of another replica.
func compare(all []Replica, every time.Duration) {
	rules := most(all, func(p *Replica) string { return strconv.FormatUint(p.Rules.Checksum, 10) })
	overrides := most(all, overridesOf)
	for i := range all {
		p := &all[i]
		if p.State == Live {
			p.RulesDiffer = !rules(p)
			p.OverridesDiffer = !overrides(p) || isBehind(p, all, every)
		}
	}
}

// overridesOf returns the part of a replica's overrides that must be equal everywhere. The version of overrides in
// Redis is not part of it, because replicas learn of a new version at different times.
func overridesOf(p *Replica) string {
	if p.Overrides.Source == OverridesInFile { // the version identifies the content of the file
		return OverridesInFile + strconv.FormatInt(p.Overrides.Version, 10)
	}
	return p.Overrides.Source
}

// isBehind reports whether a replica still had older overrides when another one had had newer ones for a while.
func isBehind(p *Replica, all []Replica, every time.Duration) bool {
	return p.Overrides.Source == OverridesInRedis && slices.ContainsFunc(all, func(q Replica) bool {
		hadThem := q.Seen.Add(-2 * every)
		return q.State == Live && q.Overrides.Source == OverridesInRedis && q.Overrides.Earlier > p.Overrides.Version &&
			p.Seen.After(hadThem.Add(upToDate))
	})
}

// most returns a function that reports whether a replica has the value that most live ones have. If two values are
// equally frequent, no replica has it.
func most(all []Replica, value func(*Replica) string) func(*Replica) bool {
	count := make(map[string]int)
	for i := range all {
		if all[i].State == Live {
			count[value(&all[i])]++
		}
	}
	best, n, single := "", 0, false
	for v, c := range count {
		if c > n {
			best, n, single = v, c, true
		} else if c == n {
			single = false
		}
	}
	return func(p *Replica) bool { return single && value(p) == best }
}

// IsTroubled reports whether an operator should look at a replica.
func (p *Replica) IsTroubled() bool {
	switch p.State {
	case Gone:
		return true
	case Stopped:
		return false
	default:
		return p.RulesDiffer || p.OverridesDiffer || p.Rules.Checksum == 0 || p.Rules.Stale+p.Rules.Rejected > 0 ||
			p.Overrides.Error != "" ||
			slices.ContainsFunc(p.Redis, func(r Redis) bool { return len(r.Open) > 0 })
	}
}

// sort puts replicas in the order in which operators look at them: replicas with trouble first, stopped replicas last.
func sort(all []Replica) {
	rank := func(p *Replica) int {
		switch {
		case p.IsTroubled():
			return 0
		case p.State == Live:
			return 1
		default:
			return 2
		}
	}
	slices.SortFunc(all, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), cmp.Compare(a.Host, b.Host), a.Started.Compare(b.Started),
			cmp.Compare(a.ID, b.ID))
	})
}
