//go:build !linux

package main

// cores are the processors on which the parts run. Except on Linux, the system chooses.
type cores struct {
	server []int
	load   []int
}

func assignCores() cores { return cores{} }

func (cores) pinSelf() error { return nil }

func pinned(_ []int, start func() error) error { return start() }
