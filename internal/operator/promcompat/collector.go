package promcompat

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/statsd_exporter/pkg/mapper"

	"github.com/ratelimitd/ratelimitd/internal/platform/statsd"
)

// Options are the settings of a Collector. Source is required.
type Options struct {
	Source  statsd.Source
	Mapping string       // YAML in the language of statsd_exporter; empty means the built-in one
	Tags    []statsd.Tag // labels of every series, unless the mapping sets a label of the same name

	// Milliseconds keeps response times in milliseconds under the built-in mapping, although its metric is named after
	// seconds.
	Milliseconds bool

	Log *slog.Logger // default slog.Default()
}

// Collector collects envoyproxy/ratelimit's metrics. It is an unchecked collector: its metrics are known only at a
// scrape.
type Collector struct {
	source       statsd.Source
	mapper       *mapper.MetricMapper
	tags         []statsd.Tag
	milliseconds bool
	log          *slog.Logger

	mu        sync.Mutex // one scrape at a time
	series    map[name]contribution
	byTarget  map[string]*series
	inOrder   []*series
	families  map[string]family
	observers []prometheus.Collector
}

// name is the name of a statistic in two parts.
type name struct{ path, stat string }

// contribution is the part that a statistic adds to a series.
type contribution struct {
	*series // nil if the statistic is not shown
	scale   float64
}

// series is a Prometheus series. Often many statistics are mapped to one.
type series struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value float64 // value in this scrape

	always  bool          // shown even while it is zero
	ttl     time.Duration // hidden after this time without a change; 0 means never
	last    float64
	changed time.Time
}

// family has the properties that all series of one name share.
type family struct {
	kind string
	help string
}

const (
	counter  = "counter"
	gauge    = "gauge"
	observer = "observer"
)

// byRule is the prefix of statistics by rule. There are many, so each is shown only once it is not zero.
const byRule = "ratelimit.service.rate_limit."

// New returns a collector. It fails if the mapping is invalid.
func New(opts Options) (*Collector, error) {
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	m, err := load(opts.Mapping)
	if err != nil {
		return nil, err
	}
	return &Collector{
		source:       opts.Source,
		mapper:       m,
		tags:         opts.Tags,
		milliseconds: opts.Milliseconds && opts.Mapping == "",
		log:          opts.Log,
		series:       make(map[name]contribution),
		byTarget:     make(map[string]*series),
		families:     make(map[string]family),
	}, nil
}

// Describe implements prometheus.Collector.
func (*Collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for _, s := range c.inOrder {
		s.value = 0
	}
	c.source.Counters(func(path, stat string, n uint64) {
		if n == 0 && strings.HasPrefix(path, byRule) {
			return
		}
		if p := c.find(name{path, stat}, counter, now); p.series != nil {
			p.value += float64(n) * p.scale
		}
	})
	if c.source.Gauges != nil {
		c.source.Gauges(func(path, stat string, n uint64) {
			if p := c.find(name{path, stat}, gauge, now); p.series != nil {
				p.value = float64(n) * p.scale
			}
		})
	}
	for _, s := range c.inOrder {
		if s.value != s.last {
			s.last, s.changed = s.value, now
		}
		if !s.always && s.value == 0 || s.ttl > 0 && now.Sub(s.changed) > s.ttl {
			continue
		}
		ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value)
	}
	for _, o := range c.observers {
		o.Collect(ch)
	}
}

// find returns the series that a statistic belongs to.
func (c *Collector) find(key name, kind string, now time.Time) contribution {
	p, known := c.series[key]
	if known {
		return p
	}
	if t := c.target(key, kind); t != nil {
		p = contribution{c.byTarget[t.id], t.scale}
		if p.series == nil {
			p.series = &series{desc: t.desc, kind: prometheus.CounterValue, ttl: t.ttl, changed: now}
			if kind == gauge {
				p.kind = prometheus.GaugeValue
			}
			c.byTarget[t.id] = p.series
			c.inOrder = append(c.inOrder, p.series)
		}
		p.always = p.always || !strings.HasPrefix(key.path, byRule)
	}
	c.series[key] = p
	return p
}

// target is the result of mapping a statistic.
type target struct {
	id      string // name and labels
	name    string
	help    string
	labels  prometheus.Labels
	desc    *prometheus.Desc
	scale   float64
	ttl     time.Duration
	mapping *mapper.MetricMapping
}

// target maps a statistic. It returns nil if the statistic is not shown.
func (c *Collector) target(key name, kind string) *target {
	text := strings.ToValidUTF8(key.path+"."+key.stat, "_") // the library panics on invalid UTF-8
	mapping, labels, mapped := c.mapper.GetMapping(text, mapper.MetricType(kind))
	t := &target{scale: 1, labels: c.labels(labels), help: "A statistic of envoyproxy/ratelimit that no mapping covers.",
		mapping: mapping}
	if !mapped {
		t.name = mapper.EscapeMetricName(text)
		t.ttl = c.mapper.Defaults.Ttl
	} else {
		if mapping.Action == mapper.ActionTypeDrop {
			return nil
		}
		t.name = mapper.EscapeMetricName(mapping.Name)
		t.ttl = mapping.Ttl
		t.help = mapping.HelpText
		if mapping.Scale.Set {
			t.scale = mapping.Scale.Val
		}
	}
	f, known := c.families[t.name]
	switch {
	case !known:
		c.families[t.name] = family{kind, t.help}
	case f.kind != kind:
		c.log.Warn("a statistic is not shown to Prometheus: the mapping gives it the name of a metric of another type",
			"statistic", text, "metric", t.name, "type", kind, "type_of_the_other", f.kind)
		return nil
	default:
		t.help = f.help // all series of a family must have the same help
	}
	t.desc = prometheus.NewDesc(t.name, t.help, nil, t.labels)
	if _, err := prometheus.NewConstMetric(t.desc, prometheus.CounterValue, 0); err != nil {
		c.log.Warn("a statistic is not shown to Prometheus", "statistic", text, "error", err)
		return nil
	}
	t.id = t.name
	for _, label := range slices.Sorted(maps.Keys(t.labels)) {
		t.id += "\xff" + label + "\xff" + t.labels[label]
	}
	return t
}

// labels returns the labels of a mapping, with the tags added.
func (c *Collector) labels(mapped prometheus.Labels) prometheus.Labels {
	all := make(prometheus.Labels, len(mapped)+len(c.tags))
	for _, t := range c.tags {
		all[mapper.EscapeMetricName(strings.ToValidUTF8(t.Key, "_"))] = strings.ToValidUTF8(t.Value, "_")
	}
	for label, value := range mapped {
		all[label] = value
	}
	return all
}

// ResponseTime returns the observer for response times in seconds, or nil if the mapping drops them. It is called once.
func (c *Collector) ResponseTime() prometheus.Observer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.target(name{statsd.ResponseTimePath, statsd.ResponseTimeStat}, observer)
	if t == nil {
		return nil
	}
	times := &scaled{by: t.scale * 1000}
	if c.milliseconds {
		times.by = 1000
	}
	kind := c.mapper.Defaults.ObserverType
	if t.mapping != nil && t.mapping.ObserverType != mapper.ObserverTypeDefault {
		kind = t.mapping.ObserverType
	}
	if kind == mapper.ObserverTypeHistogram {
		h := prometheus.NewHistogram(c.histogram(t))
		times.to = h
		c.observers = append(c.observers, h)
	} else {
		s := prometheus.NewSummary(c.summary(t))
		times.to = s
		c.observers = append(c.observers, s)
	}
	return times
}

func (c *Collector) histogram(t *target) prometheus.HistogramOpts {
	opts := prometheus.HistogramOpts{Name: t.name, Help: t.help, ConstLabels: t.labels,
		Buckets: c.mapper.Defaults.HistogramOptions.Buckets}
	if t.mapping != nil && t.mapping.HistogramOptions != nil {
		o := t.mapping.HistogramOptions
		if len(o.Buckets) > 0 {
			opts.Buckets = o.Buckets
		}
		opts.NativeHistogramBucketFactor = o.NativeHistogramBucketFactor // unlike the library, only if the mapping sets it
		opts.NativeHistogramMaxBucketNumber = o.NativeHistogramMaxBuckets
	}
	return opts
}

func (c *Collector) summary(t *target) prometheus.SummaryOpts {
	o := c.mapper.Defaults.SummaryOptions
	if t.mapping != nil && t.mapping.SummaryOptions != nil {
		o = *t.mapping.SummaryOptions
	}
	opts := prometheus.SummaryOpts{
		Name: t.name, Help: t.help, ConstLabels: t.labels,
		MaxAge: o.MaxAge, AgeBuckets: o.AgeBuckets, BufCap: o.BufCap, Objectives: make(map[float64]float64),
	}
	for _, q := range o.Quantiles {
		opts.Objectives[q.Quantile] = q.Error
	}
	return opts
}

// scaled multiplies observed values by a factor.
type scaled struct {
	to prometheus.Observer
	by float64
}

// Observe implements prometheus.Observer.
func (s *scaled) Observe(v float64) { s.to.Observe(v * s.by) }
