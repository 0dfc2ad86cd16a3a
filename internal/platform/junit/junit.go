// Package junit writes JUnit XML, with the elements and attributes that CI servers agree on.
//
// It is independent of the kind of tests. Its functions may be called concurrently.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Suites is the top of a report.
type Suites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr,omitempty"`
	Time     Seconds  `xml:"time,attr"`
	Suites   []Suite  `xml:"testsuite"`
}

// Suite is a group of tests.
type Suite struct {
	Name     string  `xml:"name,attr"`
	Tests    int     `xml:"tests,attr"`
	Failures int     `xml:"failures,attr"`
	Errors   int     `xml:"errors,attr"`
	Skipped  int     `xml:"skipped,attr,omitempty"`
	Time     Seconds `xml:"time,attr"`
	Cases    []Case  `xml:"testcase"`
}

// Case is one test. At most one of Failure, Error and Skipped is set.
type Case struct {
	Name    string  `xml:"name,attr"`
	Class   string  `xml:"classname,attr"`
	File    string  `xml:"file,attr,omitempty"`
	Line    int     `xml:"line,attr,omitempty"`
	Time    Seconds `xml:"time,attr"`
	Failure *Text   `xml:"failure"`
	Error   *Text   `xml:"error"`
	Skipped *Text   `xml:"skipped"`
}

// Text is the reason why a test did not pass.
type Text struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",cdata"`
}

// Seconds is a duration that is written in seconds.
type Seconds time.Duration

// MarshalText implements encoding.TextMarshaler.
func (s Seconds) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%.6f", time.Duration(s).Seconds()), nil
}

// Write writes a report.
func Write(to io.Writer, all *Suites) error {
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

// Printable replaces the characters that XML cannot contain: in the CDATA of a Text they would not be escaped.
func Printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' && c != '\n' && c != '\t' || c == 0xfffe || c == 0xffff {
			return utf8.RuneError
		}
		return c
	}, s)
}
