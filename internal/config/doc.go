// Package config compiles rule files into a tree of rules, and recompiles it when the files change. Package follow
// detects the changes.
//
// The rule language is a table with one row for each key (rules.go, limits.go). A row reads the key's value. The JSON
// Schema, the tables in docs/reference/rule-keys.md, `check` and mutation tests are derived from the same rows.
//
// Compile is a pure function from texts to a tree. A Directory does the same for a directory that changes: it reads
// only changed files, waits for files that are still being written, keeps using the last good version of a bad file,
// and never removes the last rule by accident. Resources does the same for rules that a server sends as sets of
// resources. All three use the same code to decide which file owns a domain.
//
// Every error has a position and suggests a correction. A lenient reader, which is the default of the service, accepts
// every file that envoyproxy/ratelimit accepts and warns; a strict one rejects probable mistakes.
//
// Directory and Resources may be used by any number of goroutines; trees are immutable.
//
// The package does not decide, does not count, and does not read the environment.
package config
