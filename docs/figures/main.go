// Command figures draws pictures of the documentation: those of docs/learn/algorithms.md from the arithmetic that
// decides real requests, and the chart of docs/understand/comparison.md from the table above the chart.
//
//	go run ./docs/figures
//
// writes the pictures to the directory of this file. A test fails if they are out of date.
package main

import (
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func main() {
	for name, draw := range figures {
		if err := os.WriteFile(filepath.Join("docs", "figures", name), []byte(draw("docs")), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// figures are the pictures by file name. They get the directory of the documentation.
var figures = map[string]func(docs string) string{
	"same-burst.svg": func(string) string { return sameBurst() },
	"articles.svg":   func(string) string { return articles() },
	"cost.svg":       cost,
}

// row is one algorithm under the arrivals of the picture.
type row struct {
	title string
	limit descriptor.Limit
}

// perMinute is the number of requests that every limit of the picture allows.
const perMinute = 10

var minute = descriptor.Window{Unit: descriptor.Minute}

var rows = []row{
	{"fixed_window", descriptor.Limit{Requests: perMinute, Window: minute}},
	{"fixed_window, align: first_hit", descriptor.Limit{Requests: perMinute, Window: minute, FirstHit: true}},
	{"sliding_window", descriptor.Limit{Requests: perMinute, Window: minute, Algorithm: descriptor.SlidingWindow}},
	{"sliding_log", descriptor.Limit{Requests: perMinute, Window: minute, Algorithm: descriptor.SlidingLog}},
	{"token_bucket", descriptor.Limit{Requests: perMinute, Window: minute, Algorithm: descriptor.TokenBucket,
		Burst: perMinute}},
	{"token_bucket, refill: interval", descriptor.Limit{Requests: perMinute, Window: minute,
		Algorithm: descriptor.TokenBucket, Burst: perMinute, Interval: true}},
	{"leaky_bucket, burst: 5", descriptor.Limit{Requests: perMinute, Window: minute, Algorithm: descriptor.LeakyBucket,
		Burst: 5}},
	{"leaky_bucket, burst: 9, nodelay: all", descriptor.Limit{Requests: perMinute, Window: minute,
		Algorithm: descriptor.LeakyBucket, Burst: 9, NoDelay: descriptor.NoDelayAll}},
}

// arrivals returns the arrival times of requests, in seconds: eight late in the first minute, eight early in the
// second, then one every four seconds.
func arrivals() []float64 {
	var at []float64
	for i := range 8 {
		at = append(at, float64(460+9*i)/10)
	}
	for i := range 8 {
		at = append(at, float64(640+9*i)/10)
	}
	for t := 760; t < 1500; t += 40 {
		at = append(at, float64(t)/10)
	}
	return at
}

// verdict is the answer to one request.
type verdict struct {
	arrived, passed float64 // seconds; passed is later where it had to wait
	allowed         bool
}

// decide takes the arrivals from a limit, as a store does.
func decide(limit descriptor.Limit, arrivals []float64) []verdict {
	if err := limit.Compile(); err != nil {
		log.Fatal(err)
	}
	origin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	var state backend.State
	var out []verdict
	for _, arrived := range arrivals {
		take := []backend.Take{{Limit: &limit, Hits: 1}}
		var o [1]backend.Outcome
		backend.Settle(take, []*backend.State{&state}, o[:], backend.At(origin+int64(math.Round(arrived*1e6))))
		out = append(out, verdict{arrived, arrived + o[0].Delay.Seconds(), o[0].Allowed})
	}
	return out
}

const (
	width, left, right = 900.0, 250.0, 44.0
	rowHeight, top     = 54.0, 58.0
	waitHeight         = 56.0        // added to a row in which requests wait
	from, to           = 30.0, 180.0 // seconds
)

func x(s float64) float64 { return left + (s-from)/(to-from)*(width-left-right) }

// dark changes the colours for readers who have asked for a dark page.
const dark = `<style>
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } text[fill="#57606a"] { fill: #a3abb4 } path[stroke="#d0d7de"] { stroke: #3d444d }
  circle { fill: #57d16f } circle[fill="#9a6700"] { fill: #d29922 } 
  path[stroke="#cf222e"] { stroke: #ff7b72 } path[stroke="#9a6700"] { stroke: #d29922 }
}
</style>
`

func sameBurst() string {
	var b strings.Builder
	height := top + rowHeight*float64(len(rows)) + waitHeight + 34
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13">`+"\n",
		width, height)
	fmt.Fprintf(&b, "<title>The same %d requests under %d limits of %d a minute</title>\n", len(arrivals()), len(rows),
		perMinute)
	b.WriteString(dark)
	fmt.Fprintf(&b,
		`<text x="12" y="24" font-size="15" font-weight="bold">The same %d requests under limits of %d a minute</text>`+"\n",
		len(arrivals()), perMinute)
	fmt.Fprintf(&b, `<circle cx="%.1f" cy="20" r="4" fill="#1a7f37"/><text x="%.1f" y="24">admitted</text>`+"\n", x(98),
		x(98)+9)
	fmt.Fprintf(&b,
		`<path d="M%.1f 16l8 8m0 -8l-8 8" stroke="#cf222e" stroke-width="2"/><text x="%.1f" y="24">denied</text>`+"\n",
		x(122), x(122)+13)
	fmt.Fprintf(&b, `<path d="M%.1f 20h22" stroke="#9a6700" stroke-width="2"/><text x="%.1f" y="24">waits</text>`+"\n",
		x(144), x(144)+27)
	for s := from; s <= to; s += 30 {
		dash := ""
		if int(s)%60 != 0 {
			dash = ` stroke-dasharray="2 4"`
		}
		fmt.Fprintf(&b, `<path d="M%.1f %.1fV%.1f" stroke="#d0d7de"%s/>`+"\n", x(s), top-14, height-30, dash)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="#57606a">12:%02d:%02d</text>`+"\n", x(s),
			height-12, int(s)/60, int(s)%60)
	}
	y := top
	for _, r := range rows {
		verdicts := decide(r.limit, arrivals())
		admitted, waited := 0, 0
		for _, v := range verdicts {
			if v.allowed {
				admitted++
			}
			if v.passed > v.arrived {
				waited++
			}
		}
		// Admitted requests are on the upper line, denied ones on the lower one. A request that waits starts on the lower
		// line, when it arrives, and passes on the upper one.
		lower := y + 20
		if waited > 0 {
			lower += waitHeight
		}
		var lines, marks strings.Builder
		for _, v := range verdicts {
			switch {
			case !v.allowed:
				fmt.Fprintf(&marks, `<path d="M%.1f %.1fl6 6m0 -6l-6 6" stroke="#cf222e" stroke-width="1.6"/>`, x(v.arrived)-3,
					lower-3)
				continue
			case v.passed > v.arrived:
				fmt.Fprintf(&lines, `<path d="M%.1f %.1fL%.1f %.1f" stroke="#9a6700" stroke-width="0.8"/>`, x(v.arrived), lower,
					x(v.passed), y+4)
				fmt.Fprintf(&lines, `<circle cx="%.1f" cy="%.1f" r="2" fill="#9a6700"/>`, x(v.arrived), lower)
			}
			fmt.Fprintf(&marks, `<circle cx="%.1f" cy="%.1f" r="3.4" fill="#1a7f37"/>`, x(v.passed), y+4)
		}
		fmt.Fprintf(&b, `<text x="12" y="%.1f">%s</text><text x="12" y="%.1f" fill="#57606a">%d admitted, %d denied</text>`+
			"\n", y+8, r.title, y+25, admitted, len(verdicts)-admitted)
		if waited > 0 {
			fmt.Fprintf(&b,
				`<text x="12" y="%.1f" fill="#57606a">%d of the admitted wait:</text><text x="12" y="%.1f" fill="#57606a">they arrive below, pass above</text>`+"\n", lower-12, waited, lower+5)
		}
		b.WriteString(lines.String() + marks.String() + "\n")
		y = lower - 20 + rowHeight
	}
	b.WriteString("</svg>\n")
	return b.String()
}
