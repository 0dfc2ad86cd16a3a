package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Limiter decides requests. Open makes one.
type Limiter struct {
	engine   *limiter.Limiter
	observer Observer
	calls    sync.Pool

	stop    context.CancelFunc
	workers *errgroup.Group
	closers []func() error
	close   func() error // once
}

// Open reads the rules and returns a limiter that follows them. It fails if the folder cannot be read, if no file of it has
// usable rules, or if an option is wrong. It does not wait for Redis.
func Open(o Options) (*Limiter, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	l := &Limiter{observer: o.Observer, stop: func() {}, workers: new(errgroup.Group)}
	l.calls.New = func() any { return new(call) }
	l.close = sync.OnceValue(l.end)
	if err := l.open(&o); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	return l, nil
}

// open does everything that can fail before the first goroutine begins.
func (l *Limiter) open(o *Options) error {
	if o.Rules == "" {
		return errors.New("Options.Rules is empty: it must name the folder of rule files")
	}
	settings, err := o.settings()
	if err != nil {
		return err
	}
	opts, work, err := l.openCounters(o)
	if err != nil {
		return err
	}
	l.engine = limiter.New(opts)

	folder := config.NewFolder(config.Options{Dir: o.Rules, Strict: o.Strict, Logger: o.Logger})
	result, err := folder.Load()
	switch {
	case err != nil:
		return fmt.Errorf("read rules from %s: %w", o.Rules, err)
	case result.InUse == 0:
		return noRules(o.Rules, result.Files)
	}
	apply := func(r config.Result) { l.engine.Swap(r.Tree, settings) }
	apply(result)
	work = append(work, func(ctx context.Context) error { return folder.Watch(ctx, apply) })

	follow, hasRead, err := l.openOverrides(o)
	if err != nil {
		return err
	}
	if follow != nil {
		work = append(work, follow)
	}

	var background context.Context
	background, l.stop = context.WithCancel(context.Background())
	for _, w := range work {
		l.workers.Go(func() error { return w(background) })
	}
	awaitOverrides(hasRead, o.Logger)
	return nil
}

// openCounters makes the store of the counters, and returns its work in the background.
func (l *Limiter) openCounters(o *Options) (limiter.Options, []func(context.Context) error, error) {
	opts := limiter.Options{Keys: descriptor.KeyBuilder{Prefix: o.KeyPrefix}, NoMetrics: true}
	inMemory := memory.New(memory.Options{MaxCounters: o.MaxCounters})
	work := []func(context.Context) error{inMemory.Run}
	if o.Redis == nil {
		opts.Store = inMemory
		return opts, work, nil
	}
	opts.Local = inMemory // for on_error: local
	if o.LyftKeys {
		opts.Keys.Format = descriptor.KeysLyft
	}
	c, err := l.openRedis(o)
	if err != nil {
		return opts, nil, err
	}
	opts.Store = c.store
	return opts, append(work, append(c.work, c.countReplicas(func(n int) { l.engine.SetReplicas(n) }))...), nil
}

// noRules says why no file of a folder can be used.
func noRules(folder string, files []descriptor.FileStatus) error {
	if len(files) == 0 {
		return fmt.Errorf("%s has no rule file (*.yaml)", folder)
	}
	var all []error
	for i := range files {
		for _, text := range files[i].Errors {
			all = append(all, errors.New(text))
		}
	}
	return fmt.Errorf("no rule file of %s can be used: %w", folder, errors.Join(all...))
}

// settings are the answers that the options determine.
func (o *Options) settings() (limiter.Settings, error) {
	var s limiter.Settings
	if o.AllOrNothing {
		s.Admission = descriptor.AllOrNothing
	}
	if s.OnError = descriptor.ParseOnError(o.OnFailure.String()); o.OnFailure != limits.OnFailureDefault && s.OnError == descriptor.OnErrorDefault {
		return s, fmt.Errorf("Options.OnFailure is %d, which package limits does not know", o.OnFailure)
	}
	for _, name := range o.Headers {
		family := descriptor.ParseHeaderFamily(name)
		if family == 0 {
			return s, fmt.Errorf("Options.Headers has %q: use ratelimit, x-ratelimit, ietf or retry-after", name)
		}
		s.Headers |= family
	}
	return s, nil
}

// Close stops following files and Redis, sends what waits to be sent, and ends all goroutines of the limiter. Decisions of a
// closed limiter with Redis fail.
func (l *Limiter) Close() error { return l.close() }

func (l *Limiter) end() error {
	l.stop()
	all := []error{l.workers.Wait()}
	for _, f := range slices.Backward(l.closers) {
		all = append(all, f())
	}
	return errors.Join(all...)
}
