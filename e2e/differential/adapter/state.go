package adapter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
)

// State writes down what processes count: metrics, statistics, hot keys and usage.
func (s *Side) State(now time.Time) {
	families, err := s.registry.Gather()
	s.Text = s.Text.Line("metrics").Error("error", err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			t := s.Text.Line(" " + f.GetName())
			for _, l := range m.GetLabel() {
				t = t.Quoted(l.GetName(), l.GetValue())
			}
			s.Text = fmt.Appendf(t, " %v", m.GetCounter().GetValue()+m.GetGauge().GetValue())
		}
	}
	statistics := make(map[string]uint64)
	s.limiter.Statistics(func(path, stat string, n uint64) { statistics[path+"."+stat] += n })
	for _, name := range slices.Sorted(maps.Keys(statistics)) {
		s.Text = s.Text.Line(" statistic").Uint(name, statistics[name])
	}
	s.Text = append(s.Text.Line("totals "), jsonOf(s.limiter.Totals())...)
	tree, of := s.limiter.RuleTotals()
	for i := range tree.Rules {
		s.Text = append(s.Text.Line(" rule "), jsonOf(of(i))...)
	}
	if s.hot != nil {
		r := s.hot.Top(now, hotkeys.Query{Limit: hotkeys.MaxLimit})
		slices.SortFunc(r.Rules, func(a, b hotkeys.RuleReport) int { return strings.Compare(a.Domain+" "+a.Rule, b.Domain+" "+b.Rule) })
		for i := range r.Rules {
			for _, keys := range [][]hotkeys.Key{r.Rules[i].Used, r.Rules[i].Refused} {
				slices.SortFunc(keys, func(a, b hotkeys.Key) int { return strings.Compare(a.Key, b.Key) })
			}
		}
		s.Text = append(s.Text.Line("hot keys "), jsonOf(r.Rules)...)
	}
	if s.usage != nil {
		s.usage.Flush(context.Background(), now)
	}
}

// End lets everything that waits be answered, and writes down the state and the events.
func (s *Side) End(now time.Time) {
	s.resolve()
	s.State(now)
	if s.events == nil {
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.events.Run(ended) // it sends all that is there, and never fails
	s.Text = append(s.Text.Line("events\n"), s.sent.Bytes()...)
}

// usageStore writes down which descriptors are recorded.
type usageStore Side

// Add implements usage.Store.
func (s *usageStore) Add(_ context.Context, _ time.Time, sets map[string]map[string]int64) (dropped int, err error) {
	for _, set := range slices.Sorted(maps.Keys(sets)) {
		for _, text := range slices.Sorted(maps.Keys(sets[set])) {
			s.Text = s.Text.Line("usage").Quoted("set", set).Quoted("text", text).Int("end", sets[set][text])
		}
	}
	return 0, nil
}

// Page implements usage.Store.
func (s *usageStore) Page(context.Context, time.Time, string, uint64, int) (texts []string, next uint64, err error) {
	return nil, 0, nil
}
