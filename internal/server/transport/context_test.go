package transport

import (
	"context"
	"errors"
	"testing"
	"time"
)

// deriving derives a context from each call before it answers.
type deriving chan context.Context

// Handle implements Handler.
func (d deriving) Handle(now time.Time, calls []*Call) {
	for _, c := range calls {
		ctx, cancel := context.WithCancel(c)
		context.AfterFunc(ctx, cancel)
		d <- ctx
	}
	echo{}.Handle(now, calls)
}

// A context that was derived from a call's context ends with the call, even if the handler does not cancel it. The next
// call is not affected.
func TestContextOutlivesCall(t *testing.T) {
	made := make(deriving, 1)
	addr, _ := start(t, made, nil)
	c := dial(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for range 100 {
		if _, err := call(ctx, c, []byte("x")); err != nil {
			t.Fatal(err)
		}
		child := <-made
		select {
		case <-child.Done():
		case <-ctx.Done():
			t.Fatal("the context goes on after its call is answered")
		}
		if err := child.Err(); !errors.Is(err, context.Canceled) {
			t.Errorf("the context ended with %v", err)
		}
	}
}
