package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/backend/redis"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/lending/regions"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/platform/tracing"
	"github.com/ratelimitd/ratelimitd/internal/server"
)

// serveCommand is the subcommand that answers requests.
type serveCommand struct {
	Rules   ruleOptions    `embed:"" group:"Rules"`
	XDS     xdsOptions     `embed:"" group:"Rules over xDS"`
	Listen  listenOptions  `embed:"" group:"Listening"`
	TLS     tlsOptions     `embed:"" group:"TLS of gRPC"`
	Admin   adminOptions   `embed:"" group:"Operators"`
	Answers answerOptions  `embed:"" group:"Answers"`
	Backend backendOptions `embed:"" group:"Counting"`
	Regions regionOptions  `embed:"" group:"Regions"`

	Overrides overrideOptions `embed:"" group:"Overrides"`

	Reservations reservationOptions `embed:"" group:"Reservations"`

	Events eventOptions `embed:"" group:"Events"`

	Stats   statisticsOptions `embed:"" group:"Statistics"`
	Log     logOptions        `embed:"" group:"Logging"`
	Tracing tracingOptions    `embed:"" group:"Tracing"`

	Accepted acceptedOptions `embed:"" group:"Without effect"`

	Adjusted adjustments `kong:"-"`
	Ignored  []string    `kong:"-"` // arguments that were meant for envoyproxy/ratelimit
	Unknown  []string    `kong:"-"` // variables that look like settings, and what they may mean
	Stdout   io.Writer   `kong:"-"`
}

func (*serveCommand) about() about {
	return about{
		note: "The environment variable in brackets behind a flag sets the same; if both are set, the flag wins. Without a command, ratelimitd runs serve.",
		common: []string{
			"rules", "grpc-port", "port", "drain-delay", "shadow-mode", "on-error", "redis-url", "redis-type", "redis-auth-file", "log-level",
		},
		examples: []example{
			{"count in memory", "ratelimitd --rules config/domains"},
			{"count in Redis, together with all other replicas", "REDIS_URL=redis:6379 ratelimitd --rules config/domains"},
			{"try rules without enforcing them", "ratelimitd --rules config/domains --shadow-mode --log-refusals 10"},
		},
		exits: []exitCode{
			{0, "Stopped by a signal, after the calls in flight had their answers."},
			{1, "It cannot listen on a port, or Redis stays unreachable for too long."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run serves until ctx ends.
func (o *serveCommand) Run(ctx context.Context, s streams) error {
	o.Stdout = s.out
	log, level, err := o.Log.logger(s.err)
	if err != nil {
		return misuse(err)
	}
	b := thisBuild()
	log.Info("starting ratelimitd", "version", b.Version, "commit", cmp.Or(b.Commit, "unknown"), "date", cmp.Or(b.Date, "unknown"), "go", b.Go, "platform", b.Platform)
	o.announce(log)
	budget := intake.NewBudget(o.Listen.MaxClientBytes)
	tuneMemory(log, budget)
	svc, err := o.start(ctx, log, level, budget)
	if listen := new(endpoint.ListenError); errors.As(err, &listen) {
		return err
	}
	if err != nil { // all else that fails here is a setting, or a file that one names
		return misuse(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- svc.run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-o.Listen.overdue(ctx):
		log.Warn("the service ends before all its work has stopped: the stop timeout has passed", "timeout", o.Listen.StopTimeout)
		return nil
	}
}

// announce logs where the rules come from.
func (o *serveCommand) announce(log *slog.Logger) {
	if o.Rules.overXDS() {
		server := o.XDS.Server
		if strings.Contains(server, "@") {
			server = "not shown: it may contain credentials"
		}
		log.Info("serving rules from an xDS server", "server", server, "node", o.XDS.NodeID, "because", "CONFIG_TYPE=GRPC_XDS_SOTW")
		return
	}
	folder, because := o.Rules.dir()
	log.Info("serving rules from a directory", "folder", folder, "because", because)
	if beside, _ := filepath.Glob(folder + ".*"); len(beside) > 0 && o.Rules.Rules == "" && o.Rules.RuntimeSubdir != "" {
		log.Warn("files next to the rule directory are not read, unlike in envoyproxy/ratelimit", "files", beside, "hint", "move them into the directory")
	}
}

// service is everything that serves, wired together.
type service struct {
	log       *slog.Logger
	options   *serveCommand
	limiter   *limiter.Limiter
	loadStats func(visit func(path, stat string, n uint64)) // visits the counters of loading rules, under envoyproxy/ratelimit's names
	ruleFiles atomic.Pointer[[]descriptor.FileStatus]
	inForce   atomic.Pointer[inForce]
	resources func() []descriptor.FileStatus // of rules over xDS; nil: rules come from files
	health    health
	server    *server.Server
	operators *operator.Server
	tasks     assembly.Tasks
	counters  *assembly.Counters
	overrides *assembly.Overrides // nil: there are none
	xdsStats  func(io.Writer)     // writes the lines of /stats about rules over xDS; nil: rules come from files
	usage     *usage.Index

	regions     *regions.Store // nil: no region is set
	regionFiles *tlsfiles.Files
	regionAddr  net.Addr // of the region port
}

// liveHeap shows the live heap too, go_gc_heap_live_bytes: what clients make the process keep is a part of it.
var liveHeap = collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)})

// start does everything that can fail: it opens the listeners and loads the rules. Nothing is answered before run.
func (o *serveCommand) start(ctx context.Context, log *slog.Logger, level *logging.Level, budget *intake.Budget) (_ *service, err error) {
	svc := &service{log: log, options: o}
	defer func() {
		if err != nil {
			svc.close()
		}
	}()
	o.Adjusted.log(log)
	o.Accepted.log(log)
	if len(o.Ignored) > 0 {
		log.Warn("unknown arguments are ignored, as envoyproxy/ratelimit ignores its arguments", "arguments", o.Ignored)
	}
	if len(o.Unknown) > 0 {
		log.Warn("variables that look like settings are unknown and have no effect: correct or remove them", "variables", o.Unknown)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(liveHeap), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), thisBuild().metric())

	if err := svc.openCounters(registry); err != nil {
		return nil, err
	}
	hot := svc.trackHotKeys(registry)
	svc.indexUsage(registry)
	sink, err := svc.openEvents(registry)
	if err != nil {
		return nil, err
	}
	svc.limiter = limiter.New(limiter.Options{
		Store:     svc.counters.Store,
		Local:     svc.counters.Local,
		Keys:      svc.counters.Keys,
		Elsewhere: svc.elsewhere(),
		MaxSeries: o.Answers.MaxSeries,
		Metrics:   prom.With(registry),
		NoDots:    o.Stats.NoDots,
		NoMetrics: o.Answers.NoMetrics,
		HotKeys:   hot,
		Usage:     svc.usage,
		Events:    sink,
		Refused:   server.LogRefusals(o.Log.Refusals, svc.counters.Keys, log),
	})
	compat, err := svc.showStatistics(registry)
	if err != nil {
		return nil, err
	}
	timings, err := svc.sendStatistics(registry)
	if err != nil {
		return nil, err
	}
	shared, err := endpoint.New(endpoint.Options{
		ReusePort: o.Listen.ReusePort, StopTimeout: o.Listen.StopTimeout, Budget: budget, Metrics: registry, Log: log,
	})
	if err != nil {
		return nil, err
	}
	metrics := svc.scrapes(registry, budget)
	callers := o.Listen.callers()
	callers.Decider, callers.Shared = svc.limiter, shared
	callers.Metrics = server.Metrics{Handler: metrics, ResponseTime: both(compat, timings), Off: o.Answers.NoMetrics}
	if callers.Reservations, err = svc.signReservations(); err != nil {
		return nil, err
	}
	if err := svc.encrypt(&callers, registry); err != nil {
		return nil, err
	}
	if err := svc.trace(ctx, &callers, registry); err != nil {
		return nil, err
	}
	operators := o.Listen.operators()
	if operators.Access, err = svc.access(registry); err != nil {
		return nil, err
	}

	// Every setting is good so far: now the files and listeners.
	if err := svc.loadRules(registry); err != nil {
		return nil, err
	}
	if err := svc.openOverrides(registry); err != nil {
		return nil, err
	}
	if err := svc.listenForRegions(shared); err != nil {
		return nil, withVariables(err)
	}
	quotas := svc.assignQuotas(registry, budget)
	callers.Quota = quotaStreams{quotas}
	operators.Shared = shared
	operators.Rules = operator.Rules{Files: svc.files, Tree: svc.limiter.Tree, Explain: svc.limiter.Explain}
	operators.Scrapes = operator.Scrapes{Addr: o.Stats.prometheusAddr(), Path: o.Stats.PrometheusPath, Handler: metrics}
	operators.Usage, operators.Shares = svc.usage, quotas
	operators.Counters, operators.Stats, operators.LogLevel = svc.limiter, svc.writeStats, level
	operators.Decisions, operators.Process = svc.limiter, svc.process()
	operators.Overrides = svc.operatorsOverrides()
	operators.Fleet = svc.joinFleet()
	if svc.regions != nil {
		operators.Regions = operator.Regions{Status: svc.regions.Status, HomeElsewhere: svc.regions.HomeElsewhere}
	}
	operators.Host, _ = os.Hostname() // empty where the system does not know
	if hot != nil {
		operators.HotKeys = func(q hotkeys.Query) hotkeys.Report { return hot.Top(time.Now(), q) }
	}
	if svc.server, err = server.New(callers); err != nil {
		return nil, withVariables(err)
	}
	if svc.operators, err = operator.New(operators); err != nil {
		svc.server.Close()
		return nil, err
	}
	return svc, nil
}

// withVariables names the variables for the address of a listener that cannot be opened.
func withVariables(err error) error {
	variables := map[string]string{
		"gRPC": "GRPC_HOST, GRPC_PORT", "gRPC on unix socket": "GRPC_UDS", "HTTP": "HOST, PORT", "regions": "RATELIMITD_REGIONS_HOST, RATELIMITD_REGIONS_PORT",
	}
	if failed := new(endpoint.ListenError); errors.As(err, &failed) && variables[failed.What] != "" {
		return fmt.Errorf("%s: %w", variables[failed.What], err)
	}
	return err
}

// given names the variables that are set, from pairs of name and value.
func given(all ...string) string {
	var set []string
	for i := 0; i+1 < len(all); i += 2 {
		if all[i+1] != "" {
			set = append(set, all[i])
		}
	}
	return strings.Join(set, ", ")
}

// usageKeys is what the keys about usage in Redis begin with, after CACHE_KEY_PREFIX.
const usageKeys = "ratelimitd-usage:"

// indexUsage makes the index of the counters of rules with usage. It is where the counters are.
func (s *service) indexUsage(registry prometheus.Registerer) {
	opts := usage.Options{Store: new(usage.Memory), Metrics: prom.With(registry), Logger: s.log}
	if s.counters.Shared != nil {
		opts.Store = &redis.UsageSets{Client: s.counters.Shared, Prefix: s.options.Backend.KeyPrefix + usageKeys}
	}
	s.usage = usage.New(opts)
	s.tasks.Add(s.usage.Run)
}

// trackHotKeys makes the tracker of hot keys; nil if it is off.
func (s *service) trackHotKeys(registry prometheus.Registerer) *hotkeys.Tracker {
	keys := s.options.Answers.HotKeys
	if keys == 0 {
		return nil
	}
	t := hotkeys.New(time.Now(), hotkeys.Options{Keys: int(keys), Metrics: prom.With(registry)})
	s.tasks.Add(t.Run)
	return t
}

// encrypt sets up TLS for gRPC, if it is on.
func (s *service) encrypt(opts *server.Options, registry prometheus.Registerer) error {
	o := &s.options.TLS
	if !o.Use {
		if set := given("GRPC_CLIENT_TLS_CACERT", o.ClientCA, "GRPC_CLIENT_TLS_SAN", o.ClientSAN); set != "" {
			// envoyproxy/ratelimit starts too, without a word.
			s.log.Error("clients are not authenticated and gRPC is not encrypted: set GRPC_SERVER_USE_TLS=true, or unset these variables", "variables", set)
		}
		return nil
	}
	if o.Cert == "" || o.Key == "" {
		return errors.New("GRPC_SERVER_USE_TLS=true needs a certificate and its key: set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY")
	}
	variables := given("GRPC_SERVER_TLS_CERT", o.Cert, "GRPC_SERVER_TLS_KEY", o.Key,
		"GRPC_CLIENT_TLS_CACERT", o.ClientCA, "GRPC_CLIENT_TLS_SAN", o.ClientSAN)
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: "grpc", Cert: o.Cert, Key: o.Key, CA: o.ClientCA, Name: o.ClientSAN, Log: s.log, Metrics: prom.With(registry),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", variables, err)
	}
	config, err := files.Server()
	if err != nil {
		return fmt.Errorf("%s: %w", variables, err)
	}
	opts.Listen.Credentials = credentials.NewTLS(config)
	s.tasks.Add(files.Run)
	return nil
}

// trace sets up tracing, if it is on.
func (s *service) trace(ctx context.Context, opts *server.Options, registry prometheus.Registerer) error {
	o := &s.options.Tracing
	if !o.Enabled {
		return nil
	}
	tracer, err := tracing.Start(ctx, tracing.Options{
		Protocol: o.Protocol, ServiceName: o.Service, ServiceNamespace: o.Namespace, ServiceInstanceID: o.InstanceID, SamplingRate: o.Rate, Log: s.log, Metrics: registry,
	})
	if err != nil {
		return fmt.Errorf("start tracing: %w", err)
	}
	opts.Tracer = tracer
	s.tasks.Closing(func() error {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(longestFlush, s.options.Listen.StopTimeout))
		defer cancel()
		return tracer.Stop(flush)
	})
	return nil
}

// loadRules loads the rules for the first time and adds a worker that watches them.
func (s *service) loadRules(registry prometheus.Registerer) error {
	o := &s.options.Rules
	if o.overXDS() {
		return s.loadOverXDS(registry)
	}
	dir, _ := o.dir()
	folder := config.NewFolder(config.Options{
		Dir:          dir,
		MergeDomains: o.Merge,
		Strict:       o.Strict,
		Tree:         s.options.Answers.tree(),
		Logger:       s.log,
		Metrics:      prom.With(registry),
	})
	s.loadStats = folder.Statistics
	result, err := folder.Load()
	switch {
	case err == nil:
		s.apply(result)
	case o.Force:
		s.log.Error("no rules are active: "+untilRules, "folder", dir, "error", err)
	default:
		return fmt.Errorf("load rules from %s: %w\nset another directory with --rules, RUNTIME_ROOT, RUNTIME_SUBDIRECTORY or RUNTIME_APPDIRECTORY, or set FORCE_START_WITHOUT_INITIAL_CONFIG=true to start without rules", dir, err)
	}
	s.tasks.Add(func(ctx context.Context) error { return folder.Watch(ctx, s.apply) })
	return nil
}

// untilRules is what happens to requests of a replica that has never had rules.
const untilRules = "requests are answered with UNAVAILABLE until there are some"

// apply puts loaded rules into force, unless no file can be used and there were no rules before.
func (s *service) apply(r config.Result) {
	if s.limiter.Tree() == nil && r.InUse == 0 {
		s.ruleFiles.Store(&r.Files)
		s.reportHealth()
		dir, _ := s.options.Rules.dir()
		why := "no rule file can be used"
		if len(r.Files) == 0 {
			why = "there is no rule file"
		}
		s.log.Error("no rules are active: "+untilRules, "folder", dir, "files", len(r.Files), "because", why)
		return
	}
	s.swap(r.Tree)
	s.ruleFiles.Store(&r.Files)
	s.reportHealth()
	dir, _ := s.options.Rules.dir()
	s.log.Info("active rules", "folder", dir, "domains", r.Tree.Domains(), "rules", len(r.Tree.Rules), "checksum", r.Tree.Checksum, "files", len(r.Files))
}

// inForce says since when some rules are active.
type inForce struct {
	checksum uint64
	since    time.Time
}

// swap puts rules into force.
func (s *service) swap(tree *descriptor.Tree) {
	settings := s.options.Answers.settings()
	settings.Regions = max(len(s.options.Regions.Regions), 1)
	s.limiter.Swap(tree, settings)
	if now := s.inForce.Load(); now == nil || now.checksum != tree.Checksum {
		s.warnOfRegions(tree)
		s.inForce.Store(&inForce{tree.Checksum, time.Now()})
	}
}

// rulesSince is when the rules that are active came into force; the zero time if there are none.
func (s *service) rulesSince() time.Time {
	if now := s.inForce.Load(); now != nil {
		return now.since
	}
	return time.Time{}
}

// files is the state of every rule file or xDS resource.
func (s *service) files() []descriptor.FileStatus {
	if s.resources != nil {
		return s.resources()
	}
	if files := s.ruleFiles.Load(); files != nil {
		return *files
	}
	return nil
}

// run serves until ctx ends, or until the server or a worker fails.
func (s *service) run(ctx context.Context) error {
	defer s.close()
	debugAt := "off"
	if s.operators.DebugAddr != nil {
		debugAt = s.operators.DebugAddr.String()
	}
	s.pingRedis(ctx)
	listening := []any{"grpc", s.server.GRPCAddr.String(), "http", s.server.HTTPAddr.String(), "debug", debugAt}
	if s.operators.MetricsAddr != nil {
		listening = append(listening, "prometheus", s.operators.MetricsAddr.String())
	}
	if s.regionAddr != nil {
		listening = append(listening, "regions", s.regionAddr.String())
	}
	s.log.Info("listening", listening...)
	s.health.listening.Store(true)
	s.reportHealth()

	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, background := errgroup.WithContext(background)
	s.tasks.Start(background, g)
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	asked := context.AfterFunc(ctx, func() {
		s.log.Info("stopping", "because", context.Cause(ctx).Error()) // which signal it was
		cancel()
	})
	defer asked()
	context.AfterFunc(background, cancel) // a worker that fails stops the server
	g.Go(func() error { return s.operators.Run(endingWith(background, s.server.Stopping())) })
	if s.overrides != nil && !s.overrides.Await(serving, longestFirstRead) {
		s.log.Warn("calls are answered before the overrides have been read", "waited", longestFirstRead)
	}
	err := s.server.Run(serving)
	stop()
	err = errors.Join(err, g.Wait())
	s.log.Info("stopped")
	return err
}

// endingWith is a context that ends with its parent, or when done is closed.
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

// close frees what start opened.
func (s *service) close() {
	if err := s.tasks.Close(); err != nil {
		s.log.Warn("a connection or file could not be closed while stopping", "error", err)
	}
}

// tuneMemory makes garbage collections rarer, which halves the cost of a call, and limits the heap to nine tenths of the
// memory of the container or machine. GOGC and GOMEMLIMIT override it.
func tuneMemory(log *slog.Logger, budget *intake.Budget) {
	if os.Getenv("GOGC") == "" {
		defer func() {
			top := debug.SetMemoryLimit(-1) // by GOMEMLIMIT, or below
			(&collection{held: budget.Held, most: budget.Total(), top: top}).tune()
		}()
	}
	limit, err := memlimit.Set(memlimit.WithRatio(0.9),
		memlimit.WithProvider(memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)))
	if err != nil {
		log.Warn("no memory limit is set: set GOMEMLIMIT to bound the heap", "error", err)
		return
	}
	log.Debug("memory", "limit_bytes", limit)
}
