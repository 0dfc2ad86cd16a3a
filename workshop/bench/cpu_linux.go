package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// cpuOf returns the CPU time that a process has used, user and system, in seconds. It is exact to the nanosecond;
// /proc/PID/stat counts only hundredths of a second.
func cpuOf(pid int) (float64, error) {
	const ofProcess = 2 // CPUCLOCK_SCHED: the clock of the process, not of a thread
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &t); err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return float64(t.Nano()) / 1e9, nil
}
