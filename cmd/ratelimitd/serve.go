package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server"
)

// serve is the subcommand that answers requests.
type serve struct {
	Rules   ruleOptions    `embed:"" group:"Rules"`
	Listen  listenOptions  `embed:"" group:"Listening"`
	Answers answerOptions  `embed:"" group:"Answers"`
	Backend backendOptions `embed:"" group:"Counting"`
	Log     logOptions     `embed:"" group:"Logging"`
}

// Run serves until ctx ends.
func (o *serve) Run(ctx context.Context, s streams) error {
	log, err := o.Log.logger(s.err)
	if err != nil {
		return err
	}
	tuneMemory(log)
	svc, err := o.start(log)
	if err != nil {
		return err
	}
	return svc.run(ctx)
}

// service is everything that serves, wired together.
type service struct {
	log       *slog.Logger
	options   *serve
	limiter   *limiter.Limiter
	rules     *config.Folder
	ruleFiles atomic.Pointer[[]descriptor.FileStatus]
	server    *server.Server
	workers   []func(context.Context) error // run beside the server until it stops
	shutdown  []func() error                // run after everything has stopped
}

// start does all that can fail: it opens the listeners and loads the rules. Nothing is answered before run.
func (o *serve) start(log *slog.Logger) (_ *service, err error) {
	svc := &service{log: log, options: o}
	defer func() {
		if err != nil {
			svc.close()
		}
	}()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	counters, err := svc.openBackend(registry)
	if err != nil {
		return nil, err
	}
	svc.limiter = limiter.New(limiter.Options{
		Backend:   counters,
		KeyPrefix: o.Backend.KeyPrefix,
		MaxSeries: o.Answers.MaxSeries,
		Metrics:   registry,
	})
	if err := svc.loadRules(); err != nil {
		return nil, err
	}
	svc.server, err = server.New(server.Options{
		Decider:               svc.limiter,
		GRPCAddr:              address(o.Listen.GRPCHost, o.Listen.GRPCPort),
		HTTPAddr:              address(o.Listen.Host, o.Listen.Port),
		DebugAddr:             address(o.Listen.DebugHost, o.Listen.DebugPort),
		RuleFiles:             svc.files,
		Explain:               svc.limiter.Explain,
		Tree:                  svc.limiter.Tree,
		MetricsHandler:        promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		Metrics:               registry,
		Stats:                 svc.limiter.WriteStats,
		Log:                   log,
		MaxRecvMsgSize:        o.Listen.MaxMessageBytes,
		MaxDescriptors:        o.Listen.MaxDescriptors,
		MaxConnectionAge:      o.Listen.MaxConnectionAge,
		MaxConnectionAgeGrace: o.Listen.MaxConnectionAgeGrace,
		DrainDelay:            o.Listen.DrainDelay,
		StopTimeout:           o.Listen.StopTimeout,
	})
	if err != nil {
		return nil, err
	}
	return svc, nil
}

// openBackend makes the store that the options ask for, with the over-limit cache in front if they ask for that.
func (s *service) openBackend(registry prometheus.Registerer) (limiter.Backend, error) {
	o := &s.options.Backend
	inRedis, err := o.redis()
	if err != nil {
		return nil, err
	}
	var counters limiter.Backend
	if inRedis {
		client, err := redis.Dial(redis.DialOptions{
			URL:         o.RedisURL,
			Network:     o.RedisSocketType,
			Auth:        o.RedisAuth,
			PoolSize:    o.RedisPoolSize,
			DialTimeout: o.RedisDial,
		})
		if err != nil {
			return nil, err
		}
		s.shutdown = append(s.shutdown, client.Close)
		redis.LogTo(s.log)
		counters = redis.New(redis.Options{Client: client, Timeout: o.RedisOp})
		s.log.Info("counting in Redis")
	} else {
		store := memory.New(memory.Options{MaxCounters: o.MaxCounters, Metrics: registry})
		s.workers = append(s.workers, store.Run)
		counters = store
		s.log.Info("counting in this process' memory", "max_counters", o.MaxCounters)
	}
	if o.CacheBytes > 0 {
		counters = overlimit.New(overlimit.Options{Backend: counters, Bytes: o.CacheBytes, Metrics: registry})
	}
	return counters, nil
}

// loadRules reads the rule folder for the first time and arranges for it to be watched.
func (s *service) loadRules() error {
	o := &s.options.Rules
	s.rules = config.NewFolder(config.Options{
		Dir:          o.dir(),
		MergeDomains: o.Merge,
		Rescan:       o.Rescan,
		Logger:       s.log,
	})
	result, err := s.rules.Load()
	if err == nil && result.InUse == 0 {
		err = errors.New("no rule file can be used")
	}
	switch {
	case err == nil:
		s.apply(result)
	case o.Force:
		s.log.Warn("starting without rules: requests are refused until some are loaded", "folder", o.dir(), "error", err)
	default:
		return fmt.Errorf("load rules from %s: %w; mend them, or set FORCE_START_WITHOUT_INITIAL_CONFIG=true to start all the same", o.dir(), err)
	}
	s.workers = append(s.workers, func(ctx context.Context) error { return s.rules.Watch(ctx, s.apply) })
	return nil
}

// apply puts a load's rules into force.
func (s *service) apply(r config.Result) {
	s.limiter.Swap(r.Tree, s.options.Answers.settings())
	s.ruleFiles.Store(&r.Files)
	s.log.Info("rules in force", "folder", s.options.Rules.dir(), "domains", r.Tree.Domains(), "rules", len(r.Tree.Rules), "files", len(r.Files))
}

// files is the state of every rule file.
func (s *service) files() []descriptor.FileStatus {
	if files := s.ruleFiles.Load(); files != nil {
		return *files
	}
	return nil
}

// run serves until ctx ends or something that must not fail does.
func (s *service) run(ctx context.Context) error {
	defer s.close()
	s.log.Info("listening", "grpc", s.server.GRPCAddr.String(), "http", s.server.HTTPAddr.String(), "debug", s.server.DebugAddr.String())
	s.server.SetServing(true)

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, background := errgroup.WithContext(background)
	for _, work := range s.workers {
		g.Go(func() error { return work(background) })
	}
	serving, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(background, cancel) // a worker that fails stops the server
	err := s.server.Run(serving)
	stop()
	return errors.Join(err, g.Wait())
}

// close frees what start opened, the last first.
func (s *service) close() {
	for i := len(s.shutdown) - 1; i >= 0; i-- {
		if err := s.shutdown[i](); err != nil {
			s.log.Warn("closing", "error", err)
		}
	}
	s.shutdown = nil
}

// tuneMemory lets the heap grow to nine times what is live before it is collected, which halves the cost of a call
// while little is live, within nine tenths of what the container or the machine has. GOGC and GOMEMLIMIT go before.
func tuneMemory(log *slog.Logger) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(800)
	}
	limit, err := memlimit.Set(memlimit.WithRatio(0.9),
		memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)))
	if err != nil {
		log.Warn("no memory limit is set: set GOMEMLIMIT to bound the heap", "error", err)
		return
	}
	log.Debug("memory", "limit_bytes", limit)
}
