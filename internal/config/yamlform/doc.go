// Package yamlform reads the YAML that people write into typed values, and says what is wrong with it.
//
// A language is described once, as Forms: one for each kind of map, with one row for each key. A row has the key's
// name, its type, what it means, and a function that puts the value into the caller's struct. Reading, error messages,
// JSON schemas and reference tables come from the same row, so they cannot disagree.
//
// A Reader reads one file. It notes every mistake with its position and reads on, so all errors of a file come at once;
// a message names what was probably meant. Aliases, merge keys (<<) and nulls are resolved here: a Value behind an
// alias reads like any other, a merged key like the map's own, and a key with a null as if it were absent. Aliases that
// never end, and files whose aliases stand for too much, are errors.
//
// Decode and Encode are for files whose language belongs to another program.
//
// Forms are immutable and may be used by any number of goroutines. A Reader with its Values is for one.
//
// Only this package imports the YAML library, and only syntax.go knows the texts of that library's errors. The package
// knows no language: no rule, test or mapping.
package yamlform
