// Package tlstest makes certificates for tests, and directories of files that change as Kubernetes changes them.
//
// It owns authorities and the certificates that they sign (authority.go), and mounted volumes (volume.go). An Authority
// may be used by any goroutine; a Volume is its test's.
//
// It is only for tests, and checks nothing.
package tlstest
