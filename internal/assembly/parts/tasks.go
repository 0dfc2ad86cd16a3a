package parts

import (
	"context"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Tasks are what a process does in the background, and what it closes when it stops. The zero value has none. Its
// methods are not for concurrent use.
type Tasks struct {
	// Guard is put around all work that is added later. A process that must survive a panic of the work recovers it there.
	// Nil: nothing is.
	Guard func(Work) Work

	work    []Work
	closers []func() error
	begin   func(Work) // begins work; nil: the tasks have not started
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

// Closing adds what Close calls.
func (t *Tasks) Closing(f func() error) { t.closers = append(t.closers, f) }

// OnDemand adds work that begins with the first call of the function that it returns, if the tasks run then. Any
// goroutine may call that.
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

// Start begins all work in a group.
func (t *Tasks) Start(ctx context.Context, g *errgroup.Group) {
	t.begin = func(work Work) {
		if ctx.Err() == nil {
			g.Go(func() error { return work(ctx) })
		}
	}
	for _, work := range t.work { // also if ctx has ended: some work is what it does then
		g.Go(func() error { return work(ctx) })
	}
}

// Close frees what the tasks use, the newest first. Call it after all work has ended; a second call does nothing.
func (t *Tasks) Close() error {
	var failed []error
	for _, f := range slices.Backward(t.closers) {
		failed = append(failed, f())
	}
	t.closers = nil
	return errors.Join(failed...)
}

// Background is tasks that run from Begin to End. The zero value has none.
type Background struct {
	Tasks
	stop  context.CancelFunc // nil: they have not begun
	group errgroup.Group
}

// Begin begins all work. It has the values of ctx, and does not end with it.
func (b *Background) Begin(ctx context.Context) {
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.Start(ctx, &b.group)
}

// End ends all work, waits for it and frees what the tasks use.
func (b *Background) End() error {
	if b.stop != nil {
		b.stop()
	}
	return errors.Join(b.group.Wait(), b.Close())
}
