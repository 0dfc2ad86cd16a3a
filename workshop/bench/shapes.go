package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

// shape is a load like in production: calm, from many clients, with Envoy's headers, on many rules, on several
// replicas.
type shape struct {
	name        string
	connections int     // 0: the number of -connections
	inFlight    int     // 0: the number of -in-flight
	rate        float64 // calls a second in an open loop; 0: a closed loop
	half        bool    // an open loop at half the rate that the first shape has reached in this round
	envoy       bool
	tracing     envoytest.Tracing
	setup

	onlyRedis bool // measured in Redis only, because replicas and nodes change nothing in memory
}

// shapes has the usual load of this program first, with which the others are compared.
var shapes = []shape{
	{name: "full load"},
	{name: "1 connection, 1 call in flight", connections: 1, inFlight: 1},
	{name: "64 connections, 1 call in flight", connections: 64, inFlight: 1},
	{name: "open loop, 1,000 calls a second", rate: 1_000},
	{name: "open loop, 5,000 calls a second", rate: 5_000},
	{name: "open loop, half of full load", half: true},
	{name: "Envoy's headers", envoy: true},
	{name: "Envoy's headers, OpenTelemetry", envoy: true, tracing: envoytest.OpenTelemetry},
	{name: "Envoy's headers, Zipkin", envoy: true, tracing: envoytest.Zipkin},
	{name: "100 rules", setup: setup{values: 100}},
	{name: "10,000 rules", setup: setup{values: 10_000}},
	{name: "100,000 rules", setup: setup{values: 100_000}},
	{name: "mTLS", setup: setup{mtls: true}},
	{name: "2 replicas on one Redis", setup: setup{processes: 2}, onlyRedis: true},
	{name: "Redis Cluster, 3 nodes", setup: setup{nodes: 3}, onlyRedis: true},
}

// shapeRun is a shape on a target.
type shapeRun struct {
	*shape

	target *target
	rounds []measurement
}

// shapeTargets returns the first shape and those whose names match a regular expression, each in memory, on Redis and,
// unless it is empty, in the other program, and the targets that they need.
func shapeTargets(names, other string) (targets []*target, runs []*shapeRun, err error) {
	matching, err := regexp.Compile(names)
	if err != nil {
		return nil, nil, fmt.Errorf("-shapes: %w", err)
	}
	counting := []target{{binary: "ratelimitd"}, {binary: "ratelimitd", redis: true}}
	if other != "" {
		counting = append(counting, target{binary: other, other: true, redis: true})
	}
	for _, in := range counting {
		known := make(map[setup]*target)
		for i := range shapes {
			s := &shapes[i]
			if s.onlyRedis && !in.redis || i > 0 && !matching.MatchString(s.name) {
				continue
			}
			t := known[s.setup]
			if t == nil {
				t = new(in)
				t.id, t.name, t.rules, t.setup = fmt.Sprint("s", len(targets)), s.name, true, s.setup
				known[s.setup] = t
				targets = append(targets, t)
			}
			runs = append(runs, &shapeRun{shape: s, target: t})
		}
	}
	return targets, runs, nil
}

// measureShapes measures all shapes in every round.
func measureShapes(ctx context.Context, out io.Writer, o *options, runs []*shapeRun) error {
	for round := range o.rounds {
		fmt.Fprintf(out, "round %d of %d\n", round+1, o.rounds)
		full := 0.0
		for _, r := range runs {
			m, err := r.measure(ctx, *o, full/2)
			if err != nil {
				return fmt.Errorf("measure %s: %w", r.name, err)
			}
			if r.shape == &shapes[0] {
				full = m.rate()
			}
			r.rounds = append(r.rounds, m)
		}
	}
	return nil
}

// measure measures a shape once.
func (r *shapeRun) measure(ctx context.Context, o options, half float64) (measurement, error) {
	if r.connections > 0 {
		o.connections, o.inFlight = r.connections, r.inFlight
	}
	keys := o.keys
	if r.values > 0 {
		keys = r.values
	}
	p := newPayload(keys, o.descriptors)
	p.envoy, p.tracing = r.envoy, r.tracing
	rate := r.rate
	if r.half {
		rate = half
	}
	if rate > 0 {
		return measureAt(ctx, r.target, &o, p, rate)
	}
	return measure(ctx, r.target, &o, p)
}

// reportShapes prints a row for each shape, in memory and on Redis.
func reportShapes(out io.Writer, o *options, cores cores, runs []*shapeRun) error {
	fmt.Fprintf(out,
		"\nMedians of %d interleaved rounds of %v; %d connections x %d calls in flight, unless the shape says else; %d "+
			"keys; %d descriptor(s) a request.\n",
		o.rounds, o.duration, o.connections, o.inFlight, o.keys, o.descriptors)
	fmt.Fprintf(out,
		"to full load: the CPU of the server and of Redis, per decision, as a number of those of the first shape in the "+
			"same round.\n\n")
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, "|\t"+strings.Join(cells, "\t|\t")+"\t|") }
	row("shape", "counts in", "decisions/s", "server us", "Redis us", "Redis trips", "p50 ms", "p99 ms", "to full load")
	row("---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:")
	var full *shapeRun
	for _, r := range runs {
		if r.shape == &shapes[0] {
			full = r
		}
		s := summarize(r.rounds, len(cores.load))
		in, store, trips := "memory", "", ""
		if r.target.redis {
			in, store, trips = "Redis", fmt.Sprintf("%.2f", s.store), fmt.Sprintf("%.4f", tripsPerDecision(r.rounds))
		}
		if r.target.other {
			in = filepath.Base(r.target.binary)
		}
		var ratios []float64
		for i, m := range r.rounds {
			f := full.rounds[i]
			ratios = append(ratios, m.perDecision(m.cpu.server+m.cpu.store)/f.perDecision(f.cpu.server+f.cpu.store))
		}
		row(r.name, in, fmt.Sprintf("%.0f", s.rate), fmt.Sprintf("%.2f", s.server), store, trips,
			fmt.Sprintf("%.2f", s.p50), fmt.Sprintf("%.2f", s.p99), fmt.Sprintf("%.2fx", median(ratios)))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
