package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// signalled is the cause of the end of a context that a signal ended.
type signalled struct{ os.Signal }

// Error implements error.
func (s signalled) Error() string { return s.String() + " signal received" }

// ExitCode returns the code that a shell reports for a process that the signal ended.
func (s signalled) ExitCode() int {
	if n, ok := s.Signal.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return 1
}

// untilSignal returns a context that ends with the first signal. A second Ctrl-C ends the process immediately. Another
// SIGTERM or SIGHUP changes nothing: a service manager may send several, and calls in flight still get their answers.
func untilSignal(signals ...os.Signal) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	first := make(chan os.Signal, 1)
	signal.Notify(first, signals...)
	go func() {
		s := <-first
		signal.Reset(os.Interrupt)
		cancel(signalled{s})
	}()
	return ctx
}

// giveUp is the time in which a command must end after a signal. Some commands only read and calculate, and do not
// watch their context.
const giveUp = time.Second

// interruptible runs a command until it ends, or until a signal. After a signal the exit code identifies the signal,
// and no incomplete file is left.
func interruptible(ctx context.Context, command runner, s streams) error {
	ended := make(chan error, 1)
	go func() { ended <- command.Run(ctx, s) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(giveUp):
			unfinished.remove()
			err = context.Cause(ctx)
		}
	}
	var by signalled
	if !errors.As(context.Cause(ctx), &by) {
		return err
	}
	return &exit{fmt.Errorf("stopped by a signal: %s", by.Signal), by.ExitCode()}
}

// exit is an error with its exit code.
type exit struct {
	error
	code int
}

// ExitCode implements kong.ExitCoder.
func (e *exit) ExitCode() int { return e.code }
