package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
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
	known    atomic.Pointer[facts]

	options  Options
	settings limiter.Settings
	closed   atomic.Bool

	strict          bool // a domain or keys that no rule has are an error
	log             *slog.Logger
	logged          sync.Map // of domains and keys without rules
	unmatchedLogged atomic.Int32

	work  assembly.Background
	close func() error // once
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
	l := &Limiter{options: o, observer: o.Observer, log: o.Logger, strict: o.Dir == "" && !o.AllowUnmatched}
	l.calls.New = func() any { return new(call) }
	l.close = sync.OnceValue(l.work.End)
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
	l.settings = settings
	at, err := l.openCounters(o)
	if err != nil {
		return err
	}
	if err := l.openRules(o, settings); err != nil {
		return err
	}
	overrides, err := l.openOverrides(o, at)
	if err != nil {
		return err
	}
	l.work.Begin(ctx)
	if overrides != nil && !overrides.Await(ctx, longestFirstRead) {
		o.Logger.Warn("decisions are made before the overrides have been read", "waited", longestFirstRead)
	}
	return nil
}

// openRules makes the rules active, and follows the files of a directory.
func (l *Limiter) openRules(o *Options, settings limiter.Settings) error {
	if o.Dir == "" && o.Files == nil && len(o.Domains) == 0 {
		return errors.New("there are no rules: set Options.Domains, Options.Files or Options.Dir")
	}
	fixed, tree, err := o.fixedRules()
	if err != nil {
		return err
	}
	if o.Dir == "" {
		l.engine.Swap(tree, settings)
		return nil
	}
	folder := config.Options{Dir: o.Dir, Fixed: fixed, Strict: o.Strict, NoRegions: true, Logger: o.Logger}
	return assembly.FollowRules(&l.work.Tasks, folder, func(r config.Result) { l.engine.Swap(r.Tree, settings) })
}

// openCounters makes the counters, and the limiter that uses them. It returns how to reach their Redis; nil: they are in memory.
func (l *Limiter) openCounters(o *Options) (at *assembly.Redis, err error) {
	if o.Redis != nil {
		if at, err = o.Redis.open(o.Logger); err != nil {
			return nil, err
		}
	}
	counters, err := assembly.Open(&l.work.Tasks, assembly.Options{
		MaxCounters: o.MaxCounters, Redis: at, KeyPrefix: o.KeyPrefix, LyftKeys: o.LyftKeys, LyftJitter: redis.DefaultLyftJitter, Logger: o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("Options.Redis: %w", err)
	}
	l.engine = limiter.New(limiter.Options{Store: counters.Store, Local: counters.Local, Keys: counters.Keys, NoMetrics: true})
	if at != nil {
		counters.Join(&l.work.Tasks, fleet.Options{Changed: l.engine.SetReplicas})
	}
	return at, nil
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

// Close stops following files and Redis, sends pending messages, and ends all goroutines of the limiter. Every later call returns
// limits.ErrClosed.
func (l *Limiter) Close() error {
	l.closed.Store(true)
	return l.close()
}
