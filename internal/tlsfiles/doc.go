// Package tlsfiles gives TLS configurations from certificate files, and reads the files again when they change.
//
// It owns reading and checking the files (files.go), watching them (watch.go), and the configurations of both sides
// (config.go). A connection is made with what was read last; those that are open go on as they are. A new version that
// cannot be used does not replace the one in use.
//
// Files are loaded by Load and watched while Run runs. The configurations may be used by any goroutine, and are asked by
// every handshake.
//
// It serves and dials nothing, and knows nothing of what is spoken over the connections.
package tlsfiles
