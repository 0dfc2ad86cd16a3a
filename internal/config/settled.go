package config

import (
	"io/fs"

	"github.com/ratelimitd/ratelimitd/internal/platform/files"
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
	return files.Same(before, now)
}
