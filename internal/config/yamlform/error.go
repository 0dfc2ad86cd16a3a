package yamlform

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
)

// Position is where a value stands.
type Position struct {
	File string // for values that come from no file: their source and the path to them
	Line int    // from 1; 0: there are no lines
	Col  int    // from 1, in characters
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

// Errorf returns an error about what stands there.
func (p Position) Errorf(format string, args ...any) *Error {
	return &Error{p.File, p.Line, p.Col, fmt.Sprintf(format, args...)}
}

// Error is one mistake in a file that people write.
type Error struct {
	File string // as the caller named the file
	Line int    // from 1; 0 if the file as a whole is at fault, say because it cannot be read
	Col  int    // from 1, in characters
	Msg  string // what is wrong, and what to write instead
}

// Error returns "file:line:col: msg", or "file: msg" for an error about the whole file.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Msg
	}
	return e.File + ":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Col) + ": " + e.Msg
}

// SortErrors sorts the errors of one file by position and drops repeats: an error behind an anchor is found once for
// every alias.
func SortErrors(errs []*Error) []*Error {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return slices.CompactFunc(errs, func(a, b *Error) bool { return *a == *b })
}
