package report

import (
	"slices"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
)

// view is a report as the page shows it. Its methods build the parts of the page.
//
// Everything that comes from a log or a rule file becomes g.Text, which escapes it. g.Raw is for what is embedded in the binary,
// and for the JSON of the charts, which has only numbers.
type view struct {
	*simulate.Report

	rules        []simulate.Rule
	callers      []simulate.Caller
	newlyRefused []simulate.Caller
	newlyPassed  []simulate.Caller
}

// maxRows is how many rules, and how many callers, a table shows at most.
const maxRows = 1000

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
			h.Main(v.summary(), v.warnings(), v.changes(), v.newlyRefusedCallers(), v.newlyPassedCallers(), v.overTime(), v.byRule(), v.byCaller(), v.log()),
			h.Footer(h.Details(h.Summary(g.Text("Made by ratelimitd simulate. Charts: uPlot, MIT license.")), h.Pre(g.Text(uPlotLicense)))),
			h.Script(h.Type("application/json"), h.ID("data"), g.Raw(data)),
			h.Script(g.Raw(uPlotJS)),
			h.Script(g.Raw(pageJS)),
		),
	))
}

// header has the verdict: what changes for whom.
func (v *view) header() g.Node {
	verdict := newVerdict(v.Report)
	class := "verdict"
	if verdict.kind != "" {
		class += " " + verdict.kind
	}
	return h.Header(h.Class(class),
		h.H1(g.Text(verdict.title)),
		g.Map(verdict.sentences, sentence),
		h.P(h.Class("source"),
			g.Text(counted(v.Requests, "request")+" of "+strings.Join(v.Logs, ", ")+", "+span(v.Report)+". Rules of "), h.Code(g.Text(v.Rules)),
			g.If(v.compared(), g.Group{g.Text(", compared with "), h.Code(g.Text(v.Against))}),
			g.Text("."),
		),
	)
}

func sentence(phrases []phrase) g.Node {
	return h.P(g.Map(phrases, func(p phrase) g.Node {
		switch p.kind {
		case strong:
			return h.Strong(g.Text(p.text))
		case quoted:
			return h.Code(g.Text(p.text))
		default:
			return g.Text(p.text)
		}
	}))
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
	if n := v.New.Inactive; n > 0 {
		cards = append(cards, card("", "", number(n), "requests without an active limit", ofAll(n)))
	}
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
	chart := func(id, title, note, use string) g.Node {
		return h.Section(g.Attr("aria-labelledby", id+"-title"),
			h.H2(h.ID(id+"-title"), g.Text(title)), h.P(h.Class("note"), g.Text(note), g.If(use != "", h.Span(h.Class("use"), g.Text(use)))), h.Div(h.Class("chart"), h.ID("chart-"+id)))
	}
	const use = " Choose a name below a chart to hide or show it. Drag to look closer, double-click to go back. The arrow keys move through time."
	return g.Group{
		chart("requests", "Requests over time", "Allowed and refused, "+per, use),
		g.If(v.compared(), chart("changes", "What changes over time", "Newly refused above, newly passed below, "+per, "")),
	}
}

// heading is the head of a column of a table. In a column of numbers they stand at its right.
type heading struct {
	title   string
	numbers bool
}

// table is a table that scrolls on its own where it is too wide. The script lets readers sort and search it. Its id must be the
// id of the heading above it, followed by -title.
func table(id string, columns []heading, rows g.Node) g.Node {
	head := g.Map(columns, func(c heading) g.Node { return h.Th(h.Scope("col"), g.If(c.numbers, h.Class("n")), g.Text(c.title)) })
	return h.Div(h.Class("scroll"), h.Role("region"), h.TabIndex("0"), g.Attr("aria-labelledby", id+"-title"),
		h.Table(h.ID(id), g.Attr("aria-labelledby", id+"-title"), h.THead(h.Tr(head)), h.TBody(rows)))
}

// titled is a section with a heading, for the table with this id.
func titled(id, title string, parts ...g.Node) g.Node {
	return h.Section(h.H2(h.ID(id+"-title"), g.Text(title)), g.Group(parts))
}

// name is a cell with a text of any length. of is the title of its column, which narrow windows show next to the text.
func name(of string, parts ...g.Node) g.Node {
	return h.Td(h.Class("name"), h.Data("of", of), h.Div(g.Group(parts)))
}

// breakable is the path of a rule or of a file. It may break after its separators.
func breakable(path string) g.Node {
	const most = 200 // parts and breaks: a path that consists only of separators must stay small
	var parts g.Group
	for len(parts) < most {
		at := strings.IndexAny(path, "._/") + 1
		if at == 0 || at == len(path) {
			break
		}
		parts = append(parts, g.Text(path[:at]), h.Wbr())
		path = path[at:]
	}
	return append(parts, g.Text(path))
}

// head is the cell that names its row.
func head(parts ...g.Node) g.Node { return h.Th(h.Scope("row"), h.Class("name"), g.Group(parts)) }

// cell is a cell of a column of numbers.
func cell(of, text string) g.Node { return h.Td(h.Class("n"), h.Data("of", of), g.Text(text)) }

// count is a number; one that is not zero has the colour of its kind.
func count(of string, n int64, kind string) g.Node {
	class := "n"
	if n != 0 {
		class += " " + kind
	}
	return h.Td(h.Class(class), h.Data("of", of), g.Text(number(n)))
}

// lines writes texts below each other.
func lines[T any](all []T, text func(T) string) g.Node {
	return g.Map(all, func(t T) g.Node { return h.Div(g.Text(text(t))) })
}

// refusedBy is the cells of the limits that refused a caller: the rule, the rate, the burst and the number of refusals.
func refusedBy(all []simulate.RefusedBy) g.Node {
	return g.Group{
		name("Rule", g.Map(all, func(b simulate.RefusedBy) g.Node { return h.Div(breakable(b.Rule)) })),
		h.Td(h.Data("of", "Rate"), h.Div(lines(all, func(b simulate.RefusedBy) string { return strings.TrimSpace(b.Name + " " + b.Limit) }))),
		h.Td(h.Data("of", "Burst"), h.Div(lines(all, func(b simulate.RefusedBy) string { return orNone(b.Burst) }))),
		h.Td(h.Class("n"), h.Data("of", "Refusals"), h.Div(lines(all, func(b simulate.RefusedBy) string { return number(b.Requests) }))),
	}
}

// limitColumns are the heads of the cells of refusedBy.
var limitColumns = []heading{{"Rule", false}, {"Rate", false}, {"Burst", false}, {"Refusals", true}}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// changes is the difference between the folders.
func (v *view) changes() g.Node {
	if !v.compared() {
		return nil
	}
	if len(v.ChangedRules) == 0 {
		return titled("changed-rules", "Changed rules", h.P(h.Class("note"), g.Text("The folders have the same rules.")))
	}
	shown := v.ChangedRules[:min(maxRows, len(v.ChangedRules))]
	note := number(int64(len(v.ChangedRules))) + " rules differ. A minus is before, a plus is now."
	if len(v.ChangedRules) == 1 {
		note = "1 rule differs. A minus is before, a plus is now."
	}
	if len(shown) < len(v.ChangedRules) {
		note += " The first " + strconv.Itoa(len(shown)) + " are shown; -o json has all."
	}
	return titled("changed-rules", "Changed rules", h.P(h.Class("note"), g.Text(note)),
		table("changed-rules", []heading{{"Rule", false}, {"Change", false}}, g.Map(shown, func(c simulate.RuleChange) g.Node {
			kind := ""
			switch {
			case c.Old == nil:
				kind = "new"
			case c.New == nil:
				kind = "gone"
			}
			return h.Tr(head(breakable(c.Rule), remark(kind), h.Div(h.Class("where"), breakable(place(c.File, c.Line)))),
				h.Td(h.Class("diff"), h.Data("of", "Change"), h.Div(g.Map(diff(&c), changedLine))))
		})))
}

func changedLine(l diffLine) g.Node {
	text := g.Text(l.text)
	switch l.sign {
	case "-":
		return h.Div(h.Del(h.Span(h.Class("sign"), g.Text("− ")), text))
	case "+":
		return h.Div(h.Ins(h.Span(h.Class("sign"), g.Text("+ ")), text))
	default:
		return h.Div(h.Span(h.Class("sign"), g.Text("  ")), text)
	}
}

func (v *view) newlyRefusedCallers() g.Node {
	if !v.compared() {
		return nil
	}
	const id, title = "newly-refused-callers", "Newly refused callers"
	if len(v.newlyRefused) == 0 {
		return titled(id, title, h.P(h.ID("no-newly-refused"), g.Text("Nobody is newly refused.")))
	}
	columns := slices.Concat([]heading{{"Caller", false}, {"Newly refused", true}, {"Requests", true}, {"Share refused", true}, {"Before", true}}, limitColumns, []heading{{"First at (UTC)", false}})
	return titled(id, title, v.cut(len(v.newlyRefused), v.NewlyRefused.Callers), table(id, columns, g.Map(v.newlyRefused, func(c simulate.Caller) g.Node {
		first := ""
		if c.First != nil {
			first = moment(*c.First)
		}
		return h.Tr(head(g.Text(c.Caller)), count("Newly refused", c.NewlyRefused, "bad"), cell("Requests", number(c.Requests)), cell("Share refused", percent(c.Refused, c.Requests)),
			cell("Before", percent(c.OldRefused, c.Requests)), refusedBy(c.NewlyRefusedBy), h.Td(h.Class("when"), h.Data("of", "First at (UTC)"), g.Text(first)))
	})))
}

func (v *view) newlyPassedCallers() g.Node {
	if !v.compared() || len(v.newlyPassed) == 0 {
		return nil
	}
	const id, title = "newly-passed-callers", "Newly passed callers"
	columns := slices.Concat([]heading{{"Caller", false}, {"Newly passed", true}, {"Requests", true}, {"Share refused", true}, {"Before", true}}, limitColumns)
	return titled(id, title, v.cut(len(v.newlyPassed), v.NewlyPassed.Callers), h.P(h.Class("note"), g.Text("The rule, the rate and the burst are those that refused the caller before.")),
		table(id, columns, g.Map(v.newlyPassed, func(c simulate.Caller) g.Node {
			return h.Tr(head(g.Text(c.Caller)), count("Newly passed", c.NewlyPassed, "good"), cell("Requests", number(c.Requests)), cell("Share refused", percent(c.Refused, c.Requests)),
				cell("Before", percent(c.OldRefused, c.Requests)), refusedBy(c.OldRefusedBy))
		})))
}

// cut says that a table does not have all callers.
func (v *view) cut(shown int, of int64) g.Node {
	return g.If(int64(shown) < of, h.P(h.Class("note"), g.Text("The first "+strconv.Itoa(shown)+" of "+number(of)+"; -o json has all.")))
}

func (v *view) byRule() g.Node {
	columns := []heading{{"Rule", false}, {"Rate", false}, {"Burst", false}, {"Over limit", true}, {"Requests", true}, {"Refused", true}, {"Share refused", true}, {"Not enforced", true}}
	if v.compared() {
		columns = append(columns, heading{"Refused before", true}, heading{"Newly refused", true}, heading{"Newly passed", true})
	}
	var rows g.Group
	for i := range v.rules {
		rows = append(rows, v.rule(&v.rules[i]))
	}
	return titled("rules", "By rule", v.cut(len(v.rules), int64(len(v.ByRule))), table("rules", columns, rows),
		g.If(len(v.Unreached) > 0, h.Details(h.Summary(g.Text(counted(int64(len(v.Unreached)), "rule")+" reached by no request")), list("names", v.Unreached))))
}

// rule is the row of a rule.
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
		head(breakable(r.Rule), remark(note), g.If(r.Shadow, remark("shadow mode")), h.Div(h.Class("where"), breakable(where(r)))),
		h.Td(h.Data("of", "Rate"), h.Div(lines(current.Limits, func(l simulate.Limit) string { return strings.TrimSpace(l.Name + " " + l.Limit) }))),
		h.Td(h.Data("of", "Burst"), h.Div(lines(current.Limits, func(l simulate.Limit) string { return orNone(l.Burst) }))),
		h.Td(h.Class("n"), h.Data("of", "Over limit"), h.Div(lines(current.Limits, func(l simulate.Limit) string { return number(l.Over) }))),
		cell("Requests", number(current.Requests)), count("Refused", current.Refused, "bad"), cell("Share refused", share), count("Not enforced", current.NotEnforced, "warn"),
	}
	if v.compared() {
		before := "-"
		if r.Old != nil {
			before = number(r.Old.Refused)
		}
		cells = append(cells, cell("Refused before", before), count("Newly refused", r.NewlyRefused, "bad"), count("Newly passed", r.NewlyPassed, "good"))
	}
	return h.Tr(cells)
}

// remark is a word behind a name; nothing if it is empty.
func remark(word string) g.Node {
	if word == "" {
		return nil
	}
	return g.Group{g.Text(" "), h.I(g.Text(word))}
}

// byCaller shows the callers under one folder of rules. A comparison shows the callers whose verdicts change instead.
func (v *view) byCaller() g.Node {
	if v.compared() {
		return nil
	}
	note := "Those that were refused, and the busiest others"
	if len(v.Callers.Rows) > len(v.callers) {
		note += "; the first " + strconv.Itoa(len(v.callers)) + " of " + number(int64(len(v.Callers.Rows)))
	}
	columns := slices.Concat([]heading{{"Caller", false}, {"Requests", true}, {"Refused", true}, {"Share refused", true}}, limitColumns)
	return titled("callers", "By caller", h.P(h.Class("note"), g.Text(note+".")), table("callers", columns, g.Map(v.callers, caller)))
}

func caller(c simulate.Caller) g.Node {
	requests := number(c.Requests)
	if c.Missing > 0 {
		requests = "≥ " + requests
	}
	return h.Tr(head(g.Text(c.Caller)), cell("Requests", requests), count("Refused", c.Refused, "bad"), cell("Share refused", percent(c.Refused, c.Requests)),
		refusedBy(c.RefusedBy))
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
