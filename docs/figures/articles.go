package main

import (
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// example is an example of an article: a limit, and the times in seconds at which requests arrive.
type example struct {
	title, says string
	limit       descriptor.Limit
	span        float64 // seconds that are drawn
	at          []float64
}

func times(n int, at float64) []float64 {
	all := make([]float64, n)
	for i := range all {
		all[i] = at
	}
	return all
}

var second = descriptor.Window{Unit: descriptor.Second}

var examples = []example{
	{
		"token bucket", "3 a minute, refilled at once", descriptor.Limit{Requests: 3, Window: minute,
			Algorithm: descriptor.TokenBucket, Burst: 3, Interval: true}, 90,
		[]float64{0, 10, 35, 45, 60},
	},
	{"leaky bucket", "2 a second, 4 wait", descriptor.Limit{Requests: 2, Window: second, Algorithm: descriptor.LeakyBucket,
		Burst: 4}, 3, append(times(6, 0), 0.5)},
	{"fixed window", "10 a minute: 20 in two seconds",
		descriptor.Limit{Requests: 10, Window: minute, CountDenied: descriptor.DeniedDrop}, 120,
		append(times(11, 59), times(11, 61)...)},
	{"log", "2 a minute, denied ones count", descriptor.Limit{Requests: 2, Window: minute,
		Algorithm: descriptor.SlidingLog, CountDenied: descriptor.DeniedCount}, 120, []float64{12, 24, 36, 85}},
	{"sliding counter", "7 a minute: 5 x 0.7 + 3 = 6.5",
		descriptor.Limit{Requests: 7, Window: minute, Algorithm: descriptor.SlidingWindow}, 120,
		append(times(5, 30), 70, 70, 78, 78, 78)},
}

// articles draws the examples. Requests that arrive together are drawn above each other.
func articles() string {
	var b strings.Builder
	const rowHeight, top = 84.0, 20.0
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13">`+"\n",
		width, top+rowHeight*float64(len(examples)))
	b.WriteString("<title>The examples of articles about rate limiting: admitted, waiting and denied requests</title>\n" +
		dark)
	for i, e := range examples {
		base := top + rowHeight*float64(i) + 58
		at := func(s float64) float64 { return left + s/e.span*(width-left-right) }
		fmt.Fprintf(&b, `<text x="12" y="%.1f" font-weight="bold">%s</text><text x="12" y="%.1f" fill="#57606a">%s</text>`+
			"\n", base-30, e.title, base-12, e.says)
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#d0d7de"/>`, at(0), base+6, at(e.span))
		for n := range 7 {
			s := e.span * float64(n) / 6
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle" font-size="11" fill="#57606a">%g s</text>`, at(s),
				base+19, s)
		}
		above, last := 0.0, -1.0
		for _, v := range decide(e.limit, e.at) {
			if above += 5; v.arrived != last {
				above, last = 0, v.arrived
			}
			y := base - above
			switch {
			case !v.allowed:
				fmt.Fprintf(&b, `<path d="M%.1f %.1fl4 4m0 -4l-4 4" stroke="#cf222e" stroke-width="1.6"/>`, at(v.arrived)-2, y-2)
				continue
			case v.passed > v.arrived:
				fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="#9a6700"/>`, at(v.arrived), y, at(v.passed))
			}
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="2.4" fill="#1a7f37"/>`, at(v.passed), y)
		}
		b.WriteString("\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}
