package matrix

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

var update = flag.Bool("update", false, "write docs/contributing/matrix.md; read it before it is kept")

// start is the time at which a bubble of testing/synctest starts.
var start = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// plain is the baseline for all ways: counters in the memory of one replica.
var plain = way{name: "memory", column: "memory", stores: func(*testing.T, string) stores { return one(memory.New(memory.Options{})) }}

// Every key of the rule language has a feature, and each algorithm has a separate one.
func TestEveryKeyHasAFeature(t *testing.T) {
	covered := make(map[string]bool)
	for _, f := range features() {
		for _, key := range f.keys {
			covered[key] = true
			if _, name, _ := strings.Cut(key, "."); !strings.Contains(f.file(&plain), name+":") {
				t.Errorf("the rules of the feature %q do not have the key %s", f.name, key)
			}
		}
	}
	known := make(map[string]bool)
	for _, form := range config.Rules().Maps {
		for _, key := range form.Keys {
			id := form.Name + "." + key.Name
			if known[id] = true; !covered[id] {
				t.Errorf("the key %s is in no feature: add one to features_test.go", id)
			}
		}
	}
	for key := range covered {
		if !known[key] {
			t.Errorf("features name the key %s, which the rule language does not have", key)
		}
	}
}

// amounts are the hits that each customer asks for, one after the other: 0 looks, and a negative number returns hits. 6
// exceeds the remaining hits at that point.
var amounts = []int64{1, 7, 0, 6, -2, 1, 1, 1_000_000, -1, 1}

// amountsOf returns the amounts for limits that are larger by a factor. Single hits come first, because leases take
// permits in advance for them.
func amountsOf(times int64) []int64 {
	if times == 1 {
		return amounts
	}
	all := slices.Repeat([]int64{1}, 12)
	for _, n := range amounts {
		all = append(all, max(n, min(n*times, 1000)))
	}
	return append(all, all[:12]...)
}

const rounds, between = 4, 20 * time.Minute

// history is a feature's results, as clients and operators see them.
type history struct {
	answers  []string // full answers to the requests
	verdicts []string // short forms of the answers: verdict and remaining hits
	left     []string // remaining hits of each limit
	counters []string
	rest     []string // usage, events and metrics
}

// play sends all kinds of requests for the customers of a feature: for each alone, for all in one request, with hits
// that have passed already, with reservations where the rule has them; and again when no hits remain.
func (s *system) play(f *feature) (h history) {
	s.Helper()
	overrides := &override.Set{}
	for round := range rounds {
		now := start.Add(time.Duration(round) * between)
		if set := f.over[round]; set != nil {
			rule, numbers := set()
			overrides = overrides.With(overrides.Version+1, []override.Change{{
				Identity: override.Identity{Domain: "d", Rule: rule, Entries: entriesOf(f.callers[0])}, Numbers: numbers,
			}})
			for _, l := range s.replicas {
				l.SetOverrides(overrides)
			}
		}
		note := func(what string, req *limiter.Request) {
			d, text := s.decide(now, req)
			h.verdicts = append(h.verdicts, fmt.Sprintf("round %d, %s: %s", round, what, verdictOf(&d)))
			h.answers = append(h.answers, fmt.Sprintf("round %d, %s: %s", round, what, text))
		}
		for _, n := range amountsOf(s.times) {
			for _, caller := range f.callers {
				note(fmt.Sprintf("%s %d", caller, n), &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{f.descriptor(caller, n)}})
			}
		}
		for range 2 {
			all := &limiter.Request{Domain: "d"}
			for _, caller := range f.callers {
				all.Descriptors = append(all.Descriptors, f.descriptor(caller, 1))
			}
			note("all 1", all)
		}
		if f.ask == nil {
			note("settled 2", limiter.SettledRequest("d", entriesOf(f.callers[0]), 2))
		}
		for i, caller := range f.callers {
			s.reserve(note, f, caller, byte(round*len(f.callers)+i))
		}
		for range 5 {
			for _, n := range []int64{1, 5} {
				note(fmt.Sprintf("%s %d again", f.callers[0], n), &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{f.descriptor(f.callers[0], n)}})
			}
		}
		counters, left, rest := s.looks(now, f)
		h.left = append(h.left, left...)
		h.counters, h.rest = append(h.counters, counters...), append(h.rest, rest...)
	}
	return h
}

// reserve reserves hits, commits some of them, and cancels another reservation.
func (s *system) reserve(note func(string, *limiter.Request), f *feature, caller string, id byte) {
	entries := entriesOf(caller)
	if x := s.tree.Domain("d").Explain(entries, descriptor.KeyBuilder{}); x.Rule == nil || !x.Rule.Reservable() {
		return
	}
	for i, step := range []struct {
		op   limiter.ReservationOp
		hits int64
	}{{limiter.Reserve, 3}, {limiter.Extend, 0}, {limiter.Commit, 1}, {limiter.Commit, 1}, {limiter.Reserve, 2}, {limiter.Commit, 0}, {limiter.Reserve, 1}} {
		number := byte(max(0, i-2) / 2) // steps 0 to 3, 4 and 5, 6
		r := &limiter.Reservation{Op: step.op, ID: backend.ReservationID{id + 1, number}, Final: step.op == limiter.Commit}
		note(fmt.Sprintf("%s reservation %d", caller, i), &limiter.Request{Domain: "d", Reservation: r, Descriptors: []limiter.Descriptor{{Entries: entries, Hits: uint64(step.hits), HasHits: true}}})
	}
}

// descriptor returns the descriptor of a customer with its hits.
func (f *feature) descriptor(caller string, n int64) limiter.Descriptor {
	d := limiter.Descriptor{Entries: entriesOf(caller), HasHits: true, Hits: uint64(max(n, -n)), Refund: n < 0}
	if f.ask != nil {
		f.ask(&d)
	}
	return d
}

// greedy sends single hits for every customer until the limits are used up, and returns how many hits pass in total.
func (s *system) greedy(f *feature) (passed int) {
	step := time.Second
	if s.times > 1 {
		step = 10 * time.Millisecond // so often that permits are taken in advance
	}
	for i := range 60 * s.times {
		for _, caller := range f.callers {
			if d, _ := s.decide(start.Add(time.Duration(i)*step), &limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{f.descriptor(caller, 1)}}); d.Code == limiter.OK {
				passed++
			}
		}
	}
	return passed
}

// cell is the result for a feature and a way.
type cell struct {
	rejected string // why check rejects the rules, in its words
	mark     string
	did      bool // whether the requests used the mechanism of the way, such as its cache
}

// TestMatrix compares every feature, under every way to count, with plain counters in memory.
func TestMatrix(t *testing.T) {
	table := make(map[string]cell)
	all, columns := features(), ways(t)
	for i := range all {
		f := &all[i]
		if tree, why := treeOf(f, &plain); tree == nil {
			t.Errorf("%s: %s", f.name, why)
			continue
		}
		for k := range columns {
			w := &columns[k]
			t.Run(f.name+"/"+w.column, func(t *testing.T) {
				table[f.name+"/"+w.column] = cellOf(t, f, w, fmt.Sprintf("m%d.%d.", i, k))
			})
		}
	}
	for k := range columns {
		counted, did := 0, 0
		for i := range all {
			if c, ok := table[all[i].name+"/"+columns[k].column]; ok && c.rejected == "" {
				counted++
				if c.did {
					did++
				}
			}
		}
		if counted > 1 && did < counted/2 { // else it compares memory with memory
			t.Errorf("%s: only %d of %d features are counted in this way", columns[k].name, did, counted)
		}
	}
	tableWith(t, table, all, columns)
}

// cellOf compares a feature under a way to count with plain counters.
func cellOf(t *testing.T, f *feature, w *way, prefix string) cell {
	t.Helper()
	if w.run != nil {
		return cell{w.run(t, f), markOf(w.grade), true}
	}
	s, why := newSystem(t, f, w, prefix)
	if s != nil {
		why = cannot(s.tree, w)
	}
	if why != "" {
		return cell{rejected: why}
	}
	alike := plain
	alike.top, alike.times = w.top, w.times
	reference, _ := newSystem(t, f, &alike, "")
	graded := w.grade
	if w.loose != nil && w.loose(s.tree) {
		graded = within
		again, _ := newSystem(t, f, w, prefix)
		_ = again.play(f) // each request is answered
	}
	if graded == within {
		passed, most := s.greedy(f), reference.greedy(f)
		if slices.ContainsFunc(s.tree.Rules, func(r *descriptor.Rule) bool { return r.CountedWith() != "" }) {
			most += most * w.late / 100
		}
		if passed > most || 100*passed < int(w.least)*most {
			t.Errorf("%d of at most %d hits passed", passed, most)
		}
		return cell{"", markOf(graded), s.did == nil || s.did()}
	}
	want, got := reference.play(f), s.play(f)
	found := cell{"", markOf(graded), s.did == nil || s.did()}
	if graded == verdict {
		compare(t, "verdicts", want.verdicts, got.verdicts)
		compare(t, "left", want.left, got.left)
		return found
	}
	compare(t, "answers", want.answers, got.answers)
	if w.settings.OnError == descriptor.OnErrorDefault {
		compare(t, "counters", want.counters, got.counters)
	}
	if graded == same {
		compare(t, "usage, events and metrics", want.rest, got.rest)
	}
	return found
}

func markOf(g grade) string {
	if g == within {
		return "at most"
	}
	return "yes"
}

// cannot returns why rules that load are not counted in a way, in the words of the docs.
func cannot(tree *descriptor.Tree, w *way) string {
	for _, r := range tree.Rules {
		for i := range r.Limits {
			switch l := &r.Limits[i]; {
			case w.settings.OnError == descriptor.OnErrorLocal && (r.Shadow || len(r.Limits) == 1 && l.Enforcement != descriptor.EnforcedForAll):
				return "what is not enforced passes, and is not counted"
			case w.settings.OnError == descriptor.OnErrorLocal && l.Reservable():
				return "a reservation needs the store that keeps it: it gets the error"
			case w.settings.OnError == descriptor.OnErrorLocal && r.OnError != descriptor.OnErrorDefault:
				return "the rule has another `on_error`"
			case w.grade == within && l.Reservable():
				return "a reservation needs a counter of its own: it gets the error"
			}
		}
	}
	return ""
}

// compare reports the first lines in which two histories differ.
func compare(t *testing.T, what string, want, got []string) {
	t.Helper()
	shown := 0
	for i := range max(len(want), len(got)) {
		w, g := "(nothing)", "(nothing)"
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if w != g {
			if shown++; shown > 3 {
				t.Errorf("%s: and more", what)
				return
			}
			t.Errorf("%s:\n got %s\nwant %s", what, g, w)
		}
	}
}

const page = "../../docs/contributing/matrix.md"

// tableWith compares the page with the results, or writes it.
func tableWith(t *testing.T, table map[string]cell, all []feature, columns []way) {
	t.Helper()
	if t.Failed() || len(table) < len(all)*len(columns) { // -run chose some
		return
	}
	var b strings.Builder
	b.WriteString("| feature | memory |")
	for k := range columns {
		fmt.Fprintf(&b, " %s |", columns[k].column)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	var notes []string
	for i := range all {
		fmt.Fprintf(&b, "| %s | yes |", strings.ReplaceAll(all[i].name, "|", `\|`))
		for k := range columns {
			c := table[all[i].name+"/"+columns[k].column]
			mark := c.mark
			if c.rejected != "" {
				n := slices.Index(notes, c.rejected)
				if n < 0 {
					n = len(notes)
					notes = append(notes, c.rejected)
				}
				mark = fmt.Sprintf("no (%d)", n+1)
			}
			fmt.Fprintf(&b, " %s |", mark)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for n, note := range notes {
		fmt.Fprintf(&b, "%d. %s\n", n+1, note)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated: go test ./workshop/matrix -update -->\n", "<!-- end -->"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no lines %q and %q", page, begin, end)
	}
	if next := before + begin + b.String() + end + after; next != string(text) {
		if !*update {
			t.Errorf("%s says something else than the test found: run go test ./workshop/matrix -update", page)
		} else if err := os.WriteFile(page, []byte(next), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
