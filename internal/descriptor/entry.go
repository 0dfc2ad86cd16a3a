package descriptor

// Entry is one key/value pair of a descriptor.
type Entry struct {
	Key   string
	Value string // may be empty: then only a rule that names the key alone matches
}

// Position is a place in a rule file. Line and Col count from 1; a zero Position is a rule that came from no file. What
// came from a server has no lines: there File is the resource's name, a colon and a space, and the path within it.
type Position struct {
	File string
	Line int
	Col  int
}
