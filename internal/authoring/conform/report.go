package conform

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// WriteText writes a report for people: each case that failed with its rules, and a line for each level.
func WriteText(to io.Writer, r *Report, color bool) error {
	w := terminal.NewWriter(to, color)
	type sum struct{ passed, all int }
	levels := map[Level]*sum{}
	for i := range r.Results {
		one := &r.Results[i]
		s := levels[one.Level]
		if s == nil {
			s = new(sum)
			levels[one.Level] = s
		}
		switch {
		case one.Skipped != "":
			fmt.Fprintf(w, "skipped  %s/%s: %s\n", one.Level, one.Name, one.Skipped)
			continue
		case one.Failure != "":
			fmt.Fprintf(w, "FAILED   %s/%s", one.Level, one.Name)
			if one.Why != "" {
				fmt.Fprintf(w, ": %s", one.Why)
			}
			fmt.Fprintf(w, "\n")
			if one.Step > 0 {
				fmt.Fprintf(w, "  request %d: %s\n", one.Step, terminal.Clean(one.Request))
			}
			for line := range strings.SplitSeq(one.Failure, "\n") {
				fmt.Fprintf(w, "  %s\n", terminal.Clean(line))
			}
			fmt.Fprintf(w, "  rules:\n")
			for line := range strings.Lines(one.Rules) {
				fmt.Fprintf(w, "    %s", line)
			}
		default:
			s.passed++
		}
		s.all++
	}
	for _, level := range []Level{Protocol, Recorded, Exact} {
		if s := levels[level]; s != nil && s.all > 0 {
			fmt.Fprintf(w, "%-9s %d of %s passed\n", level, s.passed, terminal.Count(s.all, "case"))
		}
	}
	return w.Flush()
}

// WriteJSON writes a report as JSON.
func WriteJSON(to io.Writer, r *Report) error {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// The elements of JUnit's format.
type (
	junitSuite struct {
		XMLName  xml.Name    `xml:"testsuite"`
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string     `xml:"name,attr"`
		Class   string     `xml:"classname,attr"`
		Failure *junitText `xml:"failure"`
		Skipped *junitText `xml:"skipped"`
	}
	junitText struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes a report as JUnit XML.
func WriteJUnit(to io.Writer, r *Report) error {
	s := junitSuite{Name: "conform " + r.Setup, Tests: len(r.Results), Failures: r.Failed, Skipped: r.Skipped}
	for i := range r.Results {
		one := &r.Results[i]
		c := junitCase{Name: one.Name, Class: string(one.Level)}
		if one.Failure != "" {
			c.Failure = &junitText{Message: one.Why, Text: fmt.Sprintf("request %d: %s\n%s\n%s", one.Step, one.Request, one.Failure, one.Rules)}
		}
		if one.Skipped != "" {
			c.Skipped = &junitText{Message: one.Skipped}
		}
		s.Cases = append(s.Cases, c)
	}
	if _, err := io.WriteString(to, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(to)
	e.Indent("", "  ")
	return e.Encode(s)
}
