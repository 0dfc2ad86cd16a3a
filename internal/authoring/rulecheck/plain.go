package rulecheck

import (
	"bufio"
	"fmt"
	"io"
)

// WritePlain writes one line for each finding, which editors and problem matchers understand:
//
//	file:line:col: severity: message [code]
//
// An error has no code.
func WritePlain(to io.Writer, r *Report, info bool) error {
	w := bufio.NewWriter(to)
	for i := range r.Findings {
		if f := &r.Findings[i]; info || f.Severity != Info {
			fmt.Fprintln(w, f.plain())
		}
	}
	return w.Flush()
}

func (f *Finding) plain() string {
	return fmt.Sprintf("%s: %s: %s%s", clean(f.Position()), f.Severity, clean(f.Text()), f.label())
}
