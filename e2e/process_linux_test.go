package e2e

import "syscall"

// processAttributes makes the kernel end a process when the test dies without its clean-up.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
