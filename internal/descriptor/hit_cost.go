package descriptor

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// HitCost is the cost of one hit of a request under the limits of a rule: its factor, times the factor that each table
// has for a value of the request. Example: with a factor of 2 and a table with 5 for the request's value, a hit costs
// 10.
type HitCost struct {
	Factor uint64 // 1 to MaxHitCost
	Tables []CostTable
}

// CostTable has factors by the value of an entry.
type CostTable struct {
	Key      string            // key of the entry
	Level    int               // level of the entry in the rule's path
	Values   map[string]uint64 // 1 to MaxHitCost; with Fold in lower case
	Other    uint64            // factor of all other values; 0 if the level has no others
	Fold     bool              // the case of letters does not matter
	Position Position          // position of the table in its rule file
}

// Bounds of costs.
const (
	MaxHitCost    = 1_000_000
	MaxCostValues = 1000 // most values of one table
)

// mostHits is more than any limit allows, so nothing passes that would count for more.
const mostHits = MaxRequests + 1

// Constant reports whether every hit under the rule has the same cost.
func (c *HitCost) Constant() bool { return c == nil || len(c.Tables) == 0 }

// Of returns the cost of one hit of a request with these entries.
func (c *HitCost) Of(entries []Entry) uint64 {
	cost := c.Factor
	for i := range c.Tables {
		t := &c.Tables[i]
		cost = timesHits(cost, t.of(entries[t.Level].Value))
	}
	return cost
}

// Hits returns the cost of a number of hits. Refunds are negative and stay negative. The result is capped at mostHits.
func (c *HitCost) Hits(entries []Entry, hits int64) int64 {
	if hits < 0 {
		return -c.Hits(entries, -hits)
	}
	return int64(timesHits(c.Of(entries), uint64(hits)))
}

func (t *CostTable) of(value string) uint64 {
	if t.Fold {
		value = Fold(value)
	}
	if cost, ok := t.Values[value]; ok {
		return cost
	}
	return max(t.Other, 1)
}

func timesHits(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return mostHits
	}
	return min(low, mostHits)
}

// HitCostOf returns the cost of one hit under the limits of the rule. The entries are those that the rule matches.
func (r *Rule) HitCostOf(entries []Entry) uint64 {
	if r.HitCost() == nil {
		return 1
	}
	return r.HitCost().Of(entries)
}

// String returns the cost as rule files write it.
func (c *HitCost) String() string {
	if len(c.Tables) == 0 {
		return strconv.FormatUint(c.Factor, 10)
	}
	tables := make([]string, len(c.Tables))
	for i := range c.Tables {
		t := &c.Tables[i]
		var values []string
		for _, v := range slices.Sorted(maps.Keys(t.Values)) {
			values = append(values, fmt.Sprintf("%s: %d", strconv.Quote(v), t.Values[v]))
		}
		if t.Other > 0 {
			values = append(values, fmt.Sprintf(`"*": %d`, t.Other))
		}
		tables[i] = strconv.Quote(t.Key) + ": {" + strings.Join(values, ", ") + "}"
	}
	return "{" + strings.Join(tables, ", ") + "}"
}
