package report

import (
	"crypto/sha256"
	_ "embed" // the parts of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/simulate"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS string
	//go:embed page.js
	pageJS string
	//go:embed uplot/uPlot.js
	uPlotJS string
	//go:embed uplot/uPlot.css
	uPlotCSS string
	//go:embed uplot/LICENSE
	uPlotLicense string
)

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"number": number, "percent": percent, "moment": moment, "span": span, "where": where, "join": strings.Join, "width": width,
	"counted": func(n any, what string) string {
		if i, ok := n.(int); ok {
			return counted(int64(i), what)
		}
		return counted(n.(int64), what)
	},
	"by":  func(r simulate.RefusedBy) string { return by(r, 0) },
	"add": func(a, b int64) int64 { return a + b },
	"int": func(n int) int64 { return int64(n) },
}).Parse(pageHTML))

// shown is the most rules and callers that the page shows.
const shown = 200

// chartData is the input of the page's scripts.
type chartData struct {
	Start        int64     `json:"start"` // seconds since 1970
	Width        int64     `json:"width"` // seconds
	Requests     []int64   `json:"requests"`
	Refused      []int64   `json:"refused"`
	OldRefused   []int64   `json:"oldRefused,omitempty"`
	NewlyRefused []int64   `json:"newlyRefused,omitempty"`
	NewlyPassed  []int64   `json:"newlyPassed,omitempty"`
	Rules        []ruleRow `json:"rules"`
}

type ruleRow struct {
	Name    string  `json:"name"`
	Refused []int64 `json:"refused"`
}

// pageData is the input of the page's template.
type pageData struct {
	*simulate.Report
	Security        string // the content security policy: load nothing
	Styles          template.CSS
	Library, Script template.JS
	License         string
	Data            template.JS
	RuleRows        []simulate.Rule
	CallerRows      []simulate.Caller
	NewlyRows       []simulate.Caller // newly refused
	PassedRows      []simulate.Caller // newly passed
	Title           string
}

// chartedRules is how many rules have their own line in a chart.
const chartedRules = 6

func charts(r *simulate.Report) *chartData {
	o := &r.OverTime
	d := &chartData{
		Start: o.Start.Unix(), Width: o.WidthSeconds, Requests: o.Requests, Refused: o.Refused,
		OldRefused: o.OldRefused, NewlyRefused: o.NewlyRefused, NewlyPassed: o.NewlyPassed, Rules: []ruleRow{},
	}
	for i := range r.ByRule {
		if n := r.ByRule[i].New; n != nil && n.Refused > 0 && n.OverTime != nil && len(d.Rules) < chartedRules {
			d.Rules = append(d.Rules, ruleRow{r.ByRule[i].Rule, n.OverTime})
		}
	}
	return d
}

// WriteHTML writes a report as a self-contained page.
func WriteHTML(to io.Writer, r *simulate.Report) error {
	data, err := json.Marshal(charts(r)) // Marshal escapes <, > and &, so no text of a log can end the script
	if err != nil {
		return fmt.Errorf("write the charts' data: %w", err)
	}
	styles := uPlotCSS + "\n" + pageCSS
	p := &pageData{
		Report:   r,
		Security: "default-src 'none'; script-src " + hash(uPlotJS) + " " + hash(pageJS) + "; style-src " + hash(styles) + "; base-uri 'none'; form-action 'none'",
		Styles:   template.CSS(styles),
		Library:  template.JS(uPlotJS),
		Script:   template.JS(pageJS),
		License:  uPlotLicense,
		Data:     template.JS(data), // JSON, escaped
		Title:    "Simulation of " + r.Rules,

		RuleRows:   r.ByRule[:min(shown, len(r.ByRule))],
		CallerRows: r.Callers.Rows[:min(shown, len(r.Callers.Rows))],
	}
	for _, c := range r.Callers.Rows {
		if c.NewlyRefused > 0 && len(p.NewlyRows) < shown {
			p.NewlyRows = append(p.NewlyRows, c)
		}
		if c.NewlyPassed > 0 && len(p.PassedRows) < shown {
			p.PassedRows = append(p.PassedRows, c)
		}
	}
	if err := page.Execute(to, p); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// hash returns the name of a script or style in a content security policy.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
