package simulate_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

var update = flag.Bool("update", false, "write the table of docs/understand/algorithms.md anew")

// traffic is one kind of traffic of the table in docs/understand/algorithms.md. The limit is 100 a minute for each caller.
type traffic struct {
	title   string
	callers int
	// requests returns the times of the requests of one caller, in microseconds after the beginning.
	requests func(r *rand.Rand, caller int) []int64
}

const (
	trafficLimit  = 100
	trafficLength = 10 * 60_000_000 // microseconds
	minute        = 60_000_000
)

var kinds = []traffic{
	{"one caller in 500 is over", 500, func(r *rand.Rand, caller int) []int64 {
		if caller == 0 {
			return random(r, 110)
		}
		return random(r, 8)
	}},
	{"all at the limit", 25, func(r *rand.Rand, _ int) []int64 { return random(r, 100) }},
	{"all at twice the limit", 15, func(r *rand.Rand, _ int) []int64 { return random(r, 200) }},
	{"bursts", 25, bursts},
}

// random are requests that come independently of each other, so many a minute.
func random(r *rand.Rand, perMinute float64) (all []int64) {
	for at := int64(0); ; {
		at += int64(r.ExpFloat64() * minute / perMinute) // whole microseconds: the same on every processor
		if at >= trafficLength {
			return all
		}
		all = append(all, at)
	}
}

// bursts are 60 to 120 requests within two seconds, and then a pause of 20 to 80 seconds.
func bursts(r *rand.Rand, _ int) (all []int64) {
	for at := r.Int64N(minute); at < trafficLength; at += minute/3 + r.Int64N(minute) {
		for range 60 + r.IntN(61) {
			all = append(all, at+r.Int64N(2_000_000))
		}
	}
	slices.Sort(all)
	return all
}

// log returns the requests of all callers as a log in order of time.
func (k *traffic) log() string {
	type request struct {
		at     int64
		caller int
	}
	var all []request
	for caller := range k.callers {
		for _, at := range k.requests(rand.New(rand.NewPCG(1, uint64(caller))), caller) {
			all = append(all, request{start.UnixMicro() + at, caller})
		}
	}
	slices.SortFunc(all, func(a, b request) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.caller, b.caller)) })
	var b strings.Builder
	for _, a := range all {
		fmt.Fprintf(&b, "%d,caller%d,1\n", a.at, a.caller)
	}
	return b.String()
}

// The table of docs/understand/algorithms.md has what simulate says about traffic of these kinds.
func TestTableOfAlgorithms(t *testing.T) {
	m := mapping(t, strings.Replace(hitsMapping, "unix_ms", "unix_us", 1))
	head, line := "| algorithm |", "|---|"
	var rows []string
	for i := range kinds {
		k := &kinds[i]
		c := run(t, simulate.Options{Rules: rules(t, perCaller(trafficLimit)), Mapping: m, CompareAlgorithms: true}, k.log()).Comparison
		if i == 0 {
			for _, d := range c.Algorithms[1:] {
				rows = append(rows, "| `"+strings.TrimSuffix(d.Algorithm+"`, `"+d.Settings, ", `")+"` |")
			}
			for j := range rows {
				rows[j] = strings.ReplaceAll(rows[j], "``", "`")
			}
			rows = append(rows, "| the exact log refuses |")
		}
		head += " " + k.title + " |"
		line += "---|"
		for j, d := range c.Algorithms[1:] {
			rows[j] += fmt.Sprintf(" %s + %s %%; %.0f %% |", share(d.Refused, d.Decisions), share(d.Admitted, d.Decisions), d.MostPercent)
		}
		rows[len(rows)-1] += fmt.Sprintf(" %s %% |", share(c.Refused, c.Decisions))
	}
	want := head + "\n" + line + "\n" + strings.Join(rows, "\n") + "\n"

	const page, begin, end = "../../docs/understand/algorithms.md", "<!-- generated: how often algorithms differ from an exact log -->\n", "<!-- end -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), begin)
	was, after, ends := strings.Cut(rest, end)
	switch {
	case !begins || !ends:
		t.Fatalf("%s has no place for the table", page)
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	case was != want:
		t.Errorf("%s is not what simulate says: go test ./internal/simulate -update\n%s", page, want)
	}
}

// share writes a share in percent.
func share(n, of int64) string {
	percent := 100 * float64(n) / float64(of)
	switch {
	case n == 0:
		return "0"
	case percent < 1:
		return strconv.FormatFloat(percent, 'f', 3, 64)
	}
	return strconv.FormatFloat(percent, 'f', 1, 64)
}
