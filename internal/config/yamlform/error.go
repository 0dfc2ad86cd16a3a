package yamlform

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// Position is the place of a value.
type Position struct {
	File string // file name; for values without a file, their source and the path to them
	Line int    // line number from 1; 0 for values without lines
	Col  int    // column in characters, from 1
}

// Near names the position for a message about the same file: "on line 3", or "at PATH" where there are no lines.
func (p Position) Near() string {
	if p.Line == 0 {
		return "at " + p.File
	}
	return fmt.Sprintf("on line %d", p.Line)
}

// From names the position for a message about another one: "line 3" in the same file, else "FILE:3".
func (p Position) From(other Position) string {
	if p.File == other.File {
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Errorf returns an error at the position.
func (p Position) Errorf(format string, args ...any) *Error {
	return &Error{File: p.File, Line: p.Line, Col: p.Col, Msg: fmt.Sprintf(format, args...)}
}

// Error is one mistake in a file that people write.
type Error struct {
	File string // name given to the reader
	Line int    // line number from 1; 0 if the error is about the whole file, for example because it cannot be read
	Col  int    // column in characters, from 1
	Msg  string // the problem, and how to fix it

	Reference Reference // treatment of the file by envoyproxy/ratelimit, for a warning
}

// Reference tells how envoyproxy/ratelimit treats a file that is accepted here with a warning. The zero value is for
// unknown.
type Reference string

// How envoyproxy/ratelimit treats the file.
const (
	ReadsToo Reference = "envoyproxy/ratelimit reads it in the same way"
	Rejects  Reference = "envoyproxy/ratelimit rejects the file"
	Keeps    Reference = "envoyproxy/ratelimit keeps it, and clients cannot read its answers"
)

// Error returns "file:line:col: msg", or "file: msg" for an error about the whole file.
func (e *Error) Error() string {
	msg := e.Msg
	if e.Reference != "" {
		msg += "; " + string(e.Reference)
	}
	if e.Line == 0 {
		return e.File + ": " + msg
	}
	return e.File + ":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Col) + ": " + msg
}

// SortErrors sorts the errors of one file by position and drops repeats: an error behind an anchor is found once for
// every alias.
func SortErrors(errs []*Error) []*Error {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return slices.CompactFunc(errs, func(a, b *Error) bool { return *a == *b })
}
