package async

import (
	"errors"
	"testing"
)

// Code that waits passes a panic of another goroutine on as a panic. The error keeps the value and the stack of the
// first one.
func TestRecoverKeepsTheFirstPanic(t *testing.T) {
	await := func(do func() error) error {
		w := NewWaiter()
		Go(do, w.Done)
		return w.Wait(false, nil)
	}
	first := await(func() error { panic("kaboom") })
	p, ok := errors.AsType[*PanicError](first)
	if !ok || p.Value != "kaboom" || len(p.Stack) == 0 {
		t.Fatalf("got %#v", first)
	}
	if again := await(func() error { panic(p) }); !errors.Is(again, first) {
		t.Errorf("got %#v, want the first error", again)
	}
}
