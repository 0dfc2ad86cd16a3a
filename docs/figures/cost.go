package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// bars are the rows of the first table of docs/reference/performance.md that the chart shows, in its order.
var bars = []struct{ target, title, class string }{
	{"a0", "empty gRPC server, defaults", "other"},
	{"a", "empty gRPC server, tuned", "other"},
	{"b", "ratelimitd in memory", "ours"},
	{"c", "ratelimitd on Redis", "ours"},
}

// ratios reads the server's CPU as a multiple of the empty server's, by target, from the page's first table.
func ratios(page string) map[string]float64 {
	found := make(map[string]float64)
	_, table, _ := strings.Cut(page, "\n| | target |")
	for line := range strings.Lines(table) {
		if line == "\n" {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		if ratio, err := strconv.ParseFloat(strings.TrimSuffix(last, "x"), 64); err == nil {
			found[strings.TrimSpace(cells[0])] = ratio
		}
	}
	return found
}

const costStyle = `<style>
text { fill: #1f2328 } .soft { fill: #59636e; font-size: 13px }
.other { fill: #8c959f } .ours { fill: #3451b2 } .half { fill: #a3b4ef } .line { stroke: #59636e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #a3abb4 }
  .other { fill: #656c76 } .ours { fill: #8ea6f5 } .half { fill: #47578f } .line { stroke: #a3abb4 }
}
</style>
`

// cost draws the cost of a call: the server's CPU as a multiple of the empty server's.
func cost(docs string) string {
	page, err := os.ReadFile(filepath.Join(docs, "reference", "performance.md"))
	if err != nil {
		log.Fatal(err)
	}
	ratio := ratios(string(page))
	const barLeft, barTop, step, most = 240.0, 44.0, 34.0, 2.6
	scale := func(r float64) float64 { return r / most * (760 - barLeft - 60) }
	height := barTop + step*float64(len(bars)) + 30
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 %.0f" font-family="system-ui, sans-serif" font-size="15" role="img">`+"\n", height)
	b.WriteString("<title>Server CPU of one call, as a multiple of an empty, tuned gRPC server</title>\n" + costStyle)
	fmt.Fprintf(&b, `<text x="%.0f" y="22" font-weight="600">Server CPU of one call</text>`+"\n", barLeft)
	for i, bar := range bars {
		r, found := ratio[bar.target]
		if !found {
			log.Fatalf("the first table of performance.md has no row %s", bar.target)
		}
		y := barTop + step*float64(i)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" text-anchor="end">%s</text><rect class="%s" x="%.0f" y="%.1f" width="%.1f" height="20" rx="3"/><text x="%.1f" y="%.1f">%.2f</text>`+"\n",
			barLeft-10, y+15, bar.title, bar.class, barLeft, y, scale(r), barLeft+scale(r)+8, y+15, r)
	}
	one := barLeft + scale(1)
	fmt.Fprintf(&b, `<path class="line" d="M%.1f %.1fV%.1f" stroke-dasharray="3 3"/><text class="soft" x="%.1f" y="%.1f" text-anchor="middle">1.00 = an empty, tuned gRPC server; shorter is better</text>`+"\n",
		one, barTop-8, height-26, one+60, height-8)
	b.WriteString("</svg>\n")
	return b.String()
}
