// Package follow keeps the rules of a directory up to date while its files change. It is a package of its own because a
// program whose rules do not change should not have to link the library that reports changes of files.
//
// Folder runs until its context ends, once for each config.Folder. That decides what a change means; this package finds
// out when to look.
package follow
