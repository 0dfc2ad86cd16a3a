package async

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// Waiter waits for the end of an operation with a callback. It is used once.
type Waiter struct {
	Done func(error) // the callback

	mu    sync.Mutex
	ended bool // Done was called, with err
	err   error
	// created by Wait if it must wait: a pooled channel must not leave the bubble of a testing/synctest
	wake chan struct{}
}

var waiters = sync.Pool{New: func() any {
	w := new(Waiter)
	w.Done = w.end
	return w
}}

// NewWaiter returns a waiter for a callback that is about to be passed on.
func NewWaiter() *Waiter { return waiters.Get().(*Waiter) }

func (w *Waiter) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.err = true, err
	if w.wake != nil {
		close(w.wake)
	}
}

// Wait takes the results of the function with the callback. If that function has ended, Wait returns err immediately.
// Otherwise it waits, and returns the error that the callback receives.
func (w *Waiter) Wait(ended bool, err error) error {
	if !ended {
		err = w.wait()
	}
	waiters.Put(w)
	return err
}

func (w *Waiter) wait() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.wake = make(chan struct{})
		w.mu.Unlock()
		<-w.wake
		w.mu.Lock()
	}
	err := w.err
	w.ended, w.err, w.wake = false, nil, nil
	return err
}

// Go calls do, which may wait, on a new goroutine, and passes its error to done. A panic becomes a PanicError.
func Go(do func() error, done func(error)) {
	go func() { done(recovering(do)) }()
}

func recovering(do func() error) (err error) {
	defer Recover(&err)
	return do()
}

// Recover turns a panic of the function that defers it into a PanicError. A PanicError from another goroutine keeps the
// stack of the first panic.
func Recover(err *error) {
	switch p := recover().(type) {
	case nil:
	case *PanicError:
		*err = p
	default:
		*err = &PanicError{Value: p, Stack: debug.Stack()}
	}
}

// PanicError is a panic of code that ran on another goroutine.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }
