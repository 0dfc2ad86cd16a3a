package descriptor

import "testing"

// Two rules have one FirstTag if they share a counter, or if rules in between do.
func TestFirstTag(t *testing.T) {
	plan := func(name string, units ...Unit) NodeSpec {
		r := &Rule{}
		for _, u := range units {
			r.Limits = append(r.Limits, Limit{Name: u.String(), Requests: 5, Window: Window{Unit: u}})
		}
		return NodeSpec{Key: "plan", Value: name, Condition: true, Children: []NodeSpec{{Key: "user", Rule: r}}}
	}
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		plan("a", Second), plan("b", Hour, Second), plan("c", Day, Hour), plan("alone", Minute), plan("twice", Week, Month),
	}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[string]string)
	for _, r := range tree.Rules {
		of[r.Levels[0].Value] = r.FirstTag()
	}
	if of["a"] != of["b"] || of["b"] != of["c"] || of["alone"] == of["a"] || of["twice"] == of["a"] || of["twice"] == of["alone"] {
		t.Errorf("%v", of)
	}
}

// Rules under conditions share a counter if their patterns are equal and their groups are too. The network 10.0.0.0 of
// a /16 and of a /24 are two groups, although their texts start with the same numbers.
func TestGroupsUnderConditions(t *testing.T) {
	keys := make(map[string]string)
	rule := &Rule{Limits: []Limit{{Requests: 5, Window: Window{Unit: Hour}}}}
	address := func(bits uint8) []NodeSpec {
		return []NodeSpec{{Key: "ip", Kind: MatchCIDR, Value: "10.0.0.0/8", Group: Group{V4: bits}, Rule: &Rule{Limits: rule.Limits}}}
	}
	name := func(fold bool) []NodeSpec {
		return []NodeSpec{{Key: "name", Kind: MatchRegex, Value: "(.*)-x", Group: Group{Capture: 1}, FoldCase: fold, Rule: &Rule{Limits: rule.Limits}}}
	}
	tree, err := Compile([]DomainSpec{{Name: "d", Children: []NodeSpec{
		{Key: "plan", Value: "free", Condition: true, Children: append(address(24), name(true)...)},
		{Key: "plan", Value: "pro", Condition: true, Children: append(address(16), name(false)...)},
		{Key: "plan", Value: "same", Condition: true, Children: address(24)},
	}}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, caller := range [][]Entry{
		{{"plan", "free"}, {"ip", "10.0.0.1"}}, {{"plan", "pro"}, {"ip", "10.0.0.1"}}, {{"plan", "same"}, {"ip", "10.0.0.1"}},
		{{"plan", "free"}, {"name", "a-x"}}, {{"plan", "pro"}, {"name", "a-x"}},
	} {
		keys[caller[0].Value+" "+caller[1].Key] = tree.Domain("d").Explain(caller, KeyBuilder{}).Keys[0]
	}
	if keys["free ip"] == keys["pro ip"] || keys["free ip"] != keys["same ip"] || keys["free name"] == keys["pro name"] {
		t.Errorf("%v", keys)
	}
}
