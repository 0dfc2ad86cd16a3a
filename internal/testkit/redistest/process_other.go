//go:build !linux

package redistest

import "syscall"

// EndsWithTest does nothing here: the kernel has no such thing.
func EndsWithTest() *syscall.SysProcAttr { return nil }
