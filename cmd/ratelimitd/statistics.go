package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/operator/promcompat"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/statsd"
)

// prometheusAddr returns the address of the separate listener for Prometheus, or "" if that is off.
func (o *statisticsOptions) prometheusAddr() string {
	if !o.Prometheus || o.Disabled {
		return ""
	}
	return cmp.Or(o.PrometheusAddr, ":9090")
}

const maxMapping = 16 << 20 // bytes

// mapping returns the operator's mapping, or "" for the built-in one.
func (o *statisticsOptions) mapping(log *slog.Logger) string {
	if o.PrometheusMapper == "" {
		return ""
	}
	text, err := files.Read(o.PrometheusMapper, maxMapping)
	if errors.Is(err, fs.ErrNotExist) {
		log.Info("PROMETHEUS_MAPPER_YAML names a file that does not exist: the built-in mapping is used", "file",
			o.PrometheusMapper)
		return ""
	}
	if err != nil {
		log.Error(unusableMapping, "file", o.PrometheusMapper, "error", err)
		return ""
	}
	if strings.TrimSpace(string(text)) == "" {
		return "mappings: []" // an empty file maps nothing
	}
	return string(text)
}

const unusableMapping = "PROMETHEUS_MAPPER_YAML names a file that cannot be used: the built-in mapping is used"

// tags returns the tags of every statistic. Tags without a key or a value, which envoyproxy/ratelimit accepts, are left
// out.
func (s *starting) tags() ([]statsd.Tag, error) {
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

// pairs leaves out the parts of a comma-separated list that are not usable, and logs them.
func (s *starting) pairs(variable, text string, usable func(part string) bool) string {
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

// mogrifiers reads the mogrifiers from the environment. Their names decide which variables there are.
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

// statistics shows and sends envoyproxy/ratelimit's statistics. It returns the observer of response times, or nil if
// neither is on.
func (s *starting) statistics(source statsd.Source) (prometheus.Observer, error) {
	shown, err := s.showStatistics(source)
	if err != nil {
		return nil, err
	}
	sent, err := s.sendStatistics(source)
	return both(shown, sent), err
}

// showStatistics adds the statistics to the metrics. It returns the observer of response times, or nil if they are off.
func (s *starting) showStatistics(source statsd.Source) (prometheus.Observer, error) {
	o := &s.options.Stats
	if o.Disabled {
		return nil, nil
	}
	text := o.mapping(s.log)
	tags, err := s.tags()
	if err != nil {
		return nil, err
	}
	opts := promcompat.Options{Source: source, Mapping: text, Tags: tags, Milliseconds: o.Milliseconds, Log: s.log}
	collector, err := promcompat.New(opts)
	if err != nil && text != "" {
		s.log.Error(unusableMapping, "file", o.PrometheusMapper, "error", err)
		opts.Mapping = ""
		collector, err = promcompat.New(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("show statistics to Prometheus: %w", err)
	}
	s.registry.MustRegister(collector)
	return collector.ResponseTime(), nil
}

// sendStatistics sends the statistics to StatsD. It returns the observer of response times, or nil if StatsD is off.
func (s *starting) sendStatistics(source statsd.Source) (prometheus.Observer, error) {
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
		Source:   source,
		Timings:  new(statsd.Timings),
		Network:  o.Protocol,
		Address:  address(o.Host, o.Port),
		Tags:     tags,
		Interval: o.Interval,
		Log:      s.log,
		Metrics:  s.registry,
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
	s.tasks.Add(sender.Run)
	s.log.Info("sending statistics", "address", opts.Address, "network", opts.Network, "dogstatsd", opts.Datadog, "every",
		o.Interval.String())
	return opts.Timings, nil
}

// both returns an observer that passes values to two others; either may be nil.
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
