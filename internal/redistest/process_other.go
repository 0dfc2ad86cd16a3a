//go:build !linux

package redistest

import "syscall"

func processAttributes() *syscall.SysProcAttr { return nil }
