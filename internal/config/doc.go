// Package config turns rule files into a tree of rules, and keeps the tree up to date while the files change.
//
// It owns the rule language: what YAML becomes nodes (yaml.go, chunks.go), which keys a map may have and what reads
// them (shape.go), what a rule file and a descriptor consist of (rules.go) and a rate limit (limits.go), single values
// (scalar.go, zone.go) and free-form metadata (metadata.go); what is taken although it is probably a mistake is lenient.go; language.go describes all of it to schemas and references.
// Every complaint is an Error with file, line and column and says what to write instead (error.go, syntax.go, suggest.go,
// messages.go, complaints.go): those are also for packages that read other YAML of people. Files become one tree in
// ledger.go, where domains find their owners; compile.go is the pure way there. A folder of files, with the last good version of each, is folder.go; what belongs to
// it is found by scan.go, with the names that may be no rules in aside.go; its changes are noticed by watch.go, with the
// paths that symbolic links lead over in paths.go, and gathered into one reload by burst.go; growing.go says when a file
// that is being written may be read. A reload never removes the last rule (last_rule.go), and drops.go names the rules that one takes away. Rules that are no files but come from a server are resources: one of them
// becomes nodes like those of YAML in resource.go, and whole sets are taken over or refused in resources.go. metrics.go
// says what is in force, with a number for the rules (checksum.go).
//
// Compile is a pure function. A Folder may be used by any number of goroutines; its Watch runs once. Resources may be used
// by any number of goroutines, too. The trees that come out are immutable.
//
// It does not decide, does not count, and does not read the environment. A key of the rule language is added by one row
// in the tables of rules.go and limits.go.
package config
