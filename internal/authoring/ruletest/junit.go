package ruletest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// The elements of JUnit's format that CI servers agree on.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     junitSeconds `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Errors   int          `xml:"errors,attr"`
		Time     junitSeconds `xml:"time,attr"`
		Cases    []junitCase  `xml:"testcase"`
	}
	junitCase struct {
		Name    string       `xml:"name,attr"`
		Class   string       `xml:"classname,attr"`
		File    string       `xml:"file,attr"`
		Line    int          `xml:"line,attr,omitempty"`
		Time    junitSeconds `xml:"time,attr"`
		Failure *junitText   `xml:"failure"`
		Error   *junitText   `xml:"error"`
	}
	junitText struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",cdata"`
	}
	junitSeconds time.Duration
)

// MarshalText implements encoding.TextMarshaler.
func (s junitSeconds) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%.6f", time.Duration(s).Seconds()), nil
}

// WriteJUnit writes a report as JUnit XML: a suite for each file, a test for each case. A file that cannot be run is one
// test with an error.
func WriteJUnit(to io.Writer, r *Report) error {
	all := junitSuites{Tests: r.Cases + r.Bad, Failures: r.Failed, Errors: r.Bad, Time: junitSeconds(r.Elapsed)}
	for i := range r.Files {
		all.Suites = append(all.Suites, junitSuiteOf(&r.Files[i]))
	}
	if _, err := io.WriteString(to, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(to)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(to, "\n")
	return err
}

func junitSuiteOf(f *FileResult) junitSuite {
	s := junitSuite{Name: f.Name, Tests: len(f.Cases), Time: junitSeconds(f.Elapsed)}
	if len(f.Errors) > 0 {
		var text []string
		for i := range f.Errors {
			text = append(text, f.Errors[i].String())
		}
		s.Tests, s.Errors = 1, 1
		s.Cases = []junitCase{{
			Name: "read the file", Class: f.Name, File: f.Name, Line: f.Errors[0].Line,
			Error: &junitText{Message: f.Errors[0].Message, Type: "bad file", Text: printable(strings.Join(text, "\n"))},
		}}
		return s
	}
	for i := range f.Cases {
		c := &f.Cases[i]
		test := junitCase{Name: c.Name, Class: f.Name, File: f.Name, Line: c.Line, Time: junitSeconds(c.Elapsed)}
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
			test.Failure = &junitText{Message: message, Type: "expectation", Text: printable(text.String())}
		}
		s.Cases = append(s.Cases, test)
	}
	return s
}

// printable replaces the characters that XML cannot hold: within CDATA they would not be escaped.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' && c != '\n' && c != '\t' || c == 0xfffe || c == 0xffff {
			return utf8.RuneError
		}
		return c
	}, s)
}
