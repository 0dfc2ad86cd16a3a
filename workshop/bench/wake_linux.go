package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// wakeEvery keeps timers of this process from being later than d. Without it, they are up to a millisecond late: a Go
// process without other work waits for its next timer in whole milliseconds.
func wakeEvery(d time.Duration) (stop func(), err error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a timer: %w", err)
	}
	f := os.NewFile(uintptr(fd), "timer") // the runtime waits for it as it waits for connections
	every := unix.NsecToTimespec(d.Nanoseconds())
	if err := unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("start a timer: %w", err)
	}
	go func() {
		expired := make([]byte, 8)
		for {
			if _, err := f.Read(expired); err != nil {
				return // the file is closed
			}
		}
	}()
	return func() { _ = f.Close() }, nil
}
