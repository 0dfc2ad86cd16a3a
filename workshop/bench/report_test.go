package main

import (
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 100}, 3}} {
		if got := median(c.values); got != c.want {
			t.Errorf("the median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

func round(answered int64, server, store float64) measurement {
	latency := newHistogram()
	for range 10 {
		_ = latency.RecordValue(2000) // within the histogram's range
	}
	return measurement{
		load: loadResult{answered: answered, took: 2 * time.Second, latency: latency},
		cpu:  cpuTimes{server: server, store: store, self: 1.99},
	}
}

func targetOf(t *testing.T, id string) *target {
	t.Helper()
	chosen, err := choose(allTargets(), id)
	if err != nil {
		t.Fatal(err)
	}
	return chosen[0]
}

func TestReport(t *testing.T) {
	base, onRedis := targetOf(t, "a"), targetOf(t, "c")
	base.rounds = []measurement{round(200_000, 2, 0), round(100_000, 1, 0), round(400_000, 4, 0)}
	onRedis.stores = []store{{process: &process{}}}
	onRedis.rounds = []measurement{round(50_000, 2, 1)}
	var out strings.Builder
	o := &options{rounds: 3, duration: 2 * time.Second, connections: 8, inFlight: 16, keys: 10, descriptors: 1}
	if err := report(&out, o, cores{server: []int{0}, load: []int{1}}, []*target{base, onRedis}); err != nil {
		t.Fatal(err)
	}
	// 200,000 answers in 2 s for 2 s of CPU; on Redis a quarter of the rate, at four times the CPU, plus 20 us there.
	for _, want := range []string{
		"| a   | empty gRPC server, tuned | 100000      | 10.00     |          | 2.00   | 2.00   | 1.00x       | 1.00x             |",
		"| c   | ratelimitd, Redis        | 25000       | 40.00     | 20.00    | 2.00   | 2.00   | 0.25x       | 4.00x             |",
		"(a): the cores of the load generator and Redis were busy",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestChoose(t *testing.T) {
	some, err := choose(allTargets(), "c,a")
	if err != nil || len(some) != 2 || some[0].id != "a" || some[1].id != "c" {
		t.Errorf("chose %v, %v; want a and c", some, err)
	}
	if all, err := choose(allTargets(), ""); err != nil || len(all) != len(allTargets()) {
		t.Errorf("chose %d targets, %v; want all", len(all), err)
	}
	for _, wrong := range []string{"z", "a,z", "a,a"} {
		if _, err := choose(allTargets(), wrong); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := options{rounds: 1, duration: time.Second, connections: 1, inFlight: 1, keys: 1, descriptors: 1}
	if err := good.check(); err != nil {
		t.Errorf("%+v is denied: %v", good, err)
	}
	for _, spoil := range []func(*options){
		func(o *options) { o.rounds = 0 },
		func(o *options) { o.duration = 0 },
		func(o *options) { o.connections = 0 },
		func(o *options) { o.inFlight = -1 },
		func(o *options) { o.keys = 0 },
		func(o *options) { o.keys = maxKeys + 1 },
		func(o *options) { o.descriptors = maxDescriptors + 1 },
		func(o *options) { o.rate = -1 },
		func(o *options) { o.rate, o.half = 1, "a" },
		func(o *options) { o.reserving, o.descriptors = true, 2 },
	} {
		o := good
		spoil(&o)
		if o.check() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}
