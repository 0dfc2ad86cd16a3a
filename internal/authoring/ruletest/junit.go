package ruletest

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/platform/junit"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// WriteJUnit writes a report as JUnit XML: a suite for each file, a test for each case. A file that cannot be run is
// one test with an error.
func WriteJUnit(to io.Writer, r *Report) error {
	all := junit.Suites{Tests: r.Cases + r.Bad, Failures: r.Failed, Errors: r.Bad, Time: junit.Seconds(r.Elapsed)}
	for i := range r.Files {
		all.Suites = append(all.Suites, suiteOf(&r.Files[i]))
	}
	return junit.Write(to, &all)
}

func suiteOf(f *FileResult) junit.Suite {
	s := junit.Suite{Name: f.Name, Tests: len(f.Cases), Time: junit.Seconds(f.Elapsed)}
	if len(f.Errors) > 0 {
		var text []string
		for i := range f.Errors {
			text = append(text, f.Errors[i].String())
		}
		s.Tests, s.Errors = 1, 1
		s.Cases = []junit.Case{{
			Name: "read the file", Class: f.Name, File: f.Name, Line: f.Errors[0].Line,
			Error: &junit.Text{Message: f.Errors[0].Message, Type: "bad file", Text: junit.Printable(strings.Join(text, "\n"))},
		}}
		return s
	}
	for i := range f.Cases {
		c := &f.Cases[i]
		test := junit.Case{Name: c.Name, Class: f.Name, File: f.Name, Line: c.Line, Time: junit.Seconds(c.Elapsed)}
		if len(c.Failures) > 0 {
			s.Failures++
			first := &c.Failures[0]
			message := first.Problem
			if len(first.Differences) > 0 {
				d := &first.Differences[0]
				message = fmt.Sprintf("%s: expected %s, got %s", d.What, d.Want, d.Got)
			}
			var text bytes.Buffer
			w := textWriter{terminal.NewWriter(&text, false)}
			for j := range c.Failures {
				w.failure(f, c, &c.Failures[j])
			}
			_ = w.Flush() // a buffer takes all
			test.Failure = &junit.Text{Message: message, Type: "expectation", Text: junit.Printable(text.String())}
		}
		s.Cases = append(s.Cases, test)
	}
	return s
}
