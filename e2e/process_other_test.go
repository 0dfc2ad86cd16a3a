//go:build !linux

package e2e

import "syscall"

func processAttributes() *syscall.SysProcAttr { return nil }
