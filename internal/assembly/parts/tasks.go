package parts

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Tasks is the background work of a process, with the connections and files to close when it stops. The zero value is
// empty. The methods are not safe for concurrent use.
type Tasks struct {
	// Guard wraps all work that is added later. A process that must survive a panic of the work recovers it there. Nil
	// adds no wrapper.
	Guard func(Work) Work

	work    []Work
	closers []func() error
	begin   func(Work) // starts work; nil until Start
}

// Work is done in the background. It ends soon after its context.
type Work = func(context.Context) error

// Add adds work.
func (t *Tasks) Add(work Work) {
	if t.Guard != nil {
		work = t.Guard(work)
	}
	t.work = append(t.work, work)
}

// Closing adds a function that Close calls.
func (t *Tasks) Closing(f func() error) { t.closers = append(t.closers, f) }

// OnDemand adds work that starts with the first call of the function that it returns, if the tasks run by then. Any
// goroutine may call that function.
func (t *Tasks) OnDemand(work Work) (begin func()) {
	if t.Guard != nil {
		work = t.Guard(work)
	}
	return sync.OnceFunc(func() {
		if t.begin != nil {
			t.begin(work)
		}
	})
}

// Start starts all work in a group.
func (t *Tasks) Start(ctx context.Context, g *errgroup.Group) {
	t.begin = func(work Work) {
		if ctx.Err() == nil {
			g.Go(func() error { return work(ctx) })
		}
	}
	for _, work := range t.work { // also if ctx has ended, because some work only runs then
		g.Go(func() error { return work(ctx) })
	}
}

// Close calls the functions of Closing, the newest first. Call it after all work has ended; a second call does nothing.
func (t *Tasks) Close() error {
	var failed []error
	for _, f := range slices.Backward(t.closers) {
		failed = append(failed, f())
	}
	t.closers = nil
	return errors.Join(failed...)
}

// Background runs tasks from Begin to End. The zero value has none.
type Background struct {
	Tasks
	stop  context.CancelFunc // nil until Begin
	group errgroup.Group
}

// Begin starts all work. The work sees the values of ctx, but does not end with it.
func (b *Background) Begin(ctx context.Context) {
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.Start(ctx, &b.group)
}

// End ends all work, waits for it and then closes the tasks.
func (b *Background) End() error {
	if b.stop != nil {
		b.stop()
	}
	return errors.Join(b.group.Wait(), b.Close())
}
