// Package files reads files that may be anything: a link to a device, a pipe, a file on a network file system that
// hangs.
//
// Use and Read end within a few seconds, whatever the file does: a read without an answer continues on a separate
// goroutine, at most one for each name. Leaves reports links that lead out of a directory.
//
// All functions may be called concurrently. The package does not decide which files may be read, and it does not watch
// them.
package files
