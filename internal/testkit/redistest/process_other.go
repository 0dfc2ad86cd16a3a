//go:build !linux

package redistest

import "syscall"

// EndsWithTest does nothing here: only Linux can do this.
func EndsWithTest() *syscall.SysProcAttr { return nil }
