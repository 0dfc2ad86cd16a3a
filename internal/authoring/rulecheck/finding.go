package rulecheck

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity is how bad a finding is.
type Severity string

// The severities, worst first.
const (
	Error   Severity = "error"   // a strict load would reject the file, or the limit cannot work
	Warning Severity = "warning" // probably a mistake
	Info    Severity = "info"    // right, and a note for the author
)

// Finding is one problem in a rule file, or one note.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line,omitempty"` // line number, from 1; 0 if the finding is about the whole file
	Col      int      `json:"col,omitempty"`  // column in characters, from 1
	Severity Severity `json:"severity"`
	Code     string   `json:"code,omitempty"`   // empty for an error, which cannot be accepted
	Message  string   `json:"message"`          // the problem, and why it matters
	Fix      string   `json:"fix,omitempty"`    // the correction; empty where Message has it
	Source   string   `json:"source,omitempty"` // the line of the file
}

// Text is the message and the fix in one line.
func (f *Finding) Text() string {
	switch {
	case f.Fix == "":
		return f.Message
	case strings.HasSuffix(f.Message, "?"):
		return f.Message + " " + f.Fix
	default:
		return f.Message + "; " + f.Fix
	}
}

// label is the code in brackets, or nothing.
func (f *Finding) label() string {
	if f.Code == "" {
		return "" // an error
	}
	return " [" + f.Code + "]"
}

// Position is file:line:col, or only the file.
func (f *Finding) Position() string {
	if f.Line == 0 {
		return f.File
	}
	return fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Col)
}

// sortFindings sorts findings by file and position, and drops repeats: a finding behind an anchor is found once for
// every alias.
func sortFindings(all []Finding) []Finding {
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col),
			cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(all)
}
