package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// spent is the CPU time of one decision, in microseconds.
type spent struct{ server, redis float64 }

// serverAndRedis matches a cell such as 3.2 + 3.0.
var serverAndRedis = regexp.MustCompile(`^([0-9.]+) \+ ([0-9.]+)$`)

// costs reads a table of a page whose first row starts with header: by the first cell of a row and the heading of a
// column. Cells without two numbers are left out.
func costs(page, header string) map[[2]string]spent {
	found := make(map[[2]string]spent)
	_, table, _ := strings.Cut("\n"+page, "\n"+header)
	var columns []string
	for line := range strings.Lines(header + table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		for i, cell := range cells {
			if m := serverAndRedis.FindStringSubmatch(cell); m != nil {
				server, _ := strconv.ParseFloat(m[1], 64)
				redis, _ := strconv.ParseFloat(m[2], 64)
				found[[2]string{cells[0], columns[i]}] = spent{server, redis}
			}
		}
	}
	return found
}

const (
	rival, ours = "envoyproxy/ratelimit, Redis", "ratelimitd, Redis"
	busy        = "busy: 8 connections, 16 calls in flight on each"
	single      = "one at a time: 1 connection, 1 call in flight"
)

// compared reads the CPU of both services from docs/understand/comparison.md.
func compared(docs string) map[[2]string]spent {
	page, err := os.ReadFile(filepath.Join(docs, "understand", "comparison.md"))
	if err != nil {
		log.Fatal(err)
	}
	return costs(string(page), "| load | "+rival)
}

const costStyle = `<style>
text { fill: #1f2328 } .soft { fill: #59636e; font-size: 13px }
.rival { fill: #8c959f } .ours { fill: #3451b2 } .redis { opacity: 0.55 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .soft { fill: #a3abb4 }
  .rival { fill: #7d8590 } .ours { fill: #8ea6f5 }
}
</style>
`

// cost draws the CPU of a decision, of server and Redis, for both services at both ends of the load.
func cost(docs string) string {
	table := compared(docs)
	const barLeft, step, most = 210.0, 30.0, 180.0
	scale := func(us float64) float64 { return us / most * (760 - barLeft - 110) }
	var b strings.Builder
	b.WriteString(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 250" font-family="system-ui, sans-serif" font-size="15" role="img">` + "\n")
	b.WriteString("<title>CPU of server and Redis for one decision: ratelimitd and envoyproxy/ratelimit, busy and one " +
		"at a time</title>\n" + costStyle)
	y := 26.0
	for _, load := range []struct{ name, title string }{{busy, "busy: 128 calls in flight"},
		{single, "one call at a time"}} {
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" font-weight="600">%s</text>`+"\n", barLeft, y, load.title)
		for _, bar := range []struct{ name, title, class string }{{rival, "envoyproxy/ratelimit", "rival"},
			{ours, "ratelimitd", "ours"}} {
			us, found := table[[2]string{load.name, bar.name}]
			if !found {
				log.Fatalf("comparison.md has no CPU of %s, %s", bar.name, load.name)
			}
			fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" text-anchor="end">%s</text>`, barLeft-10, y+25, bar.title)
			fmt.Fprintf(&b, `<rect class="%s" x="%.0f" y="%.1f" width="%.1f" height="20"/>`, bar.class, barLeft, y+10,
				scale(us.server))
			fmt.Fprintf(&b, `<rect class="%s redis" x="%.1f" y="%.1f" width="%.1f" height="20"/>`, bar.class,
				barLeft+scale(us.server), y+10, scale(us.redis))
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s + %s µs</text>`+"\n", barLeft+scale(us.server+us.redis)+8, y+25,
				digits(us.server), digits(us.redis))
			y += step
		}
		y += 42
	}
	fmt.Fprintf(&b,
		`<text class="soft" x="%.0f" y="%.1f">CPU of the server + CPU of Redis, for one decision; shorter is better</text>`+
			"\n", barLeft, y-8)
	b.WriteString("</svg>\n")
	return b.String()
}

// digits writes a time with two digits or more, as the table does.
func digits(us float64) string {
	if us < 10 {
		return strconv.FormatFloat(us, 'f', 1, 64)
	}
	return strconv.FormatFloat(us, 'f', 0, 64)
}
