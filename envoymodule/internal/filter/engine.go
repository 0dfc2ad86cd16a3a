package filter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/fleet"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/backend/redisconn"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/follow"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/config/override/redissource"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/async"
)

// longestClose bounds how long the main thread of Envoy waits for engines to end.
const longestClose = 2 * time.Second

// shared holds the engines and stores of this process. Envoy creates a new configuration for each change of a listener,
// and destroys the old one only after the old listener has drained. Both must use the same counters.
var shared = struct {
	sync.Mutex
	engines map[string]*engine
	stores  map[storeSettings]*store
	ending  map[*engine]chan struct{} // closed at the end
}{engines: make(map[string]*engine), stores: make(map[storeSettings]*store), ending: make(map[*engine]chan struct{})}

// engine decides: rules on top of a store.
type engine struct {
	*limiter.Limiter
	work  assembly.Background
	store *store
	users int
}

// store holds the counters of the engines with the same store settings.
type store struct {
	*assembly.Counters
	work  assembly.Background
	users int

	mu       sync.Mutex
	replicas int
	limiters []*limiter.Limiter // limiters of the engines that use the store; they divide limits among the replicas
}

// again restarts work after a panic, which would otherwise end Envoy.
func again(log *slog.Logger) func(assembly.Work) assembly.Work {
	return func(work assembly.Work) assembly.Work {
		return func(ctx context.Context) error {
			for {
				err := recovering(ctx, work)
				p, panicked := errors.AsType[*async.PanicError](err)
				if !panicked {
					return err
				}
				log.Error("a mistake in the module ended work in the background, which restarts in a second",
					"panic", p.Value, "stack", string(p.Stack))
				select {
				case <-ctx.Done():
					return err
				case <-time.After(time.Second):
				}
			}
		}
	}
}

func recovering(ctx context.Context, work assembly.Work) (err error) {
	defer async.Recover(&err)
	return work(ctx)
}

// openEngine returns the engine for some settings. Without start it only checks the settings, and the engine is of no
// use.
func openEngine(o *engineSettings, log *slog.Logger, start bool) (*engine, error) {
	shared.Lock()
	defer shared.Unlock()
	key := fmt.Sprintf("%#v", *o)
	if e := shared.engines[key]; e != nil && start {
		e.users++
		return e, nil
	}
	s, err := openStore(&o.storeSettings, log)
	if err != nil {
		return nil, err
	}
	e := &engine{store: s, users: 1}
	e.work.Guard = again(log)
	e.Limiter = limiter.New(limiter.Options{Store: s.Store, Local: s.Local, Keys: s.Keys, NoMetrics: true})
	if err = errors.Join(e.openRules(o, log), e.openOverrides(o, log)); err != nil || !start {
		err = errors.Join(err, e.work.End())
		if s.users == 0 { // no other engine uses it
			err = errors.Join(err, s.work.End())
		}
		return nil, err
	}
	if s.users++; s.users == 1 {
		s.work.Begin(context.Background())
		shared.stores[o.storeSettings] = s
	}
	s.divide(e.Limiter)
	e.work.Begin(context.Background())
	shared.engines[key] = e
	return e, nil
}

// openStore returns the store for some settings. The work of a store without users has not started. Ending that work
// may have to wait for Redis, and Envoy's main thread must not wait when it rejects a configuration. shared is locked.
func openStore(o *storeSettings, log *slog.Logger) (*store, error) {
	if s := shared.stores[*o]; s != nil {
		return s, nil
	}
	s := new(store)
	s.work.Guard = again(log)
	at := o.redis(log)
	var err error
	s.Counters, err = assembly.Open(&s.work.Tasks, assembly.Options{
		MaxCounters: int(o.MaxCounters), DenialBytes: int(o.DenialBytes), Redis: at, KeyPrefix: o.KeyPrefix,
		LyftKeys:   o.KeyFormat == "lyft",
		LyftJitter: redis.DefaultLyftJitter, Logger: log,
	})
	if err != nil {
		return nil, errors.Join(err, s.work.End())
	}
	if at != nil {
		s.Join(&s.work.Tasks, fleet.Options{Changed: s.setReplicas})
	}
	return s, nil
}

// redis returns the options for the Redis, or nil if counters are in memory.
func (o *storeSettings) redis(log *slog.Logger) *assembly.Redis {
	if o.URL == "" {
		return nil
	}
	redisconn.LogTo(log)
	dial := cmp.Or(o.Dial.Duration, redisconn.DefaultTimeout)
	return &assembly.Redis{
		Connect: redisconn.Options{
			Type: o.Type, URL: o.URL, Auth: o.Auth, AuthFile: o.AuthFile, SentinelAuth: o.SentinelAuth, PoolSize: int(o.Pool),
			DialTimeout: dial,
			TLS: redisconn.TLSOptions{
				Enabled: o.TLS, CACert: o.CACert, ClientCert: o.ClientCert, ClientKey: o.ClientKey,
				SkipHostnameVerification: o.SkipHostname,
			},
			Logger: log,
		},
		Timeout: cmp.Or(o.Op.Duration, dial),
	}
}

func (e *engine) openRules(o *engineSettings, log *slog.Logger) error {
	directory := config.Options{
		Dir: o.Rules, Strict: o.Strict, MergeDomains: o.Merge, NoRegions: true,
		Tree: descriptor.Options{CalendarMonths: o.Months}, Logger: log,
	}
	settings := o.settings()
	work, err := follow.Open(directory, func(r config.Result) {
		e.Swap(r.Tree, settings)
		log.Info("active rules", "directory", o.Rules, "domains", r.Tree.Domains(), "rules", len(r.Tree.Rules), "checksum",
			r.Tree.Checksum)
	})
	if err != nil {
		return err
	}
	e.work.Add(work)
	return nil
}

// settings returns the settings of the limiter that the configuration determines.
func (o *engineSettings) settings() limiter.Settings {
	s := limiter.Settings{
		Shadow: o.Shadow, Quota: o.Quota, StopWhenOver: o.Stop, Metadata: o.Metadata || o.Explain, Explain: o.Explain,
		CalendarMonths: o.Months,
		Admission:      descriptor.ParseAdmission(o.Admission), OnError: descriptor.ParseOnError(o.OnError),
	}
	for _, family := range o.Headers {
		s.Headers |= descriptor.ParseHeaderFamily(family)
	}
	return s
}

// openOverrides follows overrides. The first requests may be decided without them: the main thread of Envoy must not
// wait for Redis.
func (e *engine) openOverrides(o *engineSettings, log *slog.Logger) error {
	switch o.Overrides {
	case "":
	case overridesInRedis:
		source, err := o.redis(log).Overrides(&e.work.Tasks, nil, redissource.Options{Prefix: o.KeyPrefix, Log: log})
		if err != nil {
			return fmt.Errorf("overrides: %w", err)
		}
		assembly.Follow(&e.work.Tasks, e.Limiter, source)
	default:
		source, err := override.OpenFile(override.FileOptions{Path: o.Overrides, Log: log})
		if err != nil {
			return fmt.Errorf("overrides: %w", err)
		}
		assembly.Follow(&e.work.Tasks, e.Limiter, source)
	}
	return nil
}

// divide adds a limiter to those that divide limits among the replicas of the store.
func (s *store) divide(l *limiter.Limiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limiters = append(s.limiters, l)
	if s.replicas > 0 {
		l.SetReplicas(s.replicas)
	}
}

func (s *store) setReplicas(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicas = n
	for _, l := range s.limiters {
		l.SetReplicas(n)
	}
}

// close takes one filter off an engine. After the last one, the engine ends in the background, and permits of leases
// are given back. After the last engine, the process may end: then the main thread waits for all engines that still
// end, but not longer than it may. A worker does not wait.
func (e *engine) close(log *slog.Logger, wait bool) {
	ending, last := e.end(log)
	if !wait || !last {
		return
	}
	expired := time.After(longestClose)
	for _, ended := range ending {
		select {
		case <-ended:
		case <-expired:
			log.Warn("engines did not end in time: permits that they hold expire later", "waited", longestClose)
			return
		}
	}
}

// end counts one user of an engine less, and starts to end the engine if nobody uses it any more. It returns one
// channel for each engine that is ending, closed at its end, and whether no engine is left.
func (e *engine) end(log *slog.Logger) (ending []chan struct{}, last bool) {
	shared.Lock()
	defer shared.Unlock()
	works := e.unused()
	if len(works) == 0 {
		return nil, false
	}
	shared.ending[e] = make(chan struct{})
	async.Go(func() (err error) {
		for _, w := range works {
			err = errors.Join(err, w.End())
		}
		return err
	}, func(err error) {
		if err != nil {
			log.Warn("an engine ended with an error", "error", err)
		} else {
			log.Info("an engine ended")
		}
		shared.Lock()
		defer shared.Unlock()
		close(shared.ending[e])
		delete(shared.ending, e)
	})
	return slices.Collect(maps.Values(shared.ending)), len(shared.engines) == 0
}

// unused counts one user of an engine less. It returns the work of the engine and of its store, if no other filter uses
// them. shared is locked.
func (e *engine) unused() (works []*assembly.Background) {
	if e.users--; e.users > 0 {
		return nil
	}
	maps.DeleteFunc(shared.engines, func(_ string, other *engine) bool { return other == e })
	works = append(works, &e.work)
	e.store.undivide(e.Limiter)
	if e.store.users--; e.store.users == 0 {
		maps.DeleteFunc(shared.stores, func(_ storeSettings, other *store) bool { return other == e.store })
		works = append(works, &e.store.work)
	}
	return works
}

func (s *store) undivide(l *limiter.Limiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limiters = slices.DeleteFunc(s.limiters, func(other *limiter.Limiter) bool { return other == l })
}
