// Package ruletest runs unit tests for rules: files named *_test.yaml with requests, their times, and the expected
// answers.
//
// Rules are compiled and decided by the same packages as in the service, on a virtual clock: each case has a separate
// limiter and memory store, and only its steps let time pass. The language of test files is a table with one row for
// each key; the schema and the tables in docs/reference/test-keys.md come from the same rows.
//
// Run returns a Report, which can be written as text, JSON or JUnit XML, with the rules that no test reached.
//
// All functions may be called concurrently. The package reads no environment and writes no file.
package ruletest
