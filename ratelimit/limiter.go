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

// Limiter decides requests. New and Open make one.
type Limiter struct {
	engine   *limiter.Limiter
	observer Observer
	calls    sync.Pool

	stop    context.CancelFunc
	workers *errgroup.Group
	closers []func() error
	close   func() error // once
}

// New returns a limiter with the rules of one domain, and counters in the memory of this process. Open takes all
// options.
func New(domain string, rules ...Rule) (*Limiter, error) {
	return Open(context.Background(), Options{Domains: []Domain{{Name: domain, Rules: rules}}})
}

// Open reads the rules and returns a limiter. It fails if there are no usable rules, if rules in code have a mistake, or if an
// option is wrong. It waits for Redis only to read overrides there: for 2 s at most, or until ctx is done.
func Open(ctx context.Context, o Options) (*Limiter, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	l := &Limiter{observer: o.Observer, stop: func() {}, workers: new(errgroup.Group)}
	l.calls.New = func() any { return new(call) }
	l.close = sync.OnceValue(l.end)
	if err := l.open(ctx, &o); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	return l, nil
}

// open does everything that can fail before the first goroutine begins.
func (l *Limiter) open(ctx context.Context, o *Options) error {
	settings, err := o.settings()
	if err != nil {
		return err
	}
	opts, work, err := l.openCounters(o)
	if err != nil {
		return err
	}
	l.engine = limiter.New(opts)

	watch, err := l.openRules(o, settings)
	if err != nil {
		return err
	}
	if watch != nil {
		work = append(work, watch)
	}
	follow, hasRead, err := l.openOverrides(o)
	if err != nil {
		return err
	}
	if follow != nil {
		work = append(work, follow)
	}

	var background context.Context
	background, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, w := range work {
		l.workers.Go(func() error { return w(background) })
	}
	awaitOverrides(ctx, hasRead, o.Logger)
	return nil
}

// openRules puts the active rules. It returns the work that follows the files of a directory; nil: there is none.
func (l *Limiter) openRules(o *Options, settings limiter.Settings) (watch func(context.Context) error, err error) {
	if o.Dir == "" && o.Files == nil && len(o.Domains) == 0 {
		return nil, errors.New("there are no rules: set Options.Domains, Options.Files or Options.Dir")
	}
	fixed, tree, err := o.fixedRules()
	if err != nil {
		return nil, err
	}
	if o.Dir == "" {
		l.engine.Swap(tree, settings)
		return nil, nil
	}
	folder := config.NewFolder(config.Options{Dir: o.Dir, Fixed: fixed, Strict: o.Strict, NoRegions: true, Logger: o.Logger})
	result, err := folder.Load()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read rules from %s: %w", o.Dir, err)
	case result.InUse == 0 && len(fixed) == 0:
		return nil, noRules(o.Dir, result.Files)
	}
	apply := func(r config.Result) { l.engine.Swap(r.Tree, settings) }
	apply(result)
	return func(ctx context.Context) error { return folder.Watch(ctx, apply) }, nil
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

// noRules says why no file of a directory can be used.
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
	s.Headers = descriptor.HeaderFamilies(o.Headers)
	if all := HeadersRateLimit | HeadersXRateLimit | HeadersIETF | HeadersRetryAfter; o.Headers&^all != 0 {
		return s, fmt.Errorf("Options.Headers is %d, which has families that package ratelimit does not know", o.Headers)
	}
	return s, nil
}

// Close stops following files and Redis, sends pending messages, and ends all goroutines of the limiter. Decisions of a
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
