// Package yamlform reads YAML that people write into typed values, and explains the mistakes in it.
//
// A language is described once, as Forms: one for each kind of map, with one row for each key. A row has the key's
// name, its type, its meaning, and a function that stores the value in a struct. Reading, error messages, JSON schemas
// and reference tables come from the same row, so they cannot disagree.
//
// A Reader reads one file. It notes every mistake with its position and continues, so it reports all errors of a file
// together; a message suggests the key or value that was probably meant. Aliases, merge keys (<<) and nulls are
// resolved here: a Value behind an alias reads like any other, a merged key like the map's own, and a key with a null
// as if it were absent. Aliases that never end, and files whose aliases expand to too much, are errors.
//
// Decode and Encode are for files whose language belongs to another program.
//
// Forms are immutable and may be used by any number of goroutines. A Reader with its Values is for one.
//
// Only this package imports the YAML library, and only syntax.go depends on the texts of that library's errors. The
// package is independent of the languages: rules, tests and mappings.
package yamlform
