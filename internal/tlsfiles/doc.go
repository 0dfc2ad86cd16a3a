// Package tlsfiles makes TLS configurations from certificate files, and reads the files again when they change.
//
// A connection is made with the version that was read last; open connections go on as they are. A new version that
// cannot be used does not replace the one in use.
//
// Load reads the files for the first time. They are read again while Run runs, or whenever Reload is called. All methods may be called
// concurrently; every handshake asks for the configuration.
//
// The package serves nothing, and does not know what is spoken over the connections.
package tlsfiles
