package config

import (
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Complaints collects what is wrong with one file, so that all of it is told at once.
type Complaints struct {
	File string
	Errs []*Error
}

// maxComplaints are kept of one file.
const maxComplaints = 100

// Position is where a node stands.
func (c *Complaints) Position(n *yaml.Node) descriptor.Position {
	return descriptor.Position{File: c.File, Line: max(n.Line, 1), Col: max(n.Column, 1)}
}

// Errorf notes an error at a node.
func (c *Complaints) Errorf(at *yaml.Node, format string, args ...any) {
	c.ErrorAt(c.Position(at), format, args...)
}

// ErrorAt notes an error, once: what stands behind an anchor is read for every alias.
func (c *Complaints) ErrorAt(at descriptor.Position, format string, args ...any) {
	e := &Error{File: c.File, Line: at.Line, Col: at.Col, Msg: fmt.Sprintf(format, args...)}
	if len(c.Errs) < maxComplaints && !slices.ContainsFunc(c.Errs, func(told *Error) bool { return *told == *e }) {
		c.Errs = append(c.Errs, e)
	}
}

// Sorted returns the errors in the order of the file.
func (c *Complaints) Sorted() []*Error { return SortErrors(c.Errs) }
