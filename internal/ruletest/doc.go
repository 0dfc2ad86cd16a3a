// Package ruletest runs unit tests for rules: files named *_test.yaml that say what is asked when, and what must come.
//
// It owns the language of test files (language.go: which keys stand where, scalar.go: single values, describe.go: what all of it
// is to schemas and references, reader.go: what
// reads them from YAML and says what is wrong), how tests and their rule files are found (find.go), the run
// of a case against the real engine on a virtual clock (run.go, expect.go), the report of a run (report.go, coverage.go)
// and how it is written (text.go, json.go, junit.go).
//
// A case has a limiter, a memory store and a clock of its own: nothing is shared, nothing waits, and no time passes but
// the one that the steps say. Run tests files concurrently; all functions may be called concurrently.
//
// It does not decide: rules are compiled by package config and held by package limiter, as in the service. It reads no
// environment and writes no file. A key of the language is added by one row in the tables of language.go.
package ruletest
