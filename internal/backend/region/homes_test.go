package region

import (
	"encoding/hex"
	"reflect"
	"slices"
	"testing"
)

// The home that a region has heard of first stays the home until the epoch changes. Rules are kept in order, and as many as there is room for.
func TestTheFirstHomeStays(t *testing.T) {
	var h Homes
	for _, c := range []struct {
		name  string
		epoch uint64
		rules []RuleHome
		kept  bool
		want  []RuleHome
	}{
		{"the first rules, in any order", 2, []RuleHome{{5, "eu"}, {1, "us"}}, true, []RuleHome{{1, "us"}, {5, "eu"}}},
		{"another home for one, and others", 2, []RuleHome{{3, "us"}, {1, "eu"}, {9, ""}}, true, []RuleHome{{1, "us"}, {3, "us"}, {5, "eu"}, {9, ""}}},
		{"one that is named twice", 2, []RuleHome{{7, "us"}, {7, "eu"}}, true, []RuleHome{{1, "us"}, {3, "us"}, {5, "eu"}, {7, "us"}, {9, ""}}},
		{"an earlier epoch", 1, []RuleHome{{2, "us"}}, false, []RuleHome{{1, "us"}, {3, "us"}, {5, "eu"}, {7, "us"}, {9, ""}}},
		{"none", 2, nil, true, []RuleHome{{1, "us"}, {3, "us"}, {5, "eu"}, {7, "us"}, {9, ""}}},
		{"another epoch", 3, []RuleHome{{1, "eu"}}, true, []RuleHome{{1, "eu"}}},
	} {
		if h.Keep(&Epoch{Number: c.epoch, Home: "ap"}, c.rules) != c.kept || !slices.Equal(h.Rules, c.want) {
			t.Errorf("%s: %+v, want %+v, kept %v", c.name, h.Rules, c.want, c.kept)
		}
	}
	var many []RuleHome
	for i := range uint64(1<<16 + 1) {
		many = append(many, RuleHome{Rule: i})
	}
	h = Homes{}
	if !h.Keep(&Epoch{Number: 1}, many) || len(h.Rules) != 1<<16 {
		t.Errorf("%d rules are kept", len(h.Rules))
	}
	if got := new(Homes); got.ReadRecord(h.AppendRecord(nil)) != nil || !reflect.DeepEqual(got, &h) {
		t.Error("as many rules as there is room for cannot be read")
	}
	if new(Homes).ReadRecord((&Homes{Rules: many}).AppendRecord(nil)) == nil {
		t.Error("more rules than there is room for can be read")
	}
}

// A record of homes has each name once, in the order of its first use, and no others.
func TestTheFormOfHomes(t *testing.T) {
	h := Homes{Epoch: 2, Left: true, Regions: []string{"ap"}, Rules: []RuleHome{{1, "us"}, {3, "eu"}, {5, "us"}}, Former: []RuleHome{{6, "eu"}, {9, ""}}}
	const form = "4d0202" + "01" + "01026170" + "03" + "027573" + "026575" + "00" + "03" + "010000000000000000" + "030000000000000001" + "050000000000000000" +
		"02" + "060000000000000001" + "090000000000000002"
	if got := hex.EncodeToString(h.AppendRecord(nil)); got != form {
		t.Errorf("%s, want %s", got, form)
	}
	for _, c := range []struct{ name, record string }{
		{"another order of names", "4d0202" + "0000" + "02" + "027573" + "026575" + "02" + "010000000000000001" + "030000000000000000" + "00"},
		{"a name that is missing", "4d0202" + "0000" + "01" + "027573" + "02" + "010000000000000000" + "030000000000000001" + "00"},
		{"a name that is not used", "4d0202" + "0000" + "02" + "027573" + "026575" + "01" + "010000000000000000" + "00"},
		{"a name twice", "4d0202" + "0000" + "02" + "027573" + "027573" + "02" + "010000000000000000" + "030000000000000001" + "00"},
	} {
		b, err := hex.DecodeString(c.record)
		if err != nil {
			t.Fatal(err)
		}
		if got := new(Homes); got.ReadRecord(b) == nil {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	back := Homes{Epoch: 2, Rules: []RuleHome{{1, "us"}, {2, "eu"}, {3, "us"}}}
	if got := new(Homes); got.ReadRecord(back.AppendRecord(nil)) != nil || !reflect.DeepEqual(got, &back) {
		t.Errorf("the first home again: %+v", got)
	}
	b, _ := hex.DecodeString(form)
	if got := new(Homes); got.ReadRecord(b) != nil || !reflect.DeepEqual(got, &h) {
		t.Errorf("%+v, want %+v", got, h)
	}
}

// A region that becomes the home of counters with an epoch, and does not know the regions before, leaves their rules the home that they had.
func TestHomesOfAnEpochWithoutTheOneBefore(t *testing.T) {
	all, two := []string{"ap", "eu", "us"}, []string{"eu", "us"}
	for _, c := range []struct {
		was, named   string
		left, before bool
		want         string
	}{
		{was: "eu", named: "us", want: "eu"}, // it comes here
		{was: "", named: "us", want: ""},     // some come
		{was: "eu", named: "", want: "eu"},   // some come
		{was: "", named: "", want: ""},       // no list was changed
		{was: "", named: "", left: true, want: NoHome},
		{was: NoHome, named: "", want: NoHome},
		{was: NoHome, named: "us", want: NoHome},
		{was: "", named: "us", left: true, want: NoHome}, // some may have been in ap
		{was: "eu", named: "", left: true, want: "eu"},
		{was: "us", named: "us", left: true, want: "us"}, // all were here
		{was: "us", named: "", left: true, want: ""},
		{was: "us", named: "eu", left: true, want: "eu"}, // it goes elsewhere
		{was: "", named: "eu", left: true, want: "eu"},
		{was: "ap", named: "eu", left: true, want: "eu"},
		{was: "eu", named: "us", left: true, before: true, want: "us"},
		{was: "", named: "", left: true, before: true, want: ""},
		{was: NoHome, named: "us", before: true, want: "us"},
	} {
		h := Homes{}
		h.Keep(&Epoch{Number: 1, Home: "us", Regions: all}, []RuleHome{{1, c.was}, {2, "ap"}})
		e := &Epoch{Number: 2, Home: "us", Regions: all}
		if c.left {
			e.Regions = two
		}
		if c.before {
			e.Before = all
		}
		h.Keep(e, []RuleHome{{3, "us"}}) // a new rule
		h.Keep(e, []RuleHome{{1, c.named}})
		if want := []RuleHome{{1, c.want}, {3, "us"}}; !slices.Equal(h.Rules, want) {
			t.Errorf("%+v: %+v", c, h)
		}
		if former := []RuleHome{{2, "ap"}}; !c.before && !slices.Equal(h.Former, former) || c.before && h.Former != nil {
			t.Errorf("%+v: of the epoch before %+v", c, h.Former)
		}
		if got := new(Homes); got.ReadRecord(h.AppendRecord(nil)) != nil || !reflect.DeepEqual(got, &h) {
			t.Errorf("%+v became %+v", h, got)
		}
	}
}
