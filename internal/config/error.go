package config

import (
	"cmp"
	"slices"
	"strconv"
)

// Error is one thing wrong with a rule file.
type Error struct {
	File string // as the caller named the file
	Line int    // from 1; 0 if the file as a whole is at fault, say because it cannot be read
	Col  int    // from 1, in characters
	Msg  string // what is wrong, and what to write instead
}

// Error gives file:line:col: msg, or file: msg if the file as a whole is at fault.
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Msg
	}
	return e.File + ":" + strconv.Itoa(e.Line) + ":" + strconv.Itoa(e.Col) + ": " + e.Msg
}

// SortErrors puts the errors of one file into the order of its lines, and drops repeats: what is wrong behind an
// anchor would else be told once for every alias.
func SortErrors(errs []*Error) []*Error {
	slices.SortStableFunc(errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return slices.CompactFunc(errs, func(a, b *Error) bool { return *a == *b })
}
