package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
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
// usable rules, or if an option is wrong; it does not wait for Redis.
func Open(o Options) (_ *Limiter, err error) {
	log := cmp.Or(o.Logger, slog.Default())
	if o.Rules == "" {
		return nil, errors.New("ratelimit: Options.Rules is empty: it must name the folder of rule files")
	}
	settings, err := o.settings()
	if err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	l := &Limiter{observer: o.Observer, stop: stop}
	l.workers, background = errgroup.WithContext(background)
	l.calls.New = func() any { return new(call) }
	l.close = sync.OnceValue(l.end)
	defer func() {
		if err != nil {
			_ = l.Close()
			err = fmt.Errorf("ratelimit: %w", err)
		}
	}()

	opts := limiter.Options{Keys: descriptor.KeyBuilder{Prefix: o.KeyPrefix}, NoMetrics: true}
	var start []func(context.Context) error
	if o.Redis == nil {
		store := memory.New(memory.Options{MaxCounters: o.MaxCounters})
		start = append(start, store.Run)
		opts.Store = store
	} else {
		local := memory.New(memory.Options{MaxCounters: o.MaxCounters})
		start = append(start, local.Run)
		opts.Local = local
		if o.LyftKeys {
			opts.Keys.Format = descriptor.KeysLyft
		}
		counters, err := l.openRedis(&o, log)
		if err != nil {
			return nil, err
		}
		opts.Store = counters.store
		start = append(start, counters.run...)
		start = append(start, counters.follow(func(n int) { l.engine.SetReplicas(n) }))
	}
	l.engine = limiter.New(opts)

	folder := config.NewFolder(config.Options{Dir: o.Rules, Strict: o.Strict, Logger: log})
	result, err := folder.Load()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read rules from %s: %w", o.Rules, err)
	case result.InUse == 0:
		return nil, noRules(o.Rules, result.Files)
	}
	apply := func(r config.Result) { l.engine.Swap(r.Tree, settings) }
	apply(result)
	start = append(start, func(ctx context.Context) error { return folder.Watch(ctx, apply) })

	overrides, tried, err := l.openOverrides(&o, log)
	if err != nil {
		return nil, err
	}
	for _, work := range append(start, overrides...) {
		l.workers.Go(func() error { return work(background) })
	}
	if tried != nil {
		select {
		case <-tried:
		case <-time.After(longestFirstRead):
			log.Warn("decisions are made before the overrides have been read", "waited", longestFirstRead)
		}
	}
	return l, nil
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
	if s.OnError = descriptor.ParseOnError(o.OnError); o.OnError != "" && s.OnError == descriptor.OnErrorDefault {
		return s, fmt.Errorf("ratelimit: Options.OnError is %q: use error, allow, deny or local", o.OnError)
	}
	for _, name := range o.Headers {
		family := descriptor.ParseHeaderFamily(name)
		if family == 0 {
			return s, fmt.Errorf("ratelimit: Options.Headers has %q: use ratelimit, x-ratelimit, ietf or retry-after", name)
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
