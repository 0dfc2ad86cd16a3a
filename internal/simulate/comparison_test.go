package simulate_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

// written has each alternative as a rule file writes it.
var written = []struct{ algorithm, settings string }{
	{"fixed_window", ""},
	{"fixed_window", "align: first_hit"},
	{"sliding_window", "precision: 1"},
	{"sliding_window", "precision: 2"},
	{"sliding_window", "precision: 5"},
	{"sliding_window", "precision: 10"},
	{"sliding_log", ""},
	{"token_bucket", ""},
	{"token_bucket", "refill: interval"},
	{"leaky_bucket", ""},
}

func limitText(algorithm, settings, rate string) string {
	text := "algorithm: " + algorithm
	if settings != "" {
		text += ", " + settings
	}
	return fmt.Sprintf("domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {%s, %s}}\n", rate, text)
}

const hitsMapping = `
format: csv
columns: [t, ip, hits]
time: {field: t, layout: unix_ms}
domain: edge
descriptors:
  - [{key: remote_address, field: ip}]
hits: {field: hits}
`

// askedAt is a request of a generated log.
type askedAt struct {
	at     int64 // milliseconds
	caller int
	hits   int64
}

// mixed generates requests of callers with pauses and bursts, some of several hits, and of two lines with one time.
func mixed(n int) (all []askedAt, log string) {
	var b strings.Builder
	r := rand.New(rand.NewPCG(7, 8))
	at := start.UnixMilli()
	for range n {
		switch r.IntN(50) {
		case 0:
			at += r.Int64N(90_000)
		case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10:
		default:
			at += r.Int64N(700)
		}
		a := askedAt{at, r.IntN(3), 1}
		if r.IntN(20) == 0 {
			a.hits = 1 + r.Int64N(12)
		}
		all = append(all, a)
		fmt.Fprintf(&b, "%d,10.0.0.%d,%d\n", a.at, a.caller, a.hits)
	}
	return all, b.String()
}

// keptHits are the hits of one caller that passed.
type keptHits []askedAt

// within is the sum of the hits of the window that ends at a time.
func (k keptHits) within(end, length int64) (sum int64) {
	for _, a := range k {
		if a.at > end-length && a.at <= end {
			sum += a.hits
		}
	}
	return sum
}

// The differences of each algorithm are those between a plain log of all that was admitted, and a run with rules that have that
// algorithm.
func TestAlgorithmsAreCompared(t *testing.T) {
	const limit, length = 10, 60_000
	const rate = "unit: minute, requests_per_unit: 10"
	requests, text := mixed(3000)
	m := mapping(t, hitsMapping)
	exact := make([]bool, len(requests))
	refused := int64(0)
	kept := make([]keptHits, 3)
	for i, a := range requests {
		if exact[i] = kept[a.caller].within(a.at, length)+a.hits <= limit; exact[i] {
			kept[a.caller] = append(kept[a.caller], a)
		} else {
			refused++
		}
	}
	var want []simulate.AlgorithmDifference
	for _, w := range written {
		settings := w.settings
		if w.algorithm == "fixed_window" || w.algorithm == "sliding_log" {
			settings = strings.Trim(settings+", count_denied: false", ", ")
		}
		kept := make([]keptHits, 3)
		d := simulate.AlgorithmDifference{Algorithm: w.algorithm, Settings: w.settings, Decisions: int64(len(requests))}
		i, most := 0, int64(0)
		run(t, simulate.Options{
			Rules: rules(t, limitText(w.algorithm, settings, rate)), Mapping: m,
			Verdicts: func(v *simulate.Verdict) error {
				a, passes := requests[i], v.Code == "OK"
				if passes {
					kept[a.caller] = append(kept[a.caller], a)
					most = max(most, kept[a.caller].within(a.at, length))
				}
				switch {
				case passes && !exact[i]:
					d.Admitted++
				case !passes && exact[i]:
					d.Refused++
				}
				i++
				return nil
			},
		}, text)
		d.MostPercent = 100 * (float64(most) / limit)
		want = append(want, d)
	}
	// Of the algorithms that may differ, each does: else this shows nothing.
	for _, d := range want {
		if (d.Algorithm == "sliding_log") != (d.Differ() == 0) {
			t.Errorf("%s %s: %d decisions differ", d.Algorithm, d.Settings, d.Differ())
		}
	}
	for place, own := range want {
		settings := own.Settings
		if own.Algorithm == "fixed_window" || own.Algorithm == "sliding_log" {
			settings = strings.Trim(settings+", count_denied: false", ", ")
		}
		r := run(t, simulate.Options{Rules: rules(t, limitText(own.Algorithm, settings, rate)), Mapping: m, CompareAlgorithms: true}, text)
		c := r.Comparison
		own.Algorithm, own.Settings, own.AsWritten = "as in the rules", "", true
		if diff := cmp.Diff(slices.Concat([]simulate.AlgorithmDifference{own}, want), c.Algorithms); diff != "" {
			t.Errorf("%s (-want +got):\n%s", written[place], diff)
		}
		if c.Decisions != int64(len(requests)) || c.Refused != refused || c.LeftOut != 0 || len(c.Limits) != 1 || c.Limits[0].Decisions != c.Decisions {
			t.Errorf("%+v", c)
		}
	}
}

// Ten requests late in one minute and ten early in the next.
func TestComparisonAtTheBorderOfTwoWindows(t *testing.T) {
	var lines []string
	for range 10 {
		lines = append(lines, at(59, "a", ""))
	}
	for range 10 {
		lines = append(lines, at(61, "a", ""))
	}
	r := run(t, simulate.Options{Rules: rules(t, perCaller(10)), CompareAlgorithms: true}, lines...)
	rows := map[string][3]int64{} // refused, admitted, most
	for _, d := range r.Comparison.Algorithms[1:] {
		rows[strings.TrimSpace(d.Algorithm+" "+d.Settings)] = [3]int64{d.Refused, d.Admitted, int64(d.MostPercent + 0.5)}
	}
	if diff := cmp.Diff(map[string][3]int64{
		"fixed_window":                  {0, 10, 200},
		"fixed_window align: first_hit": {0, 0, 100},
		"sliding_window precision: 1":   {0, 1, 110},
		"sliding_window precision: 2":   {0, 0, 100},
		"sliding_window precision: 5":   {0, 0, 100},
		"sliding_window precision: 10":  {0, 0, 100},
		"sliding_log":                   {0, 0, 100},
		"token_bucket":                  {0, 0, 100},
		"token_bucket refill: interval": {0, 10, 200},
		"leaky_bucket":                  {0, 1, 110},
	}, rows); diff != "" {
		t.Error(diff)
	}
}

// Every limit is compared by itself. A limit that no algorithm but its own can count, and one of requests in flight, which an exact
// log of hits cannot decide, are no rows that say nothing.
func TestComparisonOfEachLimit(t *testing.T) {
	r := run(t, simulate.Options{CompareAlgorithms: true, Rules: rules(t, `domain: edge
descriptors:
- key: remote_address
  rate_limits:
  - {name: burst, unit: second, requests_per_unit: 2}
  - {name: large, unit: hour, requests_per_unit: 100000}
  - {name: busy, algorithm: concurrency, max_in_flight: 2, ttl: 1s}
- {key: path, value: /x, rate_limit: {unit: minute, requests_per_unit: 0}}
- {key: path, value: /y, rate_limit: {unit: day, requests_per_unit: 1, calendar: Asia/Seoul}}
`)}, at(0, "a", "/x"), at(0, "a", "/y"), at(0, "a", "/y"), at(0, "a", ""), at(1, "a", ""))
	type row struct {
		Limit              string
		Decisions, Refused int64
		Algorithms         int
	}
	var rows []row
	for _, l := range r.Comparison.Limits {
		rows = append(rows, row{l.Rule + " " + l.Name + " " + l.Limit, l.Decisions, l.Refused, len(l.Algorithms)})
	}
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.Limit, b.Limit) })
	if diff := cmp.Diff([]row{
		{"edge.path_/y  1 per day, fixed window on the calendar of Asia/Seoul", 2, 1, 11},
		{"edge.remote_address burst 2 per second, fixed window", 5, 2, 11},
		{"edge.remote_address large 100000 per hour, fixed window", 5, 0, 10}, // too large for a sliding_log
	}, rows); diff != "" {
		t.Error(diff)
	}
	if c := r.Comparison; c.Decisions != 12 || c.Refused != 3 || c.Algorithms[0].Decisions != 12 {
		t.Errorf("%+v", c)
	}
}

// A penalty refuses what an exact log admits. So a limit with one is not compared, and is no limit that differs in nothing.
func TestComparisonLeavesPenaltiesOut(t *testing.T) {
	var lines []string
	for range 5 {
		lines = append(lines, at(0, "a", ""))
	}
	lines = append(lines, at(120, "a", "")) // refused by the penalty
	r := run(t, simulate.Options{CompareAlgorithms: true, Rules: rules(t, `domain: edge
descriptors:
- key: remote_address
  rate_limits:
  - {name: banned, unit: minute, requests_per_unit: 2, penalty: 10m}
  - {name: hour, unit: hour, requests_per_unit: 100}
`)}, lines...)
	if c := r.Comparison; len(c.Limits) != 1 || c.Limits[0].Name != "hour" || c.Decisions != 6 || c.Refused != 0 {
		t.Errorf("%+v with limits %+v, want the 6 decisions of the limit per hour only", c, c.Limits)
	}
}
