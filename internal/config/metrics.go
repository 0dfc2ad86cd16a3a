package config

import (
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// metrics are the Prometheus metrics of a folder or of a set of resources. They are read without its lock, so that a scrape
// does not wait for a reload.
type metrics struct {
	succeeded atomic.Uint64 // reloads without a bad file
	failed    atomic.Uint64 // reloads with a bad file, or of a folder that could not be read
	gone      atomic.Uint32 // current state of the source: goneStays or goneRemoved; 0 if it has rules
	settled   atomic.Uint32 // the same after the newest reload
	current   atomic.Pointer[applied]
}

// What happened to the rules when their source had none.
const (
	goneStays   uint32 = 1 // they stay in force
	goneRemoved uint32 = 2 // they are removed
)

func goneKept(yes bool) uint32 {
	if yes {
		return goneStays
	}
	return 0
}

// emptied records what happened to the rules of a source that has none now.
func (m *metrics) emptied(what uint32) {
	m.gone.Store(what)
	m.settled.Store(what)
}

// applied is the result of the newest reload.
type applied struct {
	files    []descriptor.FileStatus
	rules    int
	at       time.Time
	checksum uint64 // of the rules; 0: there are none
}

// reloaded records a result that is now in force.
func (m *metrics) reloaded(r *Result, at time.Time) {
	if len(r.Tree.Rules) > 0 {
		m.emptied(0)
	}
	m.current.Store(&applied{files: r.Files, rules: len(r.Tree.Rules), at: at, checksum: r.Tree.Checksum})
	for i := range r.Files {
		if r.Files[i].State != descriptor.FileLoaded {
			m.failed.Add(1)
			return
		}
	}
	m.succeeded.Add(1)
}

// refused records a reload that changed nothing, with the state of its sources.
func (m *metrics) refused(files []descriptor.FileStatus) {
	next := applied{files: files}
	if now := m.current.Load(); now != nil {
		next.rules, next.at, next.checksum = now.rules, now.at, now.checksum
	}
	m.current.Store(&next)
	m.failed.Add(1)
}

var (
	fileDesc    = prometheus.NewDesc("ratelimitd_rule_file_state", "1 for every rule file or resource, with its state: loaded, stale or rejected.", []string{"file", "state"}, nil)
	reloadsDesc = prometheus.NewDesc("ratelimitd_rule_reloads_total", "Times that changed rules were read: with success, or with an error in some file, the folder, or some resource.", []string{"result"}, nil)
	rulesDesc   = prometheus.NewDesc("ratelimitd_rules", "Rules in use.", nil, nil)
	goneDesc    = prometheus.NewDesc("ratelimitd_rules_gone", "1 while the folder or the xDS server holds no rules although there were some. rules: kept (the earlier ones stay in force) or removed (none is in force).", []string{"rules"}, nil)
	sumDesc     = prometheus.NewDesc("ratelimitd_rules_checksum", "Number that identifies the rules in use: processes with the same rules have the same number. 0: no rules.", nil, nil)
	reloadDesc  = prometheus.NewDesc("ratelimitd_rules_last_reload_timestamp_seconds", "When a reload of changed rules last took effect, in seconds since the Unix epoch.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- fileDesc
	ch <- reloadsDesc
	ch <- rulesDesc
	ch <- goneDesc
	ch <- sumDesc
	ch <- reloadDesc
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(reloadsDesc, prometheus.CounterValue, float64(m.succeeded.Load()), "success")
	send(reloadsDesc, prometheus.CounterValue, float64(m.failed.Load()), "error")
	gone := m.gone.Load()
	send(goneDesc, prometheus.GaugeValue, is(gone == goneStays), "kept")
	send(goneDesc, prometheus.GaugeValue, is(gone == goneRemoved), "removed")
	now := m.current.Load()
	if now == nil {
		send(rulesDesc, prometheus.GaugeValue, 0)
		send(sumDesc, prometheus.GaugeValue, 0)
		return
	}
	send(rulesDesc, prometheus.GaugeValue, float64(now.rules))
	send(sumDesc, prometheus.GaugeValue, float64(now.checksum))
	if !now.at.IsZero() {
		send(reloadDesc, prometheus.GaugeValue, float64(now.at.UnixMicro())/1e6)
	}
	for i := range now.files {
		f := &now.files[i]
		name := f.Name
		if !utf8.ValidString(name) {
			name = strconv.Quote(name) // replacing invalid UTF-8 could make two names equal
		}
		send(fileDesc, prometheus.GaugeValue, 1, name, string(f.State))
	}
}

func is(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Statistics calls visit for the counters of reloads, under their names in the reference: path, a dot, and stat.
func (f *Folder) Statistics(visit func(path, stat string, n uint64)) { f.metrics.statistics(visit) }

// Statistics calls visit for the counters of reloads of resources, with the same names.
func (s *Resources) Statistics(visit func(path, stat string, n uint64)) { s.metrics.statistics(visit) }

func (m *metrics) statistics(visit func(path, stat string, n uint64)) {
	visit("ratelimit.service", "config_load_error", m.failed.Load())
	visit("ratelimit.service", "config_load_success", m.succeeded.Load())
}
