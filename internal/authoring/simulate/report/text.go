package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// TextOptions are the settings of WriteText.
type TextOptions struct {
	Color  bool // use the colours of a terminal
	Narrow bool // shorten long names, for a terminal
	Top    int  // rules and customers to show; 0 means 10
}

type textWriter struct {
	*terminal.Writer
	top    int
	narrow bool
}

// most returns the number of characters of a name to show; 0 means all.
func (w *textWriter) most(inTerminal int) int {
	if w.narrow {
		return inTerminal
	}
	return 0
}

// WriteText writes a report for people.
func WriteText(to io.Writer, r *simulate.Report, o TextOptions) error {
	if o.Top <= 0 {
		o.Top = 10
	}
	w := &textWriter{terminal.NewWriter(to, o.Color), o.Top, o.Narrow}
	w.Line("%s of %s, %s", w.Paint(terminal.Bold, counted(r.Requests, "request")),
		terminal.Clean(strings.Join(r.Logs, ", ")), span(r))
	w.lines(r)
	if r.Overrides != "" {
		w.Line("%s decided with the overrides of %s", counted(r.New.Overridden, "request"), terminal.Clean(r.Overrides))
	}
	w.Line("")
	w.sides(r)
	w.rules(r)
	w.customers(r)
	for _, s := range r.Warnings {
		w.Line("%s %s", w.Paint(terminal.Yellow, "warning:"), terminal.Clean(s))
	}
	w.Line("%s", w.Paint(terminal.Dim, fmt.Sprintf("%s requests a second, %s in all",
		number(int64(r.PerSec)), time.Duration(r.Seconds*float64(time.Second)).Round(rounding(r.Seconds)))))
	return w.Flush()
}

// rounding returns the precision to which a duration is rounded.
func rounding(seconds float64) time.Duration {
	if seconds < 0.01 {
		return 10 * time.Microsecond
	}
	return time.Millisecond
}

// lines describes the lines that were skipped or changed before the replay.
func (w *textWriter) lines(r *simulate.Report) {
	if r.Skipped > 0 {
		w.Line("%s skipped by the mapping", counted(r.Skipped, "line"))
	}
	if r.Order.Reordered > 0 {
		w.Line("%s sorted by time", counted(r.Order.Reordered, "line"))
	}
	if r.Order.Late > 0 {
		w.Line("%s too late to be sorted, by up to %s: decided at a later time than their own", counted(r.Order.Late, "line"),
			time.Duration(r.Order.MostLateSeconds*float64(time.Second)).Round(time.Millisecond))
	}
	if r.Bad == 0 {
		return
	}
	w.Line("%s", w.Paint(terminal.Yellow, counted(r.Bad, "line")+" cannot be used"))
	for i := range r.FirstBad[:min(3, len(r.FirstBad))] {
		w.Line("  %s", terminal.Clean(r.FirstBad[i].String()))
	}
}

// column is a column of a table. Numbers are aligned to the right, text to the left.
type column struct {
	title string
	text  bool
	color terminal.Color // colour of cells that are not 0
}

// table writes rows under titles, each column as wide as its widest cell.
func (w *textWriter) table(columns []column, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = len([]rune(c.title))
		for _, r := range rows {
			widths[i] = max(widths[i], len([]rune(r[i])))
		}
	}
	row := func(cells []string, header bool) {
		var b strings.Builder
		for i, c := range columns {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cells[i])))
			text := cells[i]
			switch {
			case header:
				text = w.Paint(terminal.Dim, text)
			case text != "0" && text != "":
				text = w.Paint(c.color, text)
			}
			switch {
			case !c.text:
				text = pad + text
			case i < len(columns)-1:
				text += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(text)
		}
		w.Line("%s", b.String())
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	row(titles, true)
	for _, r := range rows {
		row(r, false)
	}
	w.Line("")
}

func (w *textWriter) sides(r *simulate.Report) {
	columns := []column{
		{title: "rules of", text: true}, {title: "allowed", color: terminal.Green}, {title: "denied", color: terminal.Red},
		{title: "share"},
		{title: "not enforced", color: terminal.Yellow}, {title: "no rule"}, {title: "failed", color: terminal.Red},
	}
	row := func(directory string, s *simulate.Side) []string {
		return []string{
			terminal.Clean(directory), number(s.Allowed), number(s.Denied), percent(s.Denied, r.Requests), number(s.NotEnforced),
			number(s.NoRule + s.UnknownDomain), number(s.Failed),
		}
	}
	rows := [][]string{row(r.Rules, &r.New)}
	if r.Old != nil {
		rows = append([][]string{row(r.Against, r.Old)}, rows...)
	}
	w.table(columns, rows)
	if r.Old == nil {
		return
	}
	change := func(what string, color terminal.Color, c *simulate.Change) {
		text := fmt.Sprintf("%s: %s of %s", what, counted(c.Requests, "request"), counted(c.Customers, "customer"))
		if c.Requests == 0 {
			color = terminal.Dim
		}
		w.Line("%s", w.Paint(color, text))
	}
	change("newly denied", terminal.Red, r.NewlyDenied)
	change("newly passed", terminal.Green, r.NewlyPassed)
	w.Line("")
}

func (w *textWriter) rules(r *simulate.Report) {
	columns := []column{{title: "rule", text: true}, {title: "requests"}, {title: "denied", color: terminal.Red},
		{title: "share"}, {title: "not enforced", color: terminal.Yellow}}
	if r.Old != nil {
		columns = append(columns, column{title: "denied before"}, column{title: "newly denied", color: terminal.Red},
			column{title: "newly passed", color: terminal.Green})
	}
	var rows [][]string
	for i := range r.ByRule[:min(w.top, len(r.ByRule))] {
		rule := &r.ByRule[i]
		now := rule.New
		if now == nil {
			now = &simulate.RuleCount{}
		}
		name := terminal.Clean(rule.Rule)
		switch {
		case rule.New == nil:
			name += " (gone)"
		case r.Old != nil && rule.Old == nil:
			name += " (new)"
		case rule.Shadow:
			name += " (shadow mode)"
		}
		cells := []string{clip(name, w.most(60)), number(now.Requests), number(now.Denied), percent(now.Denied, now.Requests),
			number(now.NotEnforced)}
		if r.Old != nil {
			old := int64(0)
			if rule.Old != nil {
				old = rule.Old.Denied
			}
			cells = append(cells, number(old), number(rule.NewlyDenied), number(rule.NewlyPassed))
		}
		rows = append(rows, cells)
		if len(now.Limits) < 2 || !slices.ContainsFunc(now.Limits, func(l simulate.Limit) bool { return l.Over > 0 }) {
			continue
		}
		for _, l := range now.Limits {
			row := make([]string, len(cells))
			row[0], row[2] = "  "+clip(terminal.Clean(rate(l.Name, l.Limit, l.Burst)), w.most(58)), number(l.Over)
			rows = append(rows, row)
		}
	}
	w.table(columns, rows)
	if more := len(r.ByRule) - w.top; more > 0 {
		w.Line("%s\n", w.Paint(terminal.Dim, fmt.Sprintf("and %s", counted(int64(more), "more rule"))))
	}
	if n := len(r.Unreached); n > 0 {
		names := r.Unreached[:min(w.top, n)]
		text := fmt.Sprintf("%s reached by no request: %s", counted(int64(n), "rule"),
			terminal.Clean(strings.Join(names, ", ")))
		if n > len(names) {
			text += ", ..."
		}
		w.Line("%s\n", w.Paint(terminal.Dim, text))
	}
}

func (w *textWriter) customers(r *simulate.Report) {
	columns := []column{{title: "customer", text: true}, {title: "requests"}, {title: "denied", color: terminal.Red},
		{title: "share"}}
	if r.Old != nil {
		columns = append(columns, column{title: "denied before"}, column{title: "newly denied", color: terminal.Red},
			column{title: "newly passed", color: terminal.Green})
	}
	columns = append(columns, column{title: "denied most by", text: true})
	var rows [][]string
	for i := range r.Customers.Rows[:min(w.top, len(r.Customers.Rows))] {
		c := &r.Customers.Rows[i]
		cells := []string{clip(terminal.Clean(c.Customer), w.most(40)), number(c.Requests), number(c.Denied),
			percent(c.Denied, c.Requests)}
		if r.Old != nil {
			cells = append(cells, number(c.OldDenied), number(c.NewlyDenied), number(c.NewlyPassed))
		}
		rows = append(rows, append(cells, terminal.Clean(mostly(c, w.most(40)))))
	}
	w.table(columns, rows)
	seen := counted(r.Customers.Seen, "customer")
	if !r.Customers.Exact {
		seen = "more than " + seen
	}
	w.Line("%s\n", w.Paint(terminal.Dim, seen+" in all"))
}
