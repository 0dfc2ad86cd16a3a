package report

import (
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

// view is a report as the page shows it. Its methods build the parts of the page.
//
// Everything that comes from a log or a rule file becomes g.Text, which escapes it, or the JSON of the charts, whose
// encoder escapes it. g.Raw is for what is embedded in the binary, and for that JSON.
type view struct {
	*simulate.Report

	rules        []simulate.Rule
	callers      []simulate.Caller
	newlyRefused []simulate.Caller
	newlyPassed  []simulate.Caller
}

// maxRows is how many rules, and how many callers, a table shows at most.
const maxRows = 200

func newView(r *simulate.Report) *view {
	v := &view{Report: r, rules: r.ByRule[:min(maxRows, len(r.ByRule))], callers: r.Callers.Rows[:min(maxRows, len(r.Callers.Rows))]}
	for _, c := range r.Callers.Rows {
		if c.NewlyRefused > 0 && len(v.newlyRefused) < maxRows {
			v.newlyRefused = append(v.newlyRefused, c)
		}
		if c.NewlyPassed > 0 && len(v.newlyPassed) < maxRows {
			v.newlyPassed = append(v.newlyPassed, c)
		}
	}
	return v
}

// compared reports whether the report compares two folders.
func (v *view) compared() bool { return v.Old != nil }

// page is the whole page. data is the JSON of the charts.
func (v *view) page(data string) g.Node {
	styles := uPlotCSS + "\n" + pageCSS
	csp := "default-src 'none'; script-src " + hash(uPlotJS) + " " + hash(pageJS) + "; style-src " + hash(styles) + "; base-uri 'none'; form-action 'none'"
	return h.Doctype(h.HTML(h.Lang("en"),
		h.Head(
			h.Meta(h.Charset("utf-8")),
			h.Meta(g.Attr("http-equiv", "Content-Security-Policy"), h.Content(csp)),
			h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
			h.Meta(h.Name("color-scheme"), h.Content("light dark")),
			h.Meta(h.Name("referrer"), h.Content("no-referrer")),
			h.TitleEl(g.Text("Simulation of "+v.Rules)),
			h.StyleEl(g.Raw(styles)),
		),
		h.Body(
			v.header(),
			h.Main(v.summary(), v.warnings(), v.overTime(), v.newlyRefusedCallers(), v.newlyPassedCallers(), v.byRule(), v.byCaller(), v.log()),
			h.Footer(h.Details(h.Summary(g.Text("Made by ratelimitd simulate. Charts: uPlot, MIT license.")), h.Pre(g.Text(uPlotLicense)))),
			h.Script(h.Type("application/json"), h.ID("data"), g.Raw(data)),
			h.Script(g.Raw(uPlotJS)),
			h.Script(g.Raw(pageJS)),
		),
	))
}

func (v *view) header() g.Node {
	what := "the rules"
	if v.compared() {
		what = "the change"
	}
	return h.Header(
		h.H1(g.Text("What "+what+" would have done")),
		h.P(
			g.Text(counted(v.Requests, "request")+" of "+strings.Join(v.Logs, ", ")+", "+span(v.Report)+". Rules of "), h.Code(g.Text(v.Rules)),
			g.If(v.compared(), g.Group{g.Text(", compared with "), h.Code(g.Text(v.Against))}),
			g.Text("."),
		),
	)
}

// card is a box of the summary with one number. kind is "bad", "good" or "warn" and sets its colour. id and kind may be empty.
func card(id, kind, value, label, note string) g.Node {
	class := "card"
	if kind != "" {
		class += " " + kind
	}
	return h.Div(h.Class(class),
		h.B(g.If(id != "", h.ID(id)), g.Text(value)),
		h.Span(g.Text(label)),
		g.If(note != "", h.Small(g.Text(note))),
	)
}

func (v *view) summary() g.Node {
	ofAll := func(n int64) string { return percent(n, v.Requests) + " of all" }
	var cards g.Group
	refused := ofAll(v.New.Refused)
	if v.compared() {
		cards = append(cards,
			card("newly-refused", "bad", number(v.NewlyRefused.Requests), "requests newly refused", counted(v.NewlyRefused.Callers, "caller")+", "+ofAll(v.NewlyRefused.Requests)),
			card("newly-passed", "good", number(v.NewlyPassed.Requests), "requests newly passed", counted(v.NewlyPassed.Callers, "caller")+", "+ofAll(v.NewlyPassed.Requests)))
		refused += ", " + percent(v.Old.Refused, v.Requests) + " before"
	}
	cards = append(cards,
		card("refused", "", number(v.New.Refused), "requests refused", refused),
		card("allowed", "", number(v.New.Allowed), "requests allowed", ofAll(v.New.Allowed)))
	if n := v.New.NotEnforced; n > 0 {
		cards = append(cards, card("", "warn", number(n), "over a limit, not enforced", "shadow mode, quota mode"))
	}
	without := v.New.NoRule + v.New.UnknownDomain
	seen := number(v.Callers.Seen)
	if !v.Callers.Exact {
		seen = "> " + seen
	}
	cards = append(cards,
		card("", "", number(without), "requests without a rule", ofAll(without)),
		card("", "", seen, "callers", ""))
	if n := v.New.Failed; n > 0 {
		cards = append(cards, card("", "bad", number(n), "without a decision", v.New.FirstFailure))
	}
	return h.Section(h.Class("cards"), h.ID("summary"), cards)
}

func (v *view) warnings() g.Node {
	if len(v.Warnings) == 0 {
		return nil
	}
	return h.Section(h.Class("warnings"), h.ID("warnings"), h.H2(g.Text("Warnings")), list("", v.Warnings))
}

// list is a list of texts. Its class may be empty.
func list(class string, texts []string) g.Node {
	return h.Ul(g.If(class != "", h.Class(class)), g.Map(texts, func(s string) g.Node { return h.Li(g.Text(s)) }))
}

// overTime has the places where the script draws charts.
func (v *view) overTime() g.Node {
	per := "per " + width(v.OverTime.WidthSeconds) + "."
	chart := func(id, title, note string) g.Node {
		return h.Section(g.If(id == "rules", h.ID("rules-over-time")),
			h.H2(g.Text(title)), h.P(h.Class("note"), g.Text(note)), h.Div(h.Class("chart"), h.ID("chart-"+id)))
	}
	return g.Group{
		chart("requests", "Requests over time", "Allowed and refused, "+per+" Drag to look closer, double-click to go back."),
		g.If(v.compared(), chart("changes", "What changes over time", "Newly refused above, newly passed below, "+per)),
		chart("rules", "Refused over time, by rule", "The rules that refuse most, "+per),
	}
}

// heading is the head of a column of a table. In a column of numbers they stand at its right.
type heading struct {
	title   string
	numbers bool
}

// table is a table that scrolls on its own where it is too wide.
func table(id string, columns []heading, rows g.Node) g.Node {
	head := g.Map(columns, func(c heading) g.Node { return h.Th(g.If(c.numbers, h.Class("n")), g.Text(c.title)) })
	return h.Div(h.Class("scroll"), h.Table(h.ID(id), h.THead(h.Tr(head)), h.TBody(rows)))
}

// name is a cell with a text of any length.
func name(parts ...g.Node) g.Node { return h.Td(h.Class("name"), g.Group(parts)) }

// cell is a cell of a column of numbers.
func cell(text string) g.Node { return h.Td(h.Class("n"), g.Text(text)) }

// count is a number; one that is not zero has the colour of its kind.
func count(n int64, kind string) g.Node {
	class := "n"
	if n != 0 {
		class += " " + kind
	}
	return h.Td(h.Class(class), g.Text(number(n)))
}

// limits lists the limits that refused a caller, a line each.
func limits(all []simulate.RefusedBy, when string) g.Node {
	return g.Map(all, func(r simulate.RefusedBy) g.Node { return h.Div(g.Text(by(r, 0) + when)) })
}

func (v *view) newlyRefusedCallers() g.Node {
	if !v.compared() {
		return nil
	}
	title := h.H2(g.Text("Newly refused callers"))
	if len(v.newlyRefused) == 0 {
		return h.Section(title, h.P(h.ID("no-newly-refused"), g.Text("Nobody is newly refused.")))
	}
	columns := []heading{{"Caller", false}, {"Newly refused", true}, {"Of requests", true}, {"Refused before", true}, {"By rule and limit (requests)", false}, {"First at (UTC)", false}}
	return h.Section(title, table("newly-refused-callers", columns, g.Map(v.newlyRefused, func(c simulate.Caller) g.Node {
		first := ""
		if c.First != nil {
			first = moment(*c.First)
		}
		return h.Tr(name(g.Text(c.Caller)), h.Td(h.Class("n bad"), g.Text(number(c.NewlyRefused))), cell(number(c.Requests)), cell(number(c.OldRefused)),
			name(limits(c.NewlyRefusedBy, "")), h.Td(g.Text(first)))
	})))
}

func (v *view) newlyPassedCallers() g.Node {
	if !v.compared() || len(v.newlyPassed) == 0 {
		return nil
	}
	columns := []heading{{"Caller", false}, {"Newly passed", true}, {"Of requests", true}, {"Still refused", true}}
	return h.Section(h.H2(g.Text("Newly passed callers")), table("newly-passed-callers", columns, g.Map(v.newlyPassed, func(c simulate.Caller) g.Node {
		return h.Tr(name(g.Text(c.Caller)), h.Td(h.Class("n good"), g.Text(number(c.NewlyPassed))), cell(number(c.Requests)), cell(number(c.Refused)))
	})))
}

func (v *view) byRule() g.Node {
	columns := []heading{{"Rule", false}, {"Requests", true}, {"Refused", true}, {"Share", true}, {"Not enforced", true}}
	if v.compared() {
		columns = append(columns, heading{"Refused before", true}, heading{"Newly refused", true}, heading{"Newly passed", true})
	}
	var rows g.Group
	for i := range v.rules {
		rows = append(rows, v.rule(&v.rules[i]))
	}
	return h.Section(h.H2(g.Text("By rule")), table("rules", columns, rows),
		g.If(len(v.Unreached) > 0, h.Details(h.Summary(g.Text(counted(int64(len(v.Unreached)), "rule")+" reached by no request")), list("names", v.Unreached))))
}

// rule is the row of a rule, and a row for each limit of a rule with several.
func (v *view) rule(r *simulate.Rule) g.Node {
	note := ""
	switch {
	case r.New == nil:
		note = "gone"
	case v.compared() && r.Old == nil:
		note = "new"
	}
	current := simulate.RuleCount{}
	share := "-"
	if r.New != nil {
		current = *r.New
		share = percent(current.Refused, current.Requests)
	}
	cells := g.Group{
		name(g.Text(r.Rule), remark(note), g.If(r.Shadow, remark("shadow mode")), h.Div(h.Class("where"), g.Text(where(r)))),
		cell(number(current.Requests)), count(current.Refused, "bad"), cell(share), count(current.NotEnforced, "warn"),
	}
	if v.compared() {
		before := "-"
		if r.Old != nil {
			before = number(r.Old.Refused)
		}
		cells = append(cells, cell(before), count(r.NewlyRefused, "bad"), count(r.NewlyPassed, "good"))
	}
	rows := g.Group{h.Tr(cells)}
	for _, l := range current.Limits {
		empty := g.Group{h.Td(), h.Td()}
		if v.compared() {
			empty = append(empty, h.Td(), h.Td(), h.Td())
		}
		rows = append(rows, h.Tr(h.Class("limit"), name(g.Text(l.Name+" "+l.Limit)), h.Td(), cell(number(l.Over)), empty))
	}
	return rows
}

// remark is a word behind a name; nothing if it is empty.
func remark(word string) g.Node {
	if word == "" {
		return nil
	}
	return g.Group{g.Text(" "), h.I(g.Text(word))}
}

func (v *view) byCaller() g.Node {
	note := "Those that were refused, and the busiest others"
	if len(v.Callers.Rows) > len(v.callers) {
		note += "; the first " + strconv.Itoa(len(v.callers)) + " of " + number(int64(len(v.Callers.Rows)))
	}
	columns := []heading{{"Caller", false}, {"Requests", true}, {"Refused", true}, {"Share", true}}
	if v.compared() {
		columns = append(columns, heading{"Refused before", true})
	}
	columns = append(columns, heading{"Refused by rule and limit (requests)", false})
	return h.Section(h.H2(g.Text("By caller")), h.P(h.Class("note"), g.Text(note+".")), table("callers", columns, g.Map(v.callers, v.caller)))
}

func (v *view) caller(c simulate.Caller) g.Node {
	requests := number(c.Requests)
	if c.Missing > 0 {
		requests = "≥ " + requests
	}
	refusedBy := limits(c.RefusedBy, "")
	if len(c.RefusedBy) == 0 {
		refusedBy = limits(c.OldRefusedBy, " before")
	}
	return h.Tr(name(g.Text(c.Caller)), cell(requests), count(c.Refused, "bad"), cell(percent(c.Refused, c.Requests)),
		g.If(v.compared(), cell(number(c.OldRefused))), name(refusedBy))
}

func (v *view) log() g.Node {
	row := func(title string, n int64) g.Node { return g.Group{h.Dt(g.Text(title)), h.Dd(g.Text(number(n)))} }
	var bad []string
	for i := range v.FirstBad {
		bad = append(bad, v.FirstBad[i].String())
	}
	return h.Section(h.H2(g.Text("The log")),
		h.Dl(
			row("Lines", v.Lines),
			row("Skipped by the mapping", v.Skipped),
			row("Sorted by time", v.Order.Reordered),
			row("Too late to be sorted", v.Order.Late),
			h.Dt(g.Text("Cannot be used")), h.Dd(h.ID("bad-lines"), g.Text(number(v.Bad))),
		),
		g.If(len(bad) > 0, list("names", bad)),
	)
}
