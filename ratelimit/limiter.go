package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly/parts"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Limiter decides requests. New and Open create one.
type Limiter struct {
	engine   *limiter.Limiter
	observer Observer
	calls    sync.Pool
	known    atomic.Pointer[facts]

	options  Options
	settings limiter.Settings
	closed   atomic.Bool

	strict          bool // a domain or keys that no rule has are an error
	log             *slog.Logger
	logged          sync.Map // domains and keys without rules that have been logged
	unmatchedLogged atomic.Int32

	work  parts.Background
	close func() error // runs once
}

// New returns a limiter with the rules of one domain, and counters in the memory of this process. Open takes all
// options.
func New(domain string, rules ...Rule) (*Limiter, error) {
	return Open(context.Background(), Options{Domains: []Domain{{Name: domain, Rules: rules}}})
}

// Open reads the rules and returns a limiter. It fails without usable rules, if rules in code have a mistake, or if an
// option is wrong. It waits for Redis only to read overrides there: for 2 s at most, or until ctx is done.
func Open(ctx context.Context, o Options) (*Limiter, error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	l := &Limiter{options: o, observer: o.Observer, log: o.Logger, strict: o.Dir == nil && !o.AllowUnmatched}
	l.calls.New = func() any { return new(call) }
	l.close = sync.OnceValue(l.work.End)
	if err := l.open(ctx, &o); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	return l, nil
}

// open does everything that can fail before the first goroutine starts.
func (l *Limiter) open(ctx context.Context, o *Options) error {
	settings, err := o.settings()
	if err != nil {
		return err
	}
	l.settings = settings
	counters, err := l.openCounters(o)
	if err != nil {
		return err
	}
	if err := l.openRules(o, settings); err != nil {
		return err
	}
	overrides, err := l.openOverrides(o, counters)
	if err != nil {
		return err
	}
	l.work.Begin(ctx)
	if overrides != nil && !overrides.Await(ctx, longestFirstRead) {
		o.Logger.Warn("decisions are made before the overrides have been read", "waited", longestFirstRead)
	}
	return nil
}

// openRules activates the rules, and follows the files of a directory.
func (l *Limiter) openRules(o *Options, settings limiter.Settings) error {
	if o.Dir == nil && o.Files == nil && len(o.Domains) == 0 {
		return errors.New("there are no rules: set Options.Domains, Options.Files or Options.Dir")
	}
	fixed, tree, err := o.fixedRules()
	if err != nil {
		return err
	}
	if o.Dir == nil {
		l.engine.Swap(tree, settings)
		return nil
	}
	work, err := o.Dir.Open(config.Options{Fixed: fixed[:len(o.Domains)], Defaults: fixed[len(o.Domains):],
		Strict: o.Strict, NoRegions: true, Logger: o.Logger}, func(r config.Result) {
		l.engine.Swap(r.Tree, settings)
	})
	if err != nil {
		return err
	}
	l.work.Add(work)
	return nil
}

// openCounters opens the counters, and the limiter that uses them.
func (l *Limiter) openCounters(o *Options) (counters *parts.Counters, err error) {
	if o.Store != nil {
		counters, err = o.Store.Open(&l.work.Tasks, parts.StoreOptions{MaxCounters: o.MaxCounters, Logger: o.Logger})
		if err != nil {
			return nil, err
		}
	} else {
		store := memory.New(memory.Options{MaxCounters: o.MaxCounters})
		l.work.Add(store.Run)
		counters = &parts.Counters{Store: store}
	}
	l.engine = limiter.New(limiter.Options{Store: counters.Store, Local: counters.Local, Keys: counters.Keys,
		NoMetrics: true})
	if counters.Joined != nil {
		counters.Joined(l.engine)
	}
	return counters, nil
}

// longestFirstRead is the longest time for which Open waits for overrides.
const longestFirstRead = 2 * time.Second

// openOverrides applies the overrides of a source to the limiter. It returns nil without a source. Operators remove
// overrides that have ended, not this process.
func (l *Limiter) openOverrides(o *Options, counters *parts.Counters) (*parts.Overrides, error) {
	source := counters.Overrides
	if o.Overrides != nil {
		if source != nil {
			return nil, errors.New("Options.Overrides and Options.Store both give overrides: they have one source")
		}
		var err error
		if source, err = o.Overrides.Open(o.Logger); err != nil {
			return nil, err
		}
	}
	if source == nil {
		return nil, nil //nolint:nilnil // overrides are optional
	}
	return parts.Follow(&l.work.Tasks, l.engine, source), nil
}

// settings returns the settings of the limiter that the options determine.
func (o *Options) settings() (limiter.Settings, error) {
	var s limiter.Settings
	if o.AllOrNothing {
		s.Admission = descriptor.AllOrNothing
	}
	if s.OnError = descriptor.ParseOnError(o.OnFailure.String()); o.OnFailure != limits.OnFailureDefault &&
		s.OnError == descriptor.OnErrorDefault {
		return s, fmt.Errorf("Options.OnFailure is %d, which package limits does not know", o.OnFailure)
	}
	s.Headers = descriptor.HeaderFamilies(o.Headers)
	if all := HeadersRateLimit | HeadersXRateLimit | HeadersIETF | HeadersRetryAfter; o.Headers&^all != 0 {
		return s, fmt.Errorf("Options.Headers is %d, which has families that package ratelimit does not know", o.Headers)
	}
	return s, nil
}

// Close stops following files and Redis, sends pending messages, and ends all goroutines of the limiter. Every later
// call returns limits.ErrClosed.
func (l *Limiter) Close() error {
	l.closed.Store(true)
	return l.close()
}
