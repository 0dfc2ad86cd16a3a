package conform

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/junit"
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
				fmt.Fprintf(w, ": %s", strings.TrimSpace(one.Why+" "+one.Report))
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
	for _, level := range []Level{Protocol, Recorded, Exact, Field} {
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

// WriteJUnit writes a report as JUnit XML: a suite for each level.
func WriteJUnit(to io.Writer, r *Report) error {
	all := junit.Suites{Tests: len(r.Results), Failures: r.Failed, Skipped: r.Skipped,
		Time: junit.Seconds(r.Seconds * float64(time.Second))}
	for i := range r.Results {
		one := &r.Results[i]
		name := r.Setup + " " + string(one.Level)
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != name {
			all.Suites = append(all.Suites, junit.Suite{Name: name})
		}
		s := &all.Suites[len(all.Suites)-1]
		c := junit.Case{Name: one.Name, Class: string(one.Level)}
		switch {
		case one.Failure != "":
			c.Failure = &junit.Text{Message: one.Why, Text: junit.Printable(fmt.Sprintf("request %d: %s\n%s\n%s", one.Step,
				one.Request, one.Failure, one.Rules))}
			s.Failures++
		case one.Skipped != "":
			c.Skipped = &junit.Text{Message: one.Skipped}
			s.Skipped++
		}
		s.Tests++
		s.Cases = append(s.Cases, c)
	}
	return junit.Write(to, &all)
}
