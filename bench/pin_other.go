//go:build !linux

package main

// cores says which processors the parts run on; elsewhere than on Linux, wherever the system puts them.
type cores struct {
	server []int
	load   []int
}

func assignCores() cores { return cores{} }

func (cores) pinSelf() error { return nil }

func pinned(_ []int, start func() error) error { return start() }
