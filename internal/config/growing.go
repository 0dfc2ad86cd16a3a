package config

import (
	"io/fs"
	"os"
)

// A file that is written in place is seen half written by whoever reads it too early, and half a list of rules is often
// valid. So what has changed is read only when it has stopped growing: no event has come for long enough, or two looks at
// it, one after the other, show the same.

// settled says whether a changed file may be read. quiet is whether events say so; before is what the look before showed
// if the file was growing then.
func settled(quiet bool, before, now fs.FileInfo) bool {
	if before == nil {
		return quiet
	}
	return same(before, now)
}

// same says whether two looks at one path show the same file, unchanged.
func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
