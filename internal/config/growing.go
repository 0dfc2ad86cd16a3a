package config

import (
	"io/fs"
	"os"
)

// A file that is written in place is incomplete for a while, and the first half of a list of rules is often valid. So a
// changed file is read only when it has stopped growing: no event has come for long enough, or two checks in a row find
// the same size and time.

// settled reports whether a changed file may be read. quiet means that no event has come for long enough; before is the
// previous check, if the file was growing then.
func settled(quiet bool, before, now fs.FileInfo) bool {
	if before == nil {
		return quiet
	}
	return same(before, now)
}

// same reports whether two checks of a path found the same file, unchanged.
func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
