package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// cores are the processors on which the parts run; empty: the system chooses.
type cores struct {
	server []int // the server that is measured
	load   []int // the load generator and Redis
}

// assignCores gives the servers the first processor, and everything else the others, if there are any.
func assignCores() cores {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cores{}
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	if len(all) < 2 {
		return cores{}
	}
	return cores{server: all[:1], load: all[1:]}
}

// pinSelf binds this process to the load generator's cores. Later threads inherit that.
func (c cores) pinSelf() error {
	if len(c.load) == 0 {
		return nil
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	set := setOf(c.load)
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			return fmt.Errorf("bind the load generator to its cores: %w", err)
		}
	}
	runtime.GOMAXPROCS(len(c.load))
	return nil
}

// pinned calls start on a thread that is bound to the given cores. A new process inherits the cores of the thread that
// starts it.
func pinned(on []int, start func() error) error {
	if len(on) == 0 {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the thread's cores: %w", err)
	}
	set := setOf(on)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("bind to cores %v: %w", on, err)
	}
	err := start()
	if back := unix.SchedSetaffinity(0, &before); back != nil && err == nil {
		return fmt.Errorf("bind the thread back: %w", back)
	}
	return err
}

func setOf(cpus []int) (set unix.CPUSet) {
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	return set
}
