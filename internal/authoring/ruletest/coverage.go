package ruletest

import (
	"cmp"
	"path/filepath"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// Coverage tells which rules the tests reached: a request matched them, and neither a limit of the request nor another
// rule replaced them.
type Coverage struct {
	Rules   int         `json:"rules"`
	Reached int         `json:"reached"`
	Missed  []Missed    `json:"missed,omitempty"` // rules without a test, sorted by file and line
	Errors  []FileError `json:"errors,omitempty"` // errors in rule files without tests that cannot be loaded
}

// Missed is a rule that no test reached.
type Missed struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Col  int    `json:"col"`
	Rule string `json:"rule"` // its path
}

// Percent returns the share of rules that were reached, from 0 to 100; 100 without rules.
func (c *Coverage) Percent() float64 {
	if c.Rules == 0 {
		return 100
	}
	return 100 * float64(c.Reached) / float64(c.Rules)
}

// reach records which rules of a tree were reached.
type reach struct {
	tree *descriptor.Tree
	hit  []bool // whether a rule was reached, indexed by Rule.Index
}

func newReach(t *descriptor.Tree) *reach { return &reach{t, make([]bool, len(t.Rules))} }

// ruleID identifies a rule across trees: two test files may test one rule file.
type ruleID struct {
	file      string // absolute
	line, col int
	path      string
}

// cover combines the coverage of several runs, and adds the rules of further files as not reached.
func cover(runs []*reach, further []string) *Coverage {
	c := &Coverage{}
	seen := make(map[ruleID]bool) // whether it was reached
	shown := make(map[ruleID]Missed)
	files := make(map[string]bool)
	add := func(r *descriptor.Rule, hit bool) {
		file := absolute(r.Position.File)
		files[file] = true
		id := ruleID{file, r.Position.Line, r.Position.Col, r.Path}
		seen[id] = seen[id] || hit
		shown[id] = Missed{r.Position.File, r.Position.Line, r.Position.Col, r.Path}
	}
	for _, run := range runs {
		if run == nil {
			continue
		}
		for i, r := range run.tree.Rules {
			add(r, run.hit[i])
		}
	}
	for _, name := range further {
		if files[absolute(name)] {
			continue
		}
		data, err := stdin.ReadFile(name)
		if err != nil {
			c.Errors = append(c.Errors, FileError{File: name, Message: "cannot be read: " + err.Error()})
			continue
		}
		tree, errs := config.Compile([]config.File{{Name: name, Data: data}}, config.CompileOptions{Lenient: true})
		for _, e := range errs {
			c.Errors = append(c.Errors, FileError{e.File, e.Line, e.Col, e.Msg})
		}
		for _, r := range tree.Rules {
			add(r, false)
		}
	}
	for id, hit := range seen {
		c.Rules++
		if hit {
			c.Reached++
		} else {
			c.Missed = append(c.Missed, shown[id])
		}
	}
	slices.SortFunc(c.Missed, func(a, b Missed) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col),
			cmp.Compare(a.Rule, b.Rule))
	})
	return c
}

func absolute(name string) string {
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}
