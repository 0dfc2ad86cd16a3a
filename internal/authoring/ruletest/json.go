package ruletest

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a report for programs.
func WriteJSON(to io.Writer, r *Report) error {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(struct {
		Passed bool `json:"passed"`
		*Report
		CoveragePercent float64 `json:"coverage_percent"`
		Seconds         float64 `json:"seconds"`
	}{r.Passed(), r, r.Coverage.Percent(), r.Elapsed.Seconds()})
}
