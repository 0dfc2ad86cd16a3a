// Package tlsfiles creates TLS configurations from certificate files, and reads the files again when they change. A new
// connection uses the newest good version of the files; open connections keep theirs. An unusable new version does not
// replace the active one.
//
// Load reads the files for the first time. They are read again while Run runs, or whenever Reload is called. All
// methods may be called concurrently; every handshake uses the current version.
//
// The package does not listen, and is independent of the protocol on the connections.
package tlsfiles
