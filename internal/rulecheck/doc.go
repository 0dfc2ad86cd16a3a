// Package rulecheck says what is wrong with rule files, and what is probably not meant as it stands.
//
// Errors are those of package config, the ones that a load would report. For files without errors it owns the warnings:
// rules that can never be chosen (reach.go, with glob.go for patterns and networks.go for networks), values that match
// other than meant (values.go), limits that look forgotten or odd (limits.go), names that lead nowhere (names.go). Each
// has a code that does not change (code.go), a place, a reason and a way to mend it (finding.go). Comments in a rule
// file can accept a warning (directive.go).
//
// run.go finds the files and puts everything together; domain.go is the rules with the place of every part, read from
// YAML, since the compiled tree keeps only the place of each rule. text.go, plain.go, github.go and json.go write a
// report.
//
// All functions may be called concurrently. The package does not decide what loads: that is config's. It does not read
// the environment, does not look at counters, and writes no file.
package rulecheck
