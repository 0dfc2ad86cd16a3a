package descriptor

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The model of matching: one level, rule by rule, in the order that docs/do/rules.md says.
func matchedBy(specs []NodeSpec, e Entry) int {
	text := e.Key + "_" + e.Value
	best, rank := -1, 99
	take := func(i, r int) {
		if r < rank {
			best, rank = i, r
		}
	}
	for i := range specs {
		s := &specs[i]
		whole := s.Key
		if s.Value != "" {
			whole += "_" + s.Value
		}
		switch {
		case strings.Contains(s.Key, "*"):
			if whole == text {
				take(i, 0)
			} else if matchModel(whole, text) {
				take(i, 2)
			} else if whole == e.Key {
				take(i, 3)
			}
		case s.Key != e.Key:
		case s.Value == "":
			take(i, 3)
		case s.Value == e.Value:
			take(i, 0)
		case strings.Contains(s.Value, "*") && matchModel(s.Value, e.Value):
			take(i, 2)
		}
	}
	return best
}

// Stars in keys and in values, against the model.
func TestStarsAgreeWithTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab_*]{1,5}`)
		var specs []NodeSpec
		texts := make(map[string]bool)
		for range rapid.IntRange(1, 8).Draw(t, "rules") {
			s := NodeSpec{Key: word.Draw(t, "key")}
			if rapid.Bool().Draw(t, "with a value") {
				s.Value = word.Draw(t, "value")
			}
			id := s.Key + "\x00" + s.Value
			if HasWildcard(s.Key) || HasWildcard(s.Value) { // key and value of such a rule are one text
				id = s.Level().Text()
			}
			if !texts[id] {
				texts[id] = true
				specs = append(specs, s)
			}
		}
		rules := make([]*Rule, len(specs))
		for i := range specs {
			rules[i] = perMinute(uint64(i))
			specs[i].Rule = rules[i]
		}
		tree, err := Compile([]DomainSpec{{Name: "d", Children: specs}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		sent := rapid.StringMatching(`[ab_*]{0,7}`)
		for range 10 {
			e := Entry{sent.Draw(t, "sent key"), sent.Draw(t, "sent value")}
			if rapid.Bool().Draw(t, "as a rule") {
				s := rapid.SampledFrom(specs).Draw(t, "rule")
				e = Entry{s.Key, s.Value}
			}
			if e.Key == "" {
				continue
			}
			var want *Rule
			if i := matchedBy(specs, e); i >= 0 {
				want = rules[i]
			}
			if got := tree.Domain("d").Match([]Entry{e}); got != want {
				t.Fatalf("%q of %+v: %v, want %v", e, specs, got, want)
			}
			x := tree.Domain("d").Explain([]Entry{e}, KeyBuilder{})
			matched := 0
			for _, c := range x.Levels[0].Candidates {
				if c.Matched {
					matched++
				}
			}
			if x.Rule != want || (matched == 1) != (want != nil) || (x.Levels[0].Reason == "") != (want != nil) {
				t.Fatalf("%q of %+v is explained as %+v", e, specs, x)
			}
		}
	})
}

func TestStarredKeysAllocateNothing(t *testing.T) {
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		{Key: "hdr_*", Value: "*x*y", Rule: perMinute(1)}, {Key: "*", Rule: perMinute(1)},
	}}}, Options{})

	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []Entry{{"hdr_a", "1x2y"}, {"hdr_a", strings.Repeat("x", 5000)}, {"other", ""}} {
		if allocs := testing.AllocsPerRun(100, func() { tree.Domain("d").Match([]Entry{e}) }); allocs != 0 {
			t.Errorf("a match of %.20q allocates %v times", e, allocs)
		}
	}
}

// In the counter's key of a rule with a star in its key, the pattern stands for the value, and differs from all other
// patterns.
func TestKeysOfStarredRules(t *testing.T) {
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		{Key: "hdr_*", ShareThreshold: true, Rule: perMinute(1)},
		{Key: "*", Value: "v", Rule: perMinute(2)},
		{Key: "*", ShareThreshold: true, Rule: perMinute(3)},
		{Key: "k", Value: "*", ShareThreshold: true, Rule: perMinute(4)},
	}}}, Options{})

	if err != nil {
		t.Fatal(err)
	}
	d := tree.Domain("d")
	for _, c := range []struct {
		e         Entry
		own, lyft string
	}{
		{Entry{"hdr_a", "v"}, "d|hdr_a~~~hdr_*|f60", "d_hdr_a_hdr_*_{minute}"},
		{Entry{"hdr", "v"}, "d|hdr~~~hdr_*|f60", "d_hdr_*_{minute}"},
		{Entry{"other", "v"}, "d|other=v|f60", "d_other_v_{minute}"},
		{Entry{"other", "w"}, "d|other~~~*|f60", "d_other_*_{minute}"},
		{Entry{"k", "w"}, "d|k~~~*|f60", "d_k_*_{minute}"},
	} {
		entries := []Entry{c.e}
		rule := d.Match(entries)
		own := string(KeyBuilder{}.AppendKey(nil, "d", entries, rule, &rule.Limits[0]))
		lyft := string(KeyBuilder{Format: KeysLyft}.AppendKey(nil, "d", entries, rule, &rule.Limits[0]))
		if own != c.own || lyft != c.lyft {
			t.Errorf("%q counts in %q and %q, want %q and %q", c.e, own, lyft, c.own, c.lyft)
		}
	}
}
