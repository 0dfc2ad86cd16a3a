// Package rulecheck finds errors and probable mistakes in rule files.
//
// Errors come from package config: a load would report them too. Files without errors are checked for probable
// mistakes: rules that no request reaches, values that match something else than intended, limits that look forgotten
// or odd, names that refer to nothing. Each Finding has a code that does not change, a position, a reason and a fix. A
// comment in a rule file can accept a finding. Reports are written as text, JSON, one line per finding, or commands of
// GitHub Actions.
//
// A compiled tree has only the position of each rule. So the files are read once more for the positions of all keys;
// the meaning of the keys comes from the table of the rule language in package config.
//
// All functions may be called concurrently. The package does not read the environment, does not look at counters, and
// writes no file.
package rulecheck
