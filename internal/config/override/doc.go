// Package override holds the operators' overrides: numbers for one customer that replace a rule's. The rule keeps
// deciding which hits are counted, in which windows and by which algorithm; an override changes only how many hits
// pass.
//
// An Override is the record that operators write and read. A Set holds the part of all overrides that decisions need.
// It is immutable: any number of goroutines may use it, and a change makes a new set that shares its unchanged parts
// with the old one. A Source stores the records, and hands out a new Set after each change.
//
// This package does not decide. Package limiter applies the numbers that Find returns.
package override
