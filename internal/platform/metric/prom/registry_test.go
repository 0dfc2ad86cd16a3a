package prom_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric/prom"
)

// A scrape shows every kind of family as Prometheus' own metrics would show it, with the values at its time.
func TestRegister(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	var requests, held atomic.Int64
	var results [2]atomic.Uint64
	trips := metric.NewDurations([]time.Duration{100 * time.Microsecond, 250 * time.Millisecond})
	metric.Register(prom.With(registry),
		metric.Counter("requests_total", "Requests.", requests.Load),
		metric.Gauge("held", "Permits that are held.", held.Load),
		metric.Counters("results_total", "Results.", "result", []string{"good", "bad"}, results[:]),
		metric.Family{Name: "levels", Help: "Levels by place.", Labels: []string{"row", "seat"}, Levels: func(emit metric.Emit) {
			emit(1.5, "1", "b")
			emit(metric.Bool(true), "1", "a")
		}},
		metric.Family{Name: "trip_seconds", Help: "Time of a trip.", Labels: []string{"node"}, Durations: func(emit metric.EmitDurations) { emit(trips, "n") }},
	)
	other := prom.With(prometheus.WrapRegistererWith(prometheus.Labels{"part": "other"}, registry))
	for _, use := range []string{"one", "two"} {
		other.Register(metric.Family{Name: "uses", Help: "Uses.", Fixed: map[string]string{"use": use}, Levels: func(emit metric.Emit) { emit(1) }})
	}
	requests.Store(3)
	held.Store(-2)
	results[1].Store(1 << 40)
	for _, d := range []time.Duration{0, 100 * time.Microsecond, 100*time.Microsecond + 1, 250 * time.Millisecond, 400 * time.Millisecond} {
		trips.Observe(d)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(`# HELP held Permits that are held.
# TYPE held gauge
held -2
# HELP levels Levels by place.
# TYPE levels gauge
levels{row="1",seat="a"} 1
levels{row="1",seat="b"} 1.5
# HELP requests_total Requests.
# TYPE requests_total counter
requests_total 3
# HELP results_total Results.
# TYPE results_total counter
results_total{result="bad"} 1.099511627776e+12
results_total{result="good"} 0
# HELP trip_seconds Time of a trip.
# TYPE trip_seconds histogram
trip_seconds_bucket{node="n",le="0.0001"} 2
trip_seconds_bucket{node="n",le="0.25"} 4
trip_seconds_bucket{node="n",le="+Inf"} 5
trip_seconds_sum{node="n"} 0.650200001
trip_seconds_count{node="n"} 5
# HELP uses Uses.
# TYPE uses gauge
uses{part="other",use="one"} 1
uses{part="other",use="two"} 1
`)); err != nil {
		t.Error(err)
	}
}

// A value that Prometheus does not accept hides its own series. The scrape reports it and shows the others.
func TestInvalidLabel(t *testing.T) {
	registry := prometheus.NewRegistry()
	prom.With(registry).Register(
		metric.Family{Name: "by_name", Help: "By name.", Labels: []string{"name"}, Counts: func(emit metric.Emit) {
			emit(1, "\xff")
			emit(2, "good")
		}})
	families, err := registry.Gather()
	if err == nil || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("the error is %v", err)
	}
	if len(families) != 1 || len(families[0].Metric) != 1 || families[0].Metric[0].GetCounter().GetValue() != 2 {
		t.Errorf("got %v", families)
	}
}

func TestRegisterTwice(t *testing.T) {
	r := prom.With(prometheus.NewRegistry())
	family := metric.Counter("a_total", "A.", func() int { return 0 })
	r.Register(family)
	defer func() {
		if recover() == nil {
			t.Error("the same family was registered twice")
		}
	}()
	r.Register(family)
}

// Without a registry, packages count and register nothing.
func TestNoRegistry(*testing.T) {
	metric.Register(nil, metric.Counter("a_total", "A.", func() int { return 0 }))
}
