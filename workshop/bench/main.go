// Command bench measures the cost of a decision. It compares ratelimitd on memory and on Redis with gRPC servers whose
// handler does nothing. It builds all servers, starts them as separate processes (on a separate core if there are two),
// sends pre-encoded requests in a closed loop, and prints medians of interleaved rounds as a markdown table.
//
// With -reservations, it measures the cost of a reservation with its commit; with -shapes, the cost of loads like those
// of production.
//
// docs/contributing/measuring.md explains the figures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	rounds      int
	duration    time.Duration
	warmup      time.Duration
	connections int
	inFlight    int
	keys        int
	descriptors int
	only        string
	reserving   bool
	shaped      string
	other       string

	rate float64 // rate of the open loop, calls per second
	half string  // id of a target: the open loop runs at half the rate that this target reaches
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 5, "how often every target is measured; the report has the median")
	flag.DurationVar(&o.duration, "duration", 3*time.Second, "how long one measurement takes")
	flag.DurationVar(&o.warmup, "warmup", 500*time.Millisecond, "how long a target is loaded before each measurement")
	flag.IntVar(&o.connections, "connections", 8, "connections of the load generator")
	flag.IntVar(&o.inFlight, "in-flight", 16, "calls in flight on each connection")
	flag.IntVar(&o.keys, "keys", 100_000, "different values of each descriptor, uniformly drawn; 1 is one hot key")
	flag.IntVar(&o.descriptors, "descriptors", 1, "descriptors of each request")
	flag.StringVar(&o.only, "only", "", "targets to measure, by id, comma-separated; all if empty")
	flag.Float64Var(&o.rate, "rate", 0, "measure again in an open loop at this rate, in calls per second; 0: do not")
	flag.StringVar(&o.half, "half", "", "the same, with half of what the target with this id reached")
	flag.BoolVar(&o.reserving, "reservations", false,
		"measure what a reservation with its commit costs, and a check with a charge, as a number of plain decisions")
	flag.StringVar(&o.shaped, "shapes", "",
		"measure loads as production has them, those whose names match this regular expression; . for all")
	flag.StringVar(&o.other, "other", "",
		"with -shapes: a program that reads the same rules and settings, such as a build of envoyproxy/ratelimit, to "+
			"measure in the same rounds")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	switch {
	case o.rounds < 1, o.connections < 1, o.inFlight < 1, o.duration <= 0, o.warmup < 0:
		return errors.New("-rounds, -connections, -in-flight and -duration must be positive")
	case o.keys < 1 || o.keys > maxKeys:
		return fmt.Errorf("-keys must be between 1 and %d", maxKeys)
	case o.descriptors < 1 || o.descriptors > maxDescriptors:
		return fmt.Errorf("-descriptors must be between 1 and %d", maxDescriptors)
	}
	if o.reserving && (o.descriptors != 1 || o.rate != 0 || o.half != "") {
		return errors.New("-reservations cannot be given with -descriptors, -rate or -half")
	}
	if o.shaped != "" && (o.reserving || o.only != "" || o.rate != 0 || o.half != "") {
		return errors.New("-shapes cannot be given with -reservations, -only, -rate or -half")
	}
	if o.other != "" && o.shaped == "" {
		return errors.New("-other needs -shapes")
	}
	if o.rate < 0 || o.rate > 0 && o.half != "" {
		return errors.New("-rate must not be negative, and not be given with -half")
	}
	return nil
}

func run(ctx context.Context, o *options, out io.Writer) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	all := allTargets()
	if o.reserving {
		all = reservationTargets()
	}
	var shaped []*shapeRun
	if o.shaped != "" {
		if all, shaped, err = shapeTargets(o.shaped, o.other); err != nil {
			return err
		}
	}
	targets, err := choose(all, o.only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ratelimitd-bench-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	cores := assignCores()
	if err := cores.pinSelf(); err != nil {
		return err
	}
	fmt.Fprintln(out, "building the servers")
	if err := build(ctx, dir); err != nil {
		return err
	}
	defer func() {
		for _, t := range targets {
			err = errors.Join(err, t.stop())
		}
	}()
	for _, t := range targets {
		if err := t.start(ctx, dir, o, cores); err != nil {
			return fmt.Errorf("start %s: %w", t.name, err)
		}
	}

	if o.reserving {
		loads, err := measureReservations(ctx, o, targets)
		if err != nil {
			return err
		}
		return reportReservations(out, o, loads)
	}
	if o.shaped != "" {
		if err := measureShapes(ctx, out, o, shaped); err != nil {
			return err
		}
		return reportShapes(out, o, cores, shaped)
	}
	payload := newPayload(o.keys, o.descriptors)
	for round := range o.rounds {
		fmt.Fprintf(out, "round %d of %d:", round+1, o.rounds)
		for _, t := range targets {
			m, err := measure(ctx, t, o, payload)
			if err != nil {
				return fmt.Errorf("measure %s: %w", t.name, err)
			}
			t.rounds = append(t.rounds, m)
			fmt.Fprintf(out, "  %s %.0f/s %.2f us", t.id, m.rate(), m.perDecision(m.cpu.server))
		}
		fmt.Fprintln(out)
	}
	if err := report(out, o, cores, targets); err != nil {
		return err
	}
	reportTrips(out, targets)
	rate, err := o.pace(targets)
	if err != nil || rate == 0 {
		return err
	}
	if err := paceAll(ctx, out, o, targets, payload, rate); err != nil {
		return err
	}
	return reportPaced(out, o, cores, targets, rate)
}

// measure loads a target once.
func measure(ctx context.Context, t *target, o *options, p *payload) (measurement, error) {
	return measureLoad(ctx, t, o, p, func(l *load, d time.Duration) (loadResult, error) { return l.run(ctx, d) })
}

// measureLoad loads a target once with run.
func measureLoad(ctx context.Context, t *target, o *options, p *payload,
	run func(*load, time.Duration) (loadResult, error)) (measurement, error) {
	l, err := dialLoad(ctx, t.peers, o.connections, o.inFlight, p)
	if err != nil {
		return measurement{}, err
	}
	defer l.close()
	return measureWith(t, o, l, run)
}

// measureWith loads a target once, over open connections.
func measureWith(t *target, o *options, l *load, run func(*load, time.Duration) (loadResult,
	error)) (measurement, error) {
	if o.warmup > 0 {
		if _, err := run(l, o.warmup); err != nil {
			return measurement{}, err
		}
	}
	before, err := t.cpu()
	if err != nil {
		return measurement{}, err
	}
	tripsBefore, err := t.trips()
	if err != nil {
		return measurement{}, err
	}
	result, err := run(l, o.duration)
	if err != nil {
		return measurement{}, err
	}
	after, err := t.cpu()
	if err != nil {
		return measurement{}, err
	}
	tripsAfter, err := t.trips()
	if err != nil {
		return measurement{}, err
	}
	return measurement{load: result, cpu: after.since(before), trips: tripsAfter - tripsBefore}, nil
}

// choose returns the selected targets, in their order.
func choose(all []*target, only string) ([]*target, error) {
	if only == "" {
		return all, nil
	}
	wanted := strings.Split(only, ",")
	var chosen []*target
	for _, t := range all {
		if i := slices.Index(wanted, t.id); i >= 0 {
			chosen = append(chosen, t)
			wanted = slices.Delete(wanted, i, i+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("-only %s: there is no target %q, or it is named twice", only, wanted)
	}
	return chosen, nil
}
