package descriptor

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNumberOfScale(t *testing.T) {
	s := Scale{Key: "users", Level: 1, Max: 1000}
	for text, want := range map[string]struct {
		n      uint64
		result ScaleResult
	}{
		"1": {1, ScaleGood}, "57": {57, ScaleGood}, "1000": {1000, ScaleGood}, "0057": {57, ScaleGood},
		"1001": {1000, ScaleAboveMax}, "18446744073709551617": {1000, ScaleAboveMax}, strings.Repeat("9", 100_000): {1000, ScaleAboveMax},
		"": {1, ScaleNoNumber}, "0": {1, ScaleNoNumber}, "000": {1, ScaleNoNumber}, "-5": {1, ScaleNoNumber}, "+5": {1, ScaleNoNumber}, "5.0": {1, ScaleNoNumber},
		"1e3": {1, ScaleNoNumber}, "0x10": {1, ScaleNoNumber}, " 5": {1, ScaleNoNumber}, "5 ": {1, ScaleNoNumber}, "many": {1, ScaleNoNumber}, "٣": {1, ScaleNoNumber},
	} {
		if n, result := s.Number([]Entry{{"app", "1"}, {"users", text}}); n != want.n || result != want.result {
			t.Errorf("%.30q: %d, %d; want %+v", text, n, result, want)
		}
	}
}

// A limit that is accepted with a largest number can be counted exactly with every number up to it.
func TestEveryNumberOfScaleCanBeCounted(t *testing.T) {
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{
			Requests: rapid.Uint64Range(1, 10_000).Draw(t, "requests"), Algorithm: rapid.SampledFrom([]Algorithm{FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket}).Draw(t, "algorithm"),
			Window: Window{Unit: rapid.SampledFrom([]Unit{Millisecond, Second, Minute, Hour, Day, Month, Year}).Draw(t, "unit"), Multiplier: rapid.Uint32Range(1, 40).Draw(t, "multiplier")},
		}
		if l.Has(SettingBurst) {
			l.Burst = rapid.Uint64Range(1, 100_000).Draw(t, "burst")
			l.Interval = l.Algorithm == TokenBucket && rapid.Bool().Draw(t, "interval")
		}
		most := rapid.Uint64Range(1, 1<<rapid.IntRange(1, 40).Draw(t, "bits")).Draw(t, "max")
		if l.Compile() != nil || l.Scalable(most) != nil {
			return
		}
		accepted++
		for range 20 {
			n := rapid.Uint64Range(1, most).Draw(t, "n")
			scaled := l
			if err := scaled.Multiply(n); err != nil {
				t.Fatalf("%+v times %d, with %d as the largest: %v", l, n, most, err)
			}
			if scaled.Requests != n*l.Requests || scaled.Burst != n*l.Burst {
				t.Fatalf("%+v times %d: %+v", l, n, scaled)
			}
		}
	})
	if accepted == 0 {
		t.Error("no limit is accepted")
	}
}

// Trees whose limits are multiplied by other numbers mean something else.
func TestChecksumOfScale(t *testing.T) {
	seen := make(map[uint64]int)
	for i, s := range []*Scale{nil, {Key: "k", Max: 5}, {Key: "k", Max: 6}, {Key: "j", Max: 5}} {
		rule := &Rule{Limits: []Limit{{Requests: 1, Window: Window{Unit: Minute}}}}
		if s != nil {
			rule.SetScales(&Scales{Of: []*Scale{s}})
		}
		tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{{Key: "k", Rule: rule}}}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := seen[tree.Checksum]; twice {
			t.Errorf("%d and %d have one checksum", i, other)
		}
		seen[tree.Checksum] = i
	}
}
