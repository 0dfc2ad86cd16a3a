package report

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
)

// diffLine is a line of a rule that differs between two folders, or is the same in both.
type diffLine struct {
	sign string // "-": only before, "+": only now, " ": in both
	text string
}

// diff compares the lines of a rule. What is gone comes before what is new.
func diff(c *simulate.RuleChange) (lines []diffLine) {
	for _, l := range c.Old {
		if !slices.Contains(c.New, l) {
			lines = append(lines, diffLine{"-", l})
		}
	}
	for _, l := range c.New {
		sign := "+"
		if slices.Contains(c.Old, l) {
			sign = " "
		}
		lines = append(lines, diffLine{sign, l})
	}
	return lines
}
