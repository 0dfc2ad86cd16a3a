package config

import (
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// metrics are the metrics of a directory or of a set of resources. They are read without its lock, so that a scrape
// does not wait for a reload.
type metrics struct {
	succeeded atomic.Uint64 // reloads without a bad file
	failed    atomic.Uint64 // reloads with a bad file, or of a directory that could not be read
	gone      atomic.Uint32 // current state of the source: goneStays or goneRemoved; 0 if it has rules
	settled   atomic.Uint32 // the same after the newest reload
	current   atomic.Pointer[applied]
}

// Outcomes for the rules when their source is empty.
const (
	goneStays   uint32 = 1 // they stay active
	goneRemoved uint32 = 2 // they are removed
)

func goneKept(yes bool) uint32 {
	if yes {
		return goneStays
	}
	return 0
}

// emptied records whether the rules of an empty source stay.
func (m *metrics) emptied(what uint32) {
	m.gone.Store(what)
	m.settled.Store(what)
}

// applied is the result of the newest reload.
type applied struct {
	files    []descriptor.FileStatus
	rules    int
	at       time.Time
	checksum uint64 // checksum of the rules; 0 without rules
}

// reloaded records a result that is now active.
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

// rejected records a reload that changed nothing, with the state of its sources.
func (m *metrics) rejected(files []descriptor.FileStatus) {
	next := applied{files: files}
	if now := m.current.Load(); now != nil {
		next.rules, next.at, next.checksum = now.rules, now.at, now.checksum
	}
	m.current.Store(&next)
	m.failed.Add(1)
}

func (m *metrics) families() []metric.Family {
	now := func() applied {
		if a := m.current.Load(); a != nil {
			return *a
		}
		return applied{}
	}
	return []metric.Family{
		{
			Name:   "ratelimitd_rule_file_state",
			Help:   "1 for each rule file or xDS resource in its state: loaded, stale or rejected.",
			Labels: []string{"file", "state"},
			Levels: func(emit metric.Emit) {
				for _, f := range now().files {
					if !utf8.ValidString(f.Name) {
						f.Name = strconv.Quote(f.Name) // replacing invalid UTF-8 could make two names equal
					}
					emit(1, f.Name, string(f.State))
				}
			},
		},
		{
			Name: "ratelimitd_rule_reloads_total",
			Help: "Reloads of changed rules: success, or error in any file.", Labels: []string{"result"},
			Counts: func(emit metric.Emit) {
				emit(float64(m.succeeded.Load()), "success")
				emit(float64(m.failed.Load()), "error")
			},
		},
		metric.Gauge("ratelimitd_rules", "Active rules.", func() int { return now().rules }),
		{
			Name: "ratelimitd_rules_gone", Labels: []string{"rules"},
			Help: "1 while all rules are gone: kept (the earlier rules stay active) or removed.",
			Levels: func(emit metric.Emit) {
				gone := m.gone.Load()
				emit(metric.Bool(gone == goneStays), "kept")
				emit(metric.Bool(gone == goneRemoved), "removed")
			},
		},
		metric.Gauge("ratelimitd_rules_checksum",
			"Checksum of the active rules, equal in replicas with the same rules.",
			func() uint64 { return now().checksum }),
		{
			Name: "ratelimitd_rules_last_reload_timestamp_seconds", Help: "When rules last changed, Unix time.",
			Levels: func(emit metric.Emit) {
				if at := now().at; !at.IsZero() {
					emit(float64(at.UnixMicro()) / 1e6)
				}
			},
		},
	}
}

// Statistics calls visit for the counters of reloads, under their names in envoyproxy/ratelimit: path, a dot, and stat.
func (f *Directory) Statistics(visit func(path, stat string, n uint64)) { f.metrics.statistics(visit) }

// Statistics calls visit for the counters of reloads of resources, with the same names.
func (s *Resources) Statistics(visit func(path, stat string, n uint64)) { s.metrics.statistics(visit) }

func (m *metrics) statistics(visit func(path, stat string, n uint64)) {
	visit("ratelimit.service", "config_load_error", m.failed.Load())
	visit("ratelimit.service", "config_load_success", m.succeeded.Load())
}
