package region_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var update = flag.Bool("update", false, "write the tables of docs/understand/regions.md and docs/contributing/testing.md")

// The situations of the tables in docs/understand/regions.md, for windows in escrow, and docs/contributing/testing.md, for all modes. Region a is the home; b has half of the demand.
var situations = []struct {
	name  string
	steps []step
}{
	{"no fault", nil},
	{"b cut off for 10 minutes", []step{{at: 3 * minute, what: "alone", region: 1, n: 10 * minute}}},
	{"home cut off for 10 minutes", []step{{at: 3 * minute, what: "alone", region: 0, n: 10 * minute}}},
	{"the same, and moved after 20 s", []step{{at: 3 * minute, what: "alone", region: 0, n: 10 * minute}, {at: 3*minute + 20*sec, what: "move", region: 2}}},
	{"home's Redis flushed", []step{{at: 3*minute + 20*sec, what: "flush", region: 0}}},
	{"b's Redis flushed", []step{{at: 3*minute + 20*sec, what: "flush", region: 1}}},
	{"failover of b's Redis, 2 s lost", []step{{at: 3*minute + 20*sec, what: "failover", region: 1, n: 2 * sec}}},
	{"failover of the home's Redis, 2 s lost", []step{{at: 3*minute + 20*sec, what: "failover", region: 0, n: 2 * sec}}},
	{"clock of b's Redis set back 20 s", []step{{at: 3*minute + 20*sec, what: "clock", region: 1, n: -20 * sec}}},
	{"clock of the home's Redis set ahead 20 s", []step{{at: 3*minute + 20*sec, what: "clock", region: 0, n: 20 * sec}}},
}

// figures are what a situation shows.
type figures struct {
	limit, most, bound      int64
	asked, admitted         int64
	starved, full, roomy, w int64
	capacity                int64 // what the limit allows in the time measured
	questions               int
	lastStarved             int64
	problems                []string
}

// measure runs a limit of 600 per minute in three regions for 15 minutes at a demand that is a part of the limit.
func measure(seed uint64, l descriptor.Limit, mode string, demand float64, steps []step) figures {
	s := setup{
		seed: seed, regions: 3, replicas: 2, rtt: 80 * ms, deadline: 500 * ms, length: 15*minute + 5*sec,
		counters: []counted{{name: "table", limit: compiled(l), mode: mode}},
	}
	r := rand.New(rand.NewPCG(seed, 3))
	perSecond := float64(l.Requests) / l.Window.Length().Seconds() * demand
	var all []step
	for i, part := range []float64{0.2, 0.5, 0.3} {
		all = append(all, traffic(r, &s, i, 0, func(int64) float64 { return perSecond * part }, func() int64 { return 1 })...)
	}
	all = append(all, steps...)
	slices.SortStableFunc(all, func(a, b step) int { return int(a.at - b.at) })
	w := s.run(all, nil)
	c := w.seen.counts[0]
	f := figures{
		limit: int64(l.Requests), asked: c.asked, admitted: int64(len(w.seen.passed[0])), starved: c.starved, full: c.full, roomy: c.roomy, w: c.waited,
		questions: w.questions, lastStarved: c.lastStarved, problems: w.seen.problems,
	}
	f.bound = f.limit
	for _, p := range w.seen.pardons[0] {
		f.bound += p.n
	}
	f.most = w.seen.mostInWindow(0)
	windows := float64(s.length-2*sec) / float64(l.Window.Length().Microseconds())
	f.capacity = int64(windows * float64(l.Requests))
	return f
}

// mostInWindow is the most that was admitted in one window by the clock of the home, or more than the rate of a bucket in any time.
func (o *observer) mostInWindow(counter int) (most int64) {
	l := &o.limits[counter][0].limit
	if o.w.counters[counter].mode == "share" {
		return o.judgeBucket(counter)
	}
	for i, e := range o.eras {
		sums := make(map[int64]int64)
		for _, m := range o.passed[counter] {
			if i+1 < len(o.eras) && m.at >= o.eras[i+1].at {
				break
			}
			if w := windowOf(l, m.shown[e.home]); i == 0 || w >= windowOf(l, e.shown[e.home]) {
				sums[w] += m.n
				most = max(most, sums[w])
			}
		}
	}
	return most
}

// TestTable measures all situations at a demand of one and a half times the limit, and compares the page with the result.
func TestTable(t *testing.T) {
	window := descriptor.Limit{Requests: 600, Window: descriptor.Window{Unit: descriptor.Minute}}
	bucket := window
	bucket.Algorithm = descriptor.TokenBucket
	var all, escrow strings.Builder
	for _, x := range situations {
		for _, mode := range []string{"home", "escrow", "share"} {
			l := window
			if mode == "share" {
				l = bucket
			}
			f := measure(1, l, mode, 1.5, x.steps)
			if len(f.problems) > 0 {
				t.Errorf("%s, %s: %s", mode, x.name, f.problems[0])
			}
			if f.most > f.bound {
				t.Errorf("%s, %s: %d of %d", mode, x.name, f.most, f.bound)
			}
			if x.steps == nil {
				if used := float64(f.admitted) / float64(f.capacity); used < 0.95 {
					t.Errorf("%s: only %.1f %% are used", mode, 100*used)
				}
			}
			roomy := "-"
			if mode != "share" {
				roomy = percent(f.roomy, f.asked)
			}
			waited, used := percent(f.w, f.asked), percent(f.admitted, f.capacity)
			fmt.Fprintf(&all, "| %s | %s | %d | %d | %s | %s | %s | %s |\n", x.name, mode, f.most, f.bound, roomy, percent(f.starved, f.asked), waited, used)
			if mode == "escrow" {
				fmt.Fprintf(&escrow, "| %s | %d | %d | %s | %s | %s |\n", x.name, f.most, f.bound, roomy, waited, used)
			}
		}
	}
	t.Logf("\n%s", all.String())
	if runtime.GOARCH != "amd64" {
		return // demand is measured in floating point, which other processors round in another way
	}
	compareTable(t, "contributing/testing.md", "|---|---|---:|---:|---:|---:|---:|---:|\n", all.String())
	compareTable(t, "understand/regions.md", "|---|---:|---:|---:|---:|---:|\n", escrow.String())
}

// compareTable compares the rows below a line of a page with those that were measured, or writes them there.
func compareTable(t *testing.T, page, line, rows string) {
	t.Helper()
	page = filepath.Join("..", "..", "..", "docs", filepath.FromSlash(page))
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), line)
	table, after, end := strings.Cut("\n"+rest, "\n\n")
	switch {
	case !found || !end:
		t.Fatalf("%s has no table", page)
	case table == strings.TrimSuffix("\n"+rows, "\n"):
	case *update:
		if err := os.WriteFile(page, []byte(before+line+rows+"\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the table in %s is not what is measured: go test ./internal/backend/region -run TestTable -update", page)
	}
}

func percent(part, whole int64) string {
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// TestHealing: two lives of a grant after a cut has ended, no region lacks permits any more.
func TestHealing(t *testing.T) {
	for _, x := range []struct {
		mode   string
		region int
	}{{"escrow", 0}, {"escrow", 1}, {"share", 0}, {"share", 1}} {
		l := descriptor.Limit{Requests: 600, Window: descriptor.Window{Unit: descriptor.Minute}}
		if x.mode == "share" {
			l.Algorithm = descriptor.TokenBucket
		}
		f := measure(3, l, x.mode, 0.8, []step{{at: 3 * minute, what: "alone", region: x.region, n: 4 * minute}})
		if f.starved == 0 {
			t.Errorf("%s, region %d: the cut has no effect", x.mode, x.region)
		}
		if f.lastStarved > 8*minute {
			t.Errorf("%s, region %d: a request lacked permits %d s after the cut", x.mode, x.region, (f.lastStarved-7*minute)/sec)
		}
	}
}

// TestUsed: with more demand than the limit allows, the limit is used. With less, hardly anything is refused.
func TestUsed(t *testing.T) {
	for _, x := range []struct {
		kind        string
		used, spare float64 // at a demand of 1.5; refused at a demand of 0.8
	}{
		{"fixed window", 0.95, 0.01}, {"first hit", 0.95, 0.01}, {"sliding window", 0.95, 0.01}, {"sliding window of 4", 0.95, 0.01},
		{"sliding log", 0.94, 0.01}, {"interval", 0.95, 0.01}, {"token bucket", 0.95, 0.01}, {"leaky bucket", 0.95, 0.01},
	} {
		mode := "escrow"
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == x.kind })
		all := kinds
		if i < 0 {
			mode, all = "share", buckets
			i = slices.IndexFunc(buckets, func(k kind) bool { return k.name == x.kind })
		}
		l := all[i].limit(600, 60)
		f := measure(2, l, mode, 1.5, nil)
		g := measure(2, l, mode, 0.8, nil)
		used, refused := float64(f.admitted)/float64(f.capacity), float64(g.starved+g.full)/float64(g.asked)
		t.Logf("%-20s at 1.5: %.1f %% used, %s starved, %s waited, %d questions; at 0.8: %.2f %% refused, %s waited, %d questions", x.kind,
			100*used, percent(f.starved, f.asked), percent(f.w, f.asked), f.questions, 100*refused, percent(g.w, g.asked), g.questions)
		if used < x.used {
			t.Errorf("%s: only %.1f %% are used", x.kind, 100*used)
		}
		if refused > x.spare {
			t.Errorf("%s: %.2f %% are refused although there is room", x.kind, 100*refused)
		}
	}
}
