package descriptor

import "strings"

// Entry is one key/value pair of a descriptor.
type Entry struct {
	Key   string
	Value string // may be empty: then a rule without a value matches, or a pattern that matches the empty text
}

// Position is a place in a rule file. Line and Col count from 1. A rule that is not from a file has a zero Position. A
// rule from a configuration server has no lines: its File is the resource's name, a colon and a space, and the path in
// the resource.
type Position struct {
	File string
	Line int
	Col  int
}

// AppendPairs appends entries that are given as pairs of key and value. The last pair may lack its value, which is then
// empty.
func AppendPairs(entries []Entry, pairs []string) []Entry {
	for i := 0; i < len(pairs); i += 2 {
		e := Entry{Key: pairs[i]}
		if i+1 < len(pairs) {
			e.Value = pairs[i+1]
		}
		entries = append(entries, e)
	}
	return entries
}

// CloneEntries copies entries and their texts. The texts of a request lie in a buffer that later requests overwrite.
func CloneEntries(entries []Entry) []Entry {
	copied := make([]Entry, len(entries))
	for i, e := range entries {
		copied[i] = Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)}
	}
	return copied
}
