package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/server"
)

// Service is a replica. New creates one.
type Service struct {
	Limiter   *limiter.Limiter // decides requests
	Server    *server.Server   // answers clients
	Operators *operator.Server // answers operators

	o          Options
	counters   *assembly.Counters
	overrides  *assembly.Overrides // nil without overrides
	rules      rules
	regions    *regions.Store // nil with a single region
	regionAddr net.Addr       // address of the region port
}

// New creates a service: it loads the rules and opens the listeners. Nothing is answered before Run.
func New(o Options) (_ *Service, err error) {
	s := &Service{o: o}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	for _, open := range []func() error{
		s.openCounters, s.openLimiter, s.openShared, // every setting is good after these
		s.loadRules, s.followOverrides, s.listenForRegions, s.openServer, s.openOperators,
	} {
		if err := open(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Listening reports whether Run answers.
func (s *Service) Listening() bool { return s.rules.listening.Load() }

// openCounters opens the counters, behind the store that counts across regions.
func (s *Service) openCounters() (err error) {
	o := s.o.Counters
	o.Metrics, o.Logger = prom.With(s.o.Registry), s.o.Log
	if s.o.Regions != nil {
		o.Regions = s.across
	}
	s.counters, err = assembly.Open(s.o.Tasks, o)
	return err
}

// openLimiter creates the limiter, with the hot keys and the usage index that it reports to.
func (s *Service) openLimiter() error {
	o := s.o.Limiter
	o.Store, o.Local, o.Keys = s.counters.Store, s.counters.Local, s.counters.Keys
	o.Elsewhere = s.elsewhere()
	o.Metrics = prom.With(s.o.Registry)
	o.HotKeys, o.Usage = s.trackHotKeys(), s.indexUsage()
	s.Limiter = limiter.New(o)
	return nil
}

// usageKeys is the prefix of the keys about usage in Redis, after the prefix of all keys.
const usageKeys = "ratelimitd-usage:"

// indexUsage creates the index of the counters of rules with usage. The index is stored next to the counters.
func (s *Service) indexUsage() *usage.Index {
	o := usage.Options{Store: new(usage.Memory), Metrics: prom.With(s.o.Registry), Logger: s.o.Log}
	if s.counters.Shared != nil {
		o.Store = &redis.UsageSets{Client: s.counters.Shared, Prefix: s.o.Counters.KeyPrefix + usageKeys}
	}
	index := usage.New(o)
	s.o.Tasks.Add(index.Run)
	s.o.Operators.Usage = index
	return index
}

// trackHotKeys creates the tracker of hot keys.
func (s *Service) trackHotKeys() *hotkeys.Tracker {
	t := hotkeys.New(time.Now(), hotkeys.Options{Metrics: prom.With(s.o.Registry)})
	s.o.Tasks.Add(t.Run)
	s.o.Operators.HotKeys = func(q hotkeys.Query) hotkeys.Report { return t.Top(time.Now(), q) }
	return t
}

// openShared creates the parts that the ports share: bounds, the answer to scrapes, and envoyproxy/ratelimit's
// statistics. A metric that an operator's mapping makes invalid does not hide the others.
func (s *Service) openShared() error {
	ports := s.o.Ports
	ports.Budget, ports.Metrics, ports.Log = s.o.Budget, s.o.Registry, s.o.Log
	shared, err := endpoint.New(ports)
	if err != nil {
		return err
	}
	metrics := newScrapes(promhttp.HandlerFor(s.o.Registry, promhttp.HandlerOpts{
		ErrorHandling:      promhttp.ContinueOnError,
		ErrorLog:           slog.NewLogLogger(s.o.Log.Handler(), slog.LevelWarn),
		DisableCompression: true,
	}), s.o.Budget.Class("scrapes", s.o.Budget.Total()/32))
	s.o.Server.Shared, s.o.Operators.Shared = shared, shared
	s.o.Server.Metrics.Handler, s.o.Operators.Scrapes.Handler = metrics, metrics
	s.o.Server.Metrics.ResponseTime, err = s.o.Statistics(s.statistics())
	return err
}

// openServer opens the ports for clients.
func (s *Service) openServer() (err error) {
	o := s.o.Server
	o.Decider = s.Limiter
	o.Reservations = s.signReservations()
	quotas := s.assignQuotas()
	o.Quota, s.o.Operators.Shares = quotaStreams{quotas}, quotas
	s.Server, err = server.New(o)
	return err
}

// openOperators opens the ports for operators.
func (s *Service) openOperators() (err error) {
	o := s.o.Operators
	o.Rules = operator.Rules{Files: s.files, Tree: s.Limiter.Tree, Explain: s.Limiter.Explain}
	o.Counters, o.Decisions, o.LogLevel = s.Limiter, s.Limiter, s.o.Level
	o.Stats, o.Replica = s.writeStats, s.process()
	o.Overrides, o.Fleet = s.operatorsOverrides(), s.joinFleet()
	if s.regions != nil {
		o.Regions = operator.Regions{Status: s.regions.Status, HomeElsewhere: s.regions.HomeElsewhere}
	}
	o.Host, _ = os.Hostname() // empty where the system does not know
	if s.Operators, err = operator.New(o); err != nil {
		s.Server.Close()
	}
	return err
}

// Run serves until ctx ends, or until the server or a worker fails.
func (s *Service) Run(ctx context.Context) error {
	defer s.close()
	debugAt := "off"
	if s.Operators.DebugAddr != nil {
		debugAt = s.Operators.DebugAddr.String()
	}
	s.pingRedis(ctx)
	listening := []any{"grpc", s.Server.GRPCAddr.String(), "http", s.Server.HTTPAddr.String(), "admin", debugAt}
	if s.Operators.MetricsAddr != nil {
		listening = append(listening, "prometheus", s.Operators.MetricsAddr.String())
	}
	if s.regionAddr != nil {
		listening = append(listening, "regions", s.regionAddr.String())
	}
	s.o.Log.Info("listening", listening...)
	s.rules.listening.Store(true)
	s.reportHealth()

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, background := errgroup.WithContext(background)
	s.o.Tasks.Start(background, g)
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	asked := context.AfterFunc(ctx, func() {
		s.o.Log.Info("stopping", "because", context.Cause(ctx).Error()) // the cause names the signal
		cancel()
	})
	defer asked()
	context.AfterFunc(background, cancel) // a worker that fails stops the server
	g.Go(func() error { return s.Operators.Run(endingWith(background, s.Server.Stopping())) })
	if s.overrides != nil && !s.overrides.Await(serving, longestFirstRead) {
		s.o.Log.Warn("calls are answered before the overrides have been read", "waited", longestFirstRead)
	}
	err := s.Server.Run(serving)
	stop()
	err = errors.Join(err, g.Wait())
	s.o.Log.Info("stopped")
	return err
}

// endingWith returns a context that ends with its parent, or when done is closed.
func endingWith(parent context.Context, done <-chan struct{}) context.Context {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		defer cancel()
		select {
		case <-done:
		case <-parent.Done():
		}
	}()
	return ctx
}

// close closes the tasks that New opened.
func (s *Service) close() {
	if err := s.o.Tasks.Close(); err != nil {
		s.o.Log.Warn("a connection or file could not be closed while stopping", "error", err)
	}
}
