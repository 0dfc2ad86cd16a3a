package report

import (
	"fmt"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
	"github.com/ratelimitd/ratelimitd/internal/terminal"
)

// The titles of the columns of a comparison, in all forms of a report.
const (
	titleRefused  = "refused, log admits"
	titleAdmitted = "admitted, log refuses"
	titleDiffer   = "differ"
	titleMost     = "most in a window"
)

// algorithmName is how a rule file writes an algorithm.
func algorithmName(d *simulate.AlgorithmDifference) string {
	return strings.TrimSuffix(d.Algorithm+", "+d.Settings, ", ")
}

// differenceCells are the numbers of an algorithm, in the order of the titles.
func differenceCells(d *simulate.AlgorithmDifference) []string {
	return []string{number(d.Refused), number(d.Admitted), percent(d.Differ(), d.Decisions), mostPercent(d)}
}

func mostPercent(d *simulate.AlgorithmDifference) string {
	return strconv.FormatFloat(d.MostPercent, 'f', 1, 64) + " %"
}

// limitName is the rule of a limit, and the limit's own name if it has one.
func limitName(l *simulate.LimitDifference) string { return strings.TrimSpace(l.Rule + " " + l.Name) }

// exactLog says what is compared, and what the exact log decides.
func exactLog(c *simulate.Comparison) string {
	text := fmt.Sprintf("%s of %s, compared with an exact log, which refuses %s of them (%s)",
		counted(c.Decisions, "decision"), counted(int64(len(c.Limits)), "limit"), number(c.Refused), percent(c.Refused, c.Decisions))
	if c.LeftOut > 0 {
		text += "; " + number(c.LeftOut) + " more are not compared"
	}
	return text
}

// algorithms compares the algorithms, and the limits as they are in the rules.
func (w *textWriter) algorithms(c *simulate.Comparison) {
	if c == nil {
		return
	}
	w.Line("%s", w.Paint(terminal.Dim, exactLog(c)))
	columns := func(title string) []column {
		return []column{{title: title, text: true}, {title: titleRefused, color: terminal.Red}, {title: titleAdmitted, color: terminal.Yellow}, {title: titleDiffer}, {title: titleMost}}
	}
	var rows [][]string
	for i := range c.Algorithms {
		rows = append(rows, append([]string{algorithmName(&c.Algorithms[i])}, differenceCells(&c.Algorithms[i])...))
	}
	w.table(columns("algorithm"), rows)
	if len(c.Limits) < 2 {
		return
	}
	rows = nil
	for i := range c.Limits[:min(w.top, len(c.Limits))] {
		l := &c.Limits[i]
		name := clip(terminal.Clean(limitName(l)+": "+l.Limit), 80)
		rows = append(rows, append([]string{name}, differenceCells(&l.Algorithms[0])...))
	}
	w.table(columns("limit, as in the rules"), rows)
	if more := len(c.Limits) - w.top; more > 0 {
		w.Line("%s\n", w.Paint(terminal.Dim, "and "+counted(int64(more), "more limit")))
	}
}

// algorithms compares the algorithms.
func (w *markdownWriter) algorithms(c *simulate.Comparison) {
	if c == nil {
		return
	}
	w.line("#### Algorithms\n")
	w.line("%s.\n", exactLog(c))
	w.head("algorithm", " "+titleRefused, " "+titleAdmitted, " "+titleDiffer, " "+titleMost)
	for i := range c.Algorithms {
		w.row(append([]string{code(algorithmName(&c.Algorithms[i]))}, differenceCells(&c.Algorithms[i])...)...)
	}
	w.line("")
}

// algorithms compares the algorithms, and the limits as they are in the rules.
func (v *view) algorithms() g.Node {
	c := v.Comparison
	if c == nil {
		return nil
	}
	cells := func(d *simulate.AlgorithmDifference) g.Node {
		return g.Group{
			count(titleRefused, d.Refused, "bad"), count(titleAdmitted, d.Admitted, "warn"),
			cell(titleDiffer, percent(d.Differ(), d.Decisions)), cell(titleMost, mostPercent(d)),
		}
	}
	columns := func(title string) []heading {
		return []heading{{title, false}, {titleRefused, true}, {titleAdmitted, true}, {titleDiffer, true}, {titleMost, true}}
	}
	limits := c.Limits[:min(maxRows, len(c.Limits))]
	return g.Group{
		titled("algorithms", "Algorithms", h.P(h.Class("note"), g.Text(exactLog(c)+".")),
			table("algorithms", columns("Algorithm"), g.Map(c.Algorithms, func(d simulate.AlgorithmDifference) g.Node {
				return h.Tr(head(g.Text(algorithmName(&d))), cells(&d))
			}))),
		titled("algorithm-limits", "Limits, as in the rules", v.cut(len(limits), int64(len(c.Limits))),
			table("algorithm-limits", columns("Limit"), g.Map(limits, func(l simulate.LimitDifference) g.Node {
				return h.Tr(head(breakable(limitName(&l)), h.Div(h.Class("where"), g.Text(l.Limit))), cells(&l.Algorithms[0]))
			}))),
	}
}
