package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ratelimitd/ratelimitd/internal/promcompat"
	"github.com/ratelimitd/ratelimitd/internal/statsd"
)

// prometheusAddr is where Prometheus is served besides /metrics, empty if nowhere.
func (o *statisticsOptions) prometheusAddr() string {
	if !o.Prometheus || o.Disabled {
		return ""
	}
	return cmp.Or(o.PrometheusAddr, ":9090")
}

// mapping is the text of the operator's mapping, empty if there is none.
func (o *statisticsOptions) mapping(log *slog.Logger) string {
	if o.PrometheusMapper == "" {
		return ""
	}
	text, err := os.ReadFile(o.PrometheusMapper)
	if errors.Is(err, fs.ErrNotExist) {
		log.Info("PROMETHEUS_MAPPER_YAML names a file that does not exist: the built-in mapping is used", "file", o.PrometheusMapper)
		return ""
	}
	if err != nil {
		log.Error(unusableMapping, "file", o.PrometheusMapper, "error", err)
		return ""
	}
	if strings.TrimSpace(string(text)) == "" {
		return "mappings: []" // what it says is that nothing is mapped
	}
	return string(text)
}

const unusableMapping = "PROMETHEUS_MAPPER_YAML names a file that cannot be used: the built-in mapping is used"

// tags are those of every statistic. The reference takes a tag without a key or a value, of which nothing can be made.
func (s *service) tags() ([]statsd.Tag, error) {
	text := s.pairs("EXTRA_TAGS", s.options.Stats.Tags, func(part string) bool {
		key, value, ok := strings.Cut(part, ":")
		return !ok || strings.TrimSpace(key) != "" && strings.TrimSpace(value) != ""
	})
	tags, err := statsd.ParseTags(text)
	if err != nil {
		return nil, fmt.Errorf("EXTRA_TAGS: %w", err)
	}
	return tags, nil
}

// pairs leaves those parts of a list with commas out that cannot be used, and logs them.
func (s *service) pairs(variable, text string, usable func(part string) bool) string {
	var kept []string
	for part := range strings.SplitSeq(text, ",") {
		switch {
		case usable(part):
			kept = append(kept, part)
		case strings.TrimSpace(part) != "":
			s.log.Warn("a part of a setting is not valid and is left out", "variable", variable, "part", part)
		}
	}
	return strings.Join(kept, ",")
}

// mogrifiers reads them from the environment: there are as many variables as the operator likes.
func (o *statisticsOptions) mogrifiers() ([]statsd.Mogrifier, error) {
	var all []statsd.Mogrifier
	for _, called := range o.Mogrifiers {
		variable := "DOG_STATSD_MOGRIFIER_" + called
		pattern, name, tags := os.Getenv(variable+"_PATTERN"), os.Getenv(variable+"_NAME"), os.Getenv(variable+"_TAGS")
		if pattern == "" || name == "" {
			return nil, fmt.Errorf("USE_DOG_STATSD_MOGRIFIERS names %s: set %s_PATTERN and %[2]s_NAME", called, variable)
		}
		m := statsd.Mogrifier{Name: name}
		var err error
		if m.Pattern, err = regexp.Compile(pattern); err != nil {
			return nil, fmt.Errorf("%s_PATTERN: %w", variable, err)
		}
		if m.Tags, err = statsd.ParseTags(tags); err != nil {
			return nil, fmt.Errorf("%s_TAGS: %w", variable, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// statistic is what the reference calls the connections to it.
func (c *redisStore) statistic() string {
	if c.settings == "REDIS_PERSECOND" {
		return "ratelimit.redis_per_second_pool"
	}
	return "ratelimit.redis_pool"
}

// statistics are what the reference has too, under its names.
func (s *service) statistics() statsd.Source {
	return statsd.Source{
		Counters: func(visit func(path, stat string, n uint64)) {
			s.limiter.Statistics(visit)
			s.rules.Statistics(visit)
			visit(statsd.ResponseTimePath, "total_requests", s.server.Answered())
			for _, c := range s.redis {
				visit(c.statistic(), "cx_total", c.conns.Opened())
				visit(c.statistic(), "cx_local_close", c.conns.Closed())
			}
		},
		Gauges: func(visit func(path, stat string, n uint64)) {
			for _, c := range s.redis {
				visit(c.statistic(), "cx_active", c.conns.Open())
			}
			if s.cache != nil {
				visit("ratelimit.localcache", "entryCount", uint64(s.cache.Len()))
				visit("ratelimit.localcache", "hitCount", s.cache.Hits())
			}
		},
	}
}

// writeStats writes what /stats shows.
func (s *service) writeStats(w io.Writer) {
	_ = s.statistics().WriteText(w) // a reader who went away misses the rest
	if s.moreStats != nil {
		s.moreStats(w)
	}
}

// showStatistics adds them to what Prometheus is shown. The observer is to be told response times, unless it is nil.
func (s *service) showStatistics(registry prometheus.Registerer) (prometheus.Observer, error) {
	o := &s.options.Stats
	if o.Disabled {
		return nil, nil
	}
	text := o.mapping(s.log)
	tags, err := s.tags()
	if err != nil {
		return nil, err
	}
	opts := promcompat.Options{Source: s.statistics(), Mapping: text, Tags: tags, Milliseconds: o.Milliseconds, Log: s.log}
	collector, err := promcompat.New(opts)
	if err != nil && text != "" {
		s.log.Error(unusableMapping, "file", o.PrometheusMapper, "error", err)
		opts.Mapping = ""
		collector, err = promcompat.New(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("show statistics to Prometheus: %w", err)
	}
	registry.MustRegister(collector)
	return collector.ResponseTime(), nil
}

// sendStatistics has them sent to StatsD if the options ask for it. The observer is to be told response times, unless it
// is nil.
func (s *service) sendStatistics(registry prometheus.Registerer) (prometheus.Observer, error) {
	o := &s.options.Stats
	switch {
	case o.Disabled, !o.StatsD && !o.DogStatsD:
		return nil, nil
	case o.StatsD && o.DogStatsD:
		return nil, errors.New("USE_STATSD and USE_DOG_STATSD send the same numbers to one address: set one of them")
	}
	tags, err := s.tags()
	if err != nil {
		return nil, err
	}
	opts := statsd.Options{
		Source:   s.statistics(),
		Timings:  new(statsd.Timings),
		Network:  o.Protocol,
		Address:  address(o.Host, o.Port),
		Tags:     tags,
		Interval: o.Interval,
		Log:      s.log,
		Metrics:  registry,
	}
	if o.DogStatsD {
		opts.Datadog, opts.Network = true, "udp"
		if opts.Mogrifiers, err = o.mogrifiers(); err != nil {
			return nil, err
		}
	}
	sender, err := statsd.New(opts)
	if err != nil {
		return nil, err
	}
	s.workers = append(s.workers, sender.Run)
	s.log.Info("sending statistics", "address", opts.Address, "network", opts.Network, "dogstatsd", opts.Datadog, "every", o.Interval.String())
	return opts.Timings, nil
}

// scrapes answers Prometheus. What an operator's mapping makes of one statistic does not cost the others.
func (s *service) scrapes(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: 8,
		Timeout:             25 * time.Second,
	})
}

// both is an observer of whatever two others are told.
func both(a, b prometheus.Observer) prometheus.Observer {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return prometheus.ObserverFunc(func(v float64) {
		a.Observe(v)
		b.Observe(v)
	})
}
