package rulecheck

import (
	"encoding/json"
	"io"
)

// WriteJSON writes a report for programs: all findings, with counts.
func WriteJSON(to io.Writer, r *Report, info bool) error {
	findings := []Finding{}
	for _, f := range r.Findings {
		if info || f.Severity != Info {
			findings = append(findings, f)
		}
	}
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Files    int       `json:"files"`
		Errors   int       `json:"errors"`
		Warnings int       `json:"warnings"`
		Infos    int       `json:"infos"`
		Findings []Finding `json:"findings"`
	}{r.Files, r.Count(Error), r.Count(Warning), r.Count(Info), findings})
}
