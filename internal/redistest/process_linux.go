package redistest

import "syscall"

// processAttributes lets the kernel end the server when the test process dies without running its clean-up.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
