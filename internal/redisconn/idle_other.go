//go:build !unix

package redisconn

import "syscall"

// unread would report whether bytes wait to be read from a socket. This system does not say.
func unread(syscall.RawConn) (waiting bool, err error) { return false, nil }
