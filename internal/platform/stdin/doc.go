// Package stdin reads the files that a command line names, where - is the standard input.
//
// The standard input is read once, as a whole and up to a bound; later reads get the same content. So a command may
// read it twice, and two names of one command line may both be -.
//
// All functions may be called concurrently. The package does not stream: a command that reads a long log opens os.Stdin
// itself.
package stdin
