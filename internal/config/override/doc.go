// Package override holds the operators' overrides: numbers for one caller that replace a rule's. A rule fixes what is
// counted, in which windows and by which algorithm; an override changes only how many hits pass.
//
// An Override is the record that operators write and read. A Set holds what decisions need of all overrides. It is
// immutable: any number of goroutines may use it, and a change makes a new one that shares what did not change. A
// Source keeps the records, and hands out a new Set after each change.
//
// This package does not decide. Package limiter applies what Find returns.
package override
