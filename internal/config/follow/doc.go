// Package follow keeps the rules of a directory up to date while its files change. It is separate because a program
// whose rules do not change should not have to link the library that reports changes of files.
//
// Directory runs until its context ends, once for each config.Directory. The config.Directory decides how a change is
// applied; this package detects when to scan.
package follow
