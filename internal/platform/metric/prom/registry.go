package prom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// With returns a registry whose families are registered with r.
func With(r prometheus.Registerer) metric.Registry { return registry{r} }

type registry struct{ to prometheus.Registerer }

// Register implements metric.Registry.
func (r registry) Register(families ...metric.Family) {
	c := make(collector, len(families))
	for i := range families {
		f := &families[i]
		c[i] = family{f, prometheus.NewDesc(f.Name, f.Help, f.Labels, f.Fixed)}
	}
	r.to.MustRegister(c)
}

// collector collects families that were registered together.
type collector []family

type family struct {
	*metric.Family
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c {
		ch <- c[i].desc
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for i := range c {
		f := &c[i]
		switch {
		case f.Counts != nil:
			f.Counts(f.emit(ch, prometheus.CounterValue))
		case f.Levels != nil:
			f.Levels(f.emit(ch, prometheus.GaugeValue))
		default:
			f.Durations(func(d *metric.Durations, labels ...string) {
				count, sum, within := d.Read()
				f.send(ch)(prometheus.NewConstHistogram(f.desc, count, sum, within, labels...))
			})
		}
	}
}

func (f *family) emit(ch chan<- prometheus.Metric, kind prometheus.ValueType) metric.Emit {
	send := f.send(ch)
	return func(value float64, labels ...string) { send(prometheus.NewConstMetric(f.desc, kind, value, labels...)) }
}

// send returns a function that sends a series, or its error, which the scrape reports.
func (f *family) send(ch chan<- prometheus.Metric) func(prometheus.Metric, error) {
	return func(m prometheus.Metric, err error) {
		if err != nil {
			m = prometheus.NewInvalidMetric(f.desc, err)
		}
		ch <- m
	}
}
