package redistest

import "syscall"

// EndsWithTest lets the kernel end a process when the test process dies without running its clean-up.
func EndsWithTest() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
