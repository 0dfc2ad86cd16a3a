package adapter

import (
	"bytes"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ratelimitd/ratelimitd/e2e/differential"
	"github.com/ratelimitd/ratelimitd/e2e/differential/before/backend/memory"
	"github.com/ratelimitd/ratelimitd/e2e/differential/before/limiter"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
)

// Side is one version while it takes the steps of a World.
type Side struct {
	Text differential.Text // what was written down so far; the caller may empty it

	limiter  *limiter.Limiter
	store    *store
	local    *store
	registry *prometheus.Registry
	hot      *hotkeys.Tracker
	usage    *usage.Index
	events   *events.Sink
	sent     bytes.Buffer // the events
	trees    []*descriptor.Tree
	settings []limiter.Settings
	sets     []*override.Set
	decision limiter.Decision // used again, as servers do
	request  limiter.Request
	waiting  []*waiting // decisions whose store has not answered
	begun    int
}

// waiting is a decision that Start has begun.
type waiting struct {
	number   int
	request  limiter.Request
	decision limiter.Decision
	done     chan error
}

// New returns a Side before the first step. The error says that a rule file has errors.
func New(w *differential.World) (*Side, error) {
	s := &Side{registry: prometheus.NewRegistry()}
	for _, v := range w.Versions {
		var files []config.File
		for i, text := range v.Files {
			files = append(files, config.File{Name: fmt.Sprint(i, ".yaml"), Data: []byte(text)})
		}
		tree, errs := config.Compile(files, config.CompileOptions{Tree: descriptor.Options{CalendarMonths: w.Options.CalendarMonths}})
		if len(errs) > 0 {
			return nil, errs[0]
		}
		s.trees, s.settings = append(s.trees, tree), append(s.settings, settingsOf(&v.Settings))
	}
	for _, set := range w.Sets {
		s.sets = append(s.sets, overridesOf(set))
	}
	counters := memory.New(memory.Options{MaxCounters: 1 << 17, Shared: -1})
	s.store = &store{side: s, name: "take", inner: counters, sweep: counters.Sweep}
	o := limiter.Options{Store: s.store, MaxSeries: w.Options.MaxSeries, NoMetrics: w.Options.NoMetrics, Metrics: s.registry}
	o.Keys = descriptor.KeyBuilder{Prefix: w.Options.KeyPrefix}
	if w.Options.LyftKeys {
		o.Keys.Format = descriptor.KeysLyft
	}
	if w.Options.Local {
		counters := memory.New(memory.Options{MaxCounters: 1 << 17, Shared: -1})
		s.local = &store{side: s, name: "local", inner: counters, sweep: counters.Sweep}
		o.Local = s.local
	}
	if w.Options.HotKeys {
		s.hot = hotkeys.New(w.Start, hotkeys.Options{})
		o.HotKeys = s.hot
	}
	if w.Options.Usage {
		s.usage = usage.New(usage.Options{Store: (*usageStore)(s)})
		o.Usage = s.usage
	}
	if w.Options.Events {
		var err error
		s.events, err = events.New(events.Options{To: "stdout", Stdout: &s.sent, Values: true, PerSecond: 1 << 40, Interval: time.Second, Queue: 4096})
		if err != nil {
			return nil, err
		}
		o.Events = s.events
	}
	s.limiter = limiter.New(o)
	s.limiter.Swap(s.trees[0], s.settings[0])
	return s, nil
}

func settingsOf(v *differential.Settings) limiter.Settings {
	s := limiter.Settings{
		Shadow: v.Shadow, Quota: v.Quota, StopWhenOver: v.StopWhenOver,
		Admission: descriptor.Admission(v.Admission), OnError: descriptor.OnError(v.OnError), Replicas: v.Replicas,
		Headers:        descriptor.HeaderFamilies(v.Headers),
		CalendarMonths: v.CalendarMonths, HideShadow: v.HideShadow, Metadata: v.Metadata, Explain: v.Explain, NearLimitRatio: v.NearLimitRatio,
	}
	if v.OwnNames {
		s.HeaderNames = limiter.HeaderNames{Limit: "L", Remaining: "R"} // one of the three is left out
	}
	return s
}
