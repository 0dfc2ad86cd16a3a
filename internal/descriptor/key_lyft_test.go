package descriptor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Each key was worked out by hand from the format of envoyproxy/ratelimit: prefix, domain, then key and value of each
// entry with underscores between, then the start of the window.
func TestLyftKeys(t *testing.T) {
	at := time.Date(2026, 11, 21, 15, 4, 5, 678_000_000, time.UTC)
	per := func(u Unit) *Limit { return &Limit{Requests: 5, Window: Window{Unit: u}} }
	calendar := func(named bool) *Limit {
		return &Limit{Requests: 5, Window: Window{Unit: Month, Location: time.UTC, Named: named}}
	}
	rule := func(l *Limit, levels ...Level) *Rule {
		r := sharing(levels...)
		r.Limits = []Limit{*l}
		return r
	}
	long := strings.Repeat("v", maxLyftKeySize)
	for name, c := range map[string]struct {
		prefix  string
		entries []Entry
		rule    *Rule
		limit   *Limit
		want    string // own: the key is one of ours
	}{
		"a second": {"", []Entry{{"k", "v"}}, nil, per(Second), "d_k_v_1795273445"},
		"a minute": {"", []Entry{{"k", "v"}}, nil, per(Minute), "d_k_v_1795273440"},
		"an hour":  {"", []Entry{{"k", "v"}}, nil, per(Hour), "d_k_v_1795273200"},
		"a day":    {"", []Entry{{"k", "v"}}, nil, per(Day), "d_k_v_1795219200"},
		// weeks count from the epoch, a Thursday
		"a week":                 {"", []Entry{{"k", "v"}}, nil, per(Week), "d_k_v_1795046400"},
		"a month":                {"", []Entry{{"k", "v"}}, nil, per(Month), "d_k_v_1793664000"}, // 30 days
		"a year":                 {"", []Entry{{"k", "v"}}, nil, per(Year), "d_k_v_1766016000"},  // 365 days
		"a month of a calendar":  {"", []Entry{{"k", "v"}}, nil, calendar(true), "d_k_v_1793491200"},
		"our own calendar":       {"", []Entry{{"k", "v"}}, nil, calendar(false), "own"},
		"a prefix":               {"p:", []Entry{{"k", "v"}}, nil, per(Minute), "p:d_k_v_1795273440"},
		"several entries":        {"", []Entry{{"k", "v"}, {"l", "w"}}, nil, per(Minute), "d_k_v_l_w_1795273440"},
		"no value":               {"", []Entry{{"k", ""}, {"l", "w"}}, nil, per(Minute), "d_k__l_w_1795273440"},
		"bytes that we escape":   {"", []Entry{{"k", "a|b=c~{d}\\"}}, nil, per(Minute), "d_k_a|b=c~{d}\\_1795273440"},
		"a rule":                 {"", []Entry{{"k", "v"}}, rule(per(Minute), Level{Key: "k", Value: "", Kind: MatchAny}), per(Minute), "d_k_v_1795273440"},
		"a pattern":              {"", []Entry{{"k", "v/1"}, {"l", "w"}}, rule(per(Minute), Level{"k", "v/*", MatchWildcard}, Level{Key: "l"}), per(Minute), "d_k_v/*_l_w_1795273440"},
		"a limit of the request": {"", []Entry{{"k", "v/1"}}, nil, per(Minute), "d_k_v/1_1795273440"},
		"a shared expression":    {"", []Entry{{"k", "v1"}}, rule(per(Minute), Level{"k", "v.", MatchRegex}), per(Minute), "own"},
		"a shared network":       {"", []Entry{{"k", "10.0.0.1"}}, rule(per(Minute), Level{"k", "10.0.0.0/8", MatchCIDR}), per(Minute), "own"},
		"several units":          {"", []Entry{{"k", "v"}}, nil, &Limit{Window: Window{Unit: Minute, Multiplier: 5}}, "own"},
		"one unit, said":         {"", []Entry{{"k", "v"}}, nil, &Limit{Window: Window{Unit: Minute, Multiplier: 1}}, "d_k_v_1795273440"},
		"another algorithm":      {"", []Entry{{"k", "v"}}, nil, &Limit{Window: Window{Unit: Minute}, Algorithm: SlidingWindow}, "own"},
		"from the first hit":     {"", []Entry{{"k", "v"}}, nil, &Limit{Window: Window{Unit: Minute}, FirstHit: true}, "own"},
		"one of several limits":  {"", []Entry{{"k", "v"}}, &Rule{Limits: []Limit{*per(Hour), *per(Day)}}, per(Hour), "own"},
		"a value without bound":  {"", []Entry{{"k", long}}, nil, per(Minute), "own"},
		"one that is just short": {"", []Entry{{"k", long[6:]}}, nil, per(Minute), "d_k_" + long[6:] + "_1795273440"},
	} {
		t.Run(name, func(t *testing.T) {
			key := KeyBuilder{Prefix: c.prefix, Format: KeysLyft}.AppendKey(nil, "d", c.entries, c.rule, c.limit)
			stem, ok := CutLyftKey(key)
			if c.want == "own" {
				if own := (KeyBuilder{Prefix: c.prefix}).AppendKey(nil, "d", c.entries, c.rule, c.limit); ok || string(key) != string(own) {
					t.Errorf("got %q, want our own key %q", key, own)
				}
				return
			}
			if !ok {
				t.Fatalf("%q is none of these keys", key)
			}
			start, _ := c.limit.Window.Bounds(at.UnixMicro())
			if got := string(AppendLyftKey([]byte("x"), stem, start)); got != "x"+c.want {
				t.Errorf("got %q, want %q", got, "x"+c.want)
			}
		})
	}
}

// No key of our format is mistaken for one whose window's start must be filled in, whatever values a client sends.
func TestOwnKeysAreNoLyftKeys(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("a_|=~{}\\1")), 0, 8, -1)
	zone, err := time.LoadLocation("America/Argentina/Buenos_Aires")
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		var entries []Entry
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			value := text.Draw(t, "value")
			if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
				value = strings.Repeat(value+"{a}", maxKeySize/4)
			}
			entries = append(entries, Entry{text.Draw(t, "key"), value})
		}
		l := &Limit{Algorithm: Algorithm(rapid.IntRange(0, 4).Draw(t, "algorithm")), Window: Window{Unit: Unit(rapid.IntRange(1, 7).Draw(t, "unit"))}}
		if rapid.Bool().Draw(t, "calendar") {
			l.Window.Location, l.Window.Named = zone, rapid.Bool().Draw(t, "named")
		}
		key := KeyBuilder{Prefix: text.Draw(t, "prefix")}.AppendKey(nil, text.Draw(t, "domain"), entries, nil, l)
		if stem, ok := CutLyftKey(key); ok {
			t.Fatalf("%q is cut to %q", key, stem)
		}
	})
}

// With the setting of the operator, a month is a calendar month, and the protocol still calls it a month.
func TestCalendarMonths(t *testing.T) {
	rule := &Rule{Limits: []Limit{
		{Window: Window{Unit: Month}},
		{Window: Window{Unit: Day}},
		{Window: Window{Unit: Month, Multiplier: 3}},
		{Window: Window{Unit: Month}, Algorithm: TokenBucket, Requests: 1},
		{Window: Window{Unit: Month}, FirstHit: true},
		{Window: Window{Unit: Month, Location: time.UTC}},
	}}
	for i := range rule.Limits {
		if err := rule.Limits[i].Compile(); err != nil {
			t.Fatal(err)
		}
	}
	given := slices.Clone(rule.Limits)
	tree, err := Compile([]DomainSpec{{Name: "d", Copy: true, Children: []NodeSpec{{Key: "k", Rule: rule}}}}, Options{CalendarMonths: true})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(given, rule.Limits) {
		t.Errorf("a spec that the tree takes a copy of was changed: %+v", rule.Limits)
	}
	limits := tree.Rules[0].Limits
	start, end := limits[0].Window.Bounds(time.Date(2028, 2, 29, 23, 0, 0, 0, time.UTC).UnixMicro())
	if text(start) != "2028-02-01T00:00:00Z" || text(end) != "2028-03-01T00:00:00Z" || !limits[0].Window.Named {
		t.Errorf("the month is %s to %s, named %v", text(start), text(end), limits[0].Window.Named)
	}
	for i, l := range limits[1:] {
		if l.Window.Named {
			t.Errorf("limit %d was changed: %+v", i+1, l)
		}
	}
	// Counters of both kinds of months, and of a rule that sets its calendar itself, are not the same.
	if limits[0].SharesCounter(&limits[5]) || limits[0].SharesCounter(&Limit{Window: Window{Unit: Month}}) {
		t.Error("different months share a counter")
	}
}
