package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/assembly"
	"github.com/ratelimitd/ratelimitd/internal/assembly/service"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/platform/endpoint"
	"github.com/ratelimitd/ratelimitd/internal/platform/intake"
	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
	"github.com/ratelimitd/ratelimitd/internal/platform/tlsfiles"
	"github.com/ratelimitd/ratelimitd/internal/platform/tracing"
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
	Unknown  []string    `kong:"-"` // variables that look like settings, with the settings that they may mean
	Stdout   io.Writer   `kong:"-"`
}

func (*serveCommand) about() about {
	return about{
		note: "You can set each flag with the environment variable in brackets too. If both are set, the flag wins. " +
			"Without a command, ratelimitd runs serve.",
		common: []string{
			"rules", "grpc-port", "port", "drain-delay", "shadow-mode", "on-error", "redis-url", "redis-type", "redis-auth-file",
			"log-level",
		},
		examples: []example{
			{"count in memory", "ratelimitd --rules config/domains"},
			{"count in Redis, together with all other replicas", "REDIS_URL=redis:6379 ratelimitd --rules config/domains"},
			{"try rules without enforcing them", "ratelimitd --rules config/domains --shadow-mode"},
		},
		exits: []exitCode{
			{0, "Stopped by a signal, after all calls in flight were answered."},
			{1, "A port cannot be opened, or Redis stays unreachable for too long."},
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
	log.Info("starting ratelimitd", "version", b.Version, "commit", cmp.Or(b.Commit, "unknown"), "date",
		cmp.Or(b.Date, "unknown"), "go", b.Go, "platform", b.Platform)
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
	go func() { ended <- svc.Run(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-o.Listen.overdue(ctx):
		log.Warn("the service ends before all its work has stopped: the stop timeout has passed", "timeout",
			o.Listen.StopTimeout)
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
		log.Info("serving rules from an xDS server", "server", server, "node", o.XDS.NodeID, "because",
			"CONFIG_TYPE=GRPC_XDS_SOTW")
		return
	}
	directory, because := o.Rules.dir()
	log.Info("serving rules from a directory", "directory", directory, "because", because)
	if beside, _ := filepath.Glob(directory + ".*"); len(beside) > 0 && o.Rules.Rules == "" &&
		o.Rules.RuntimeSubdir != "" {
		log.Warn("files next to the rule directory are not read, unlike in envoyproxy/ratelimit", "files", beside, "hint",
			"move them into the directory")
	}
}

// liveHeap adds go_gc_heap_live_bytes to the metrics. The live heap includes the memory held for clients.
var liveHeap = collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)})

// starting is a service whose options are being made from settings.
type starting struct {
	options  *serveCommand
	log      *slog.Logger
	registry *prometheus.Registry
	tasks    assembly.Tasks
}

// start creates the service: it does everything that can fail. Nothing is answered before the service runs.
func (o *serveCommand) start(ctx context.Context, log *slog.Logger, level *logging.Level,
	budget *intake.Budget) (*service.Service, error) {
	o.warn(log)
	s := &starting{options: o, log: log, registry: prometheus.NewRegistry()}
	s.registry.MustRegister(collectors.NewGoCollector(liveHeap),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), thisBuild().metric())
	opts := service.Options{Tasks: &s.tasks, Log: log, Level: level, Registry: s.registry, Budget: budget,
		Version: thisBuild().Version}
	for _, read := range []func(context.Context, *service.Options) error{
		s.answers, s.counters, s.regions, s.events, s.reservations, s.encrypt, s.trace, s.access, s.rules, s.overrides,
	} {
		if err := read(ctx, &opts); err != nil {
			_ = s.tasks.Close() // start returns the more useful error
			return nil, err
		}
	}
	svc, err := service.New(opts)
	return svc, withVariables(err)
}

// warn logs settings that were adjusted, and settings and arguments without effect.
func (o *serveCommand) warn(log *slog.Logger) {
	o.Adjusted.log(log)
	o.Accepted.log(log)
	if len(o.Ignored) > 0 {
		log.Warn("unknown arguments are ignored, as envoyproxy/ratelimit ignores its arguments", "arguments", o.Ignored)
	}
	if len(o.Unknown) > 0 {
		log.Warn("variables that look like settings are unknown and have no effect: correct or remove them", "variables",
			o.Unknown)
	}
}

// answers sets the options of decisions and answers, and the ports.
func (s *starting) answers(_ context.Context, opts *service.Options) error {
	o := s.options
	opts.Limiter = limiter.Options{NoDots: o.Stats.NoDots}
	opts.Settings = o.Answers.settings()
	opts.Settings.Regions = max(len(o.Regions.Regions), 1)
	opts.Statistics = s.statistics
	opts.Ports = endpoint.Options{StopTimeout: o.Listen.StopTimeout}
	opts.Server, opts.Operators = o.Listen.callers(), o.Listen.operators()
	opts.Operators.Scrapes = operator.Scrapes{Addr: o.Stats.prometheusAddr(), Path: o.Stats.PrometheusPath}
	return nil
}

// withVariables names the variables for the address of a listener that cannot be opened.
func withVariables(err error) error {
	variables := map[string]string{
		"gRPC": "GRPC_HOST, GRPC_PORT", "gRPC on unix socket": "GRPC_UDS", "HTTP": "HOST, PORT",
		"regions": "RATELIMITD_REGIONS_LISTEN",
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

// encrypt sets up TLS for gRPC, if it is on.
func (s *starting) encrypt(_ context.Context, opts *service.Options) error {
	o := &s.options.TLS
	if !o.Use {
		if set := given("GRPC_CLIENT_TLS_CACERT", o.ClientCA, "GRPC_CLIENT_TLS_SAN", o.ClientSAN); set != "" {
			// envoyproxy/ratelimit starts too, without a word.
			s.log.Error("clients are not authenticated and gRPC is not encrypted: set GRPC_SERVER_USE_TLS=true, or unset "+
				"these variables", "variables", set)
		}
		return nil
	}
	if o.Cert == "" || o.Key == "" {
		return errors.New("GRPC_SERVER_USE_TLS=true needs a certificate and its key: set GRPC_SERVER_TLS_CERT and " +
			"GRPC_SERVER_TLS_KEY")
	}
	variables := given("GRPC_SERVER_TLS_CERT", o.Cert, "GRPC_SERVER_TLS_KEY", o.Key,
		"GRPC_CLIENT_TLS_CACERT", o.ClientCA, "GRPC_CLIENT_TLS_SAN", o.ClientSAN)
	var clients []string
	if o.ClientSAN != "" {
		clients = []string{o.ClientSAN}
	}
	files, err := tlsfiles.Load(tlsfiles.Options{
		Use: "grpc", Cert: o.Cert, Key: o.Key, CA: o.ClientCA, Clients: clients, Log: s.log, Metrics: prom.With(s.registry),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", variables, err)
	}
	config, err := files.Server()
	if err != nil {
		return fmt.Errorf("%s: %w", variables, err)
	}
	opts.Server.Listen.Credentials = credentials.NewTLS(config)
	s.tasks.Add(files.Run)
	return nil
}

// trace sets up tracing, if it is on.
func (s *starting) trace(ctx context.Context, opts *service.Options) error {
	o := &s.options.Tracing
	if !o.Enabled {
		return nil
	}
	tracer, err := tracing.Start(ctx, tracing.Options{
		Protocol: o.Protocol, ServiceName: o.Service, ServiceNamespace: o.Namespace, ServiceInstanceID: o.InstanceID,
		SamplingRate: o.Rate, Log: s.log, Metrics: s.registry,
	})
	if err != nil {
		return fmt.Errorf("start tracing: %w", err)
	}
	opts.Server.Tracer = tracer
	s.tasks.Closing(func() error {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(longestFlush, s.options.Listen.StopTimeout))
		defer cancel()
		return tracer.Stop(flush)
	})
	return nil
}

// rules sets the source of the rules.
func (s *starting) rules(_ context.Context, opts *service.Options) (err error) {
	o := &s.options.Rules
	opts.Rules = service.Rules{Force: o.Force, AtLeastOne: o.AtLeastOne}
	if o.overXDS() {
		opts.Rules.ServerName = s.options.XDS.Server
		opts.Rules.Server, err = s.overXDS()
		return err
	}
	opts.Rules.Dir, _ = o.dir()
	opts.Rules.Hint = "set another directory with --rules, RUNTIME_ROOT, RUNTIME_SUBDIRECTORY or RUNTIME_APPDIRECTORY, " +
		"or set FORCE_START_WITHOUT_INITIAL_CONFIG=true to start without rules"
	opts.Rules.Directory = config.NewDirectory(config.Options{
		Dir: opts.Rules.Dir, MergeDomains: o.Merge, Strict: o.Strict, Tree: s.options.Answers.tree(), Logger: s.log,
		Metrics: prom.With(s.registry),
	})
	return nil
}

// tuneMemory makes garbage collections rarer, which halves the cost of a call, and limits the heap to nine tenths of
// the memory of the container or machine. GOGC and GOMEMLIMIT override it.
func tuneMemory(log *slog.Logger, budget *intake.Budget) {
	if os.Getenv("GOGC") == "" {
		defer func() {
			top := debug.SetMemoryLimit(-1) // memory limit from GOMEMLIMIT, or set below
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
