package rulecheck

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

var (
	escapeData     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	escapeProperty = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// WriteGitHub writes commands that GitHub Actions shows as annotations at the lines they name.
func WriteGitHub(to io.Writer, r *Report, info bool) error {
	w := bufio.NewWriter(to)
	for i := range r.Findings {
		f := &r.Findings[i]
		command := string(f.Severity)
		if f.Severity == Info {
			if !info {
				continue
			}
			command = "notice"
		}
		at := ""
		if f.Line > 0 {
			at = fmt.Sprintf(",line=%d,col=%d", f.Line, f.Col)
		}
		if f.Code != "" {
			at += ",title=" + f.Code
		}
		fmt.Fprintf(w, "::%s file=%s%s::%s\n", command, escapeProperty.Replace(f.File), at, escapeData.Replace(f.Text()))
	}
	return w.Flush()
}
