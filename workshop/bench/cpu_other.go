//go:build !linux

package main

import "errors"

func cpuOf(int) (float64, error) {
	return 0, errors.New("read the CPU time of a process: that needs Linux")
}
