//go:build !unix

package redisconn

import "syscall"

// unread reports no waiting bytes: this system has no way to look.
func unread(syscall.RawConn) (waiting bool, err error) { return false, nil }
