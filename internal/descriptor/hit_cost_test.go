package descriptor

import (
	"math"
	"testing"
)

func TestHitCost(t *testing.T) {
	by := func(values map[string]uint64, other uint64, fold bool, level int) CostTable {
		return CostTable{Key: "k", Level: level, Values: values, Other: other, Fold: fold}
	}
	entries := []Entry{{Key: "k", Value: "Large"}, {Key: "j", Value: "output"}}
	for _, c := range []struct {
		cost HitCost
		want uint64
	}{
		{HitCost{Factor: 1}, 1},
		{HitCost{Factor: 7}, 7},
		{HitCost{Factor: 1, Tables: []CostTable{by(map[string]uint64{"large": 5}, 2, false, 0)}}, 2},
		{HitCost{Factor: 1, Tables: []CostTable{by(map[string]uint64{"large": 5}, 2, true, 0)}}, 5},
		{HitCost{Factor: 1, Tables: []CostTable{by(map[string]uint64{"Large": 5}, 2, false, 0), by(map[string]uint64{"output": 4}, 0, false, 1)}}, 20},
		{HitCost{Factor: MaxHitCost, Tables: []CostTable{by(nil, MaxHitCost, false, 0), by(nil, MaxHitCost, false, 1)}}, mostHits},
	} {
		if got := c.cost.Of(entries); got != c.want {
			t.Errorf("%s: %d, want %d", &c.cost, got, c.want)
		}
		for _, hits := range []int64{0, 1, 3, mostHits - 1, mostHits} {
			exact := float64(hits) * float64(c.want)
			got := c.cost.Hits(entries, hits)
			if exact < mostHits && float64(got) != exact || exact >= mostHits && got != mostHits {
				t.Errorf("%s: %d hits count for %d", &c.cost, hits, got)
			}
			if refund := c.cost.Hits(entries, -hits); refund != -got {
				t.Errorf("%s: %d hits are given back as %d", &c.cost, hits, refund)
			}
		}
	}
	if timesHits(math.MaxUint64, math.MaxUint64) != mostHits {
		t.Error("an overflow")
	}
}

// Trees whose hits count for other numbers mean something else.
func TestChecksumOfHitCost(t *testing.T) {
	seen := make(map[uint64]string)
	for _, c := range []*HitCost{nil, {Factor: 2}, {Factor: 3},
		{Factor: 1, Tables: []CostTable{{Key: "k", Values: map[string]uint64{"a": 2}, Other: 1}}},
		{Factor: 1, Tables: []CostTable{{Key: "k", Values: map[string]uint64{"a": 2}, Other: 3}}},
		{Factor: 1, Tables: []CostTable{{Key: "k", Values: map[string]uint64{"a": 2, "b": 1}, Other: 3}}},
		{Factor: 1, Tables: []CostTable{{Key: "k", Values: map[string]uint64{`a": 2, "b`: 1}, Other: 3}}},
	} {
		rule := &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}}}}
		rule.SetHitCost(c)
		tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Rule: rule}}}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		name := "none"
		if c != nil {
			name = c.String()
		}
		if other, twice := seen[tree.Checksum]; twice {
			t.Errorf("%s and %s have one checksum", name, other)
		}
		seen[tree.Checksum] = name
	}
}
