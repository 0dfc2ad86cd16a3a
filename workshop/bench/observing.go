package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// unsampled is the traceparent of a caller whose trace is not recorded.
const unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"

// observingTargets count in memory, where a decision is cheapest, and observe nothing, one thing, or all.
func observingTargets() []*target {
	const (
		noMetrics = "RATELIMITD_NO_METRICS=true"
		noHotKeys = "RATELIMITD_HOT_KEYS=0"
		tracing   = "TRACING_ENABLED=true"
		never     = "TRACING_SAMPLING_RATE=0"
	)
	newTarget := func(id, name string, env ...string) *target {
		return &target{id: id, name: name, binary: "ratelimitd", rules: true, env: env}
	}
	return []*target{
		newTarget("n", "nothing observed", noMetrics, noHotKeys),
		newTarget("n2", "the same again: the noise", noMetrics, noHotKeys),
		newTarget("m", "metrics", noHotKeys),
		newTarget("h", "hot keys", noMetrics),
		newTarget("t", "tracing, not sampled", noMetrics, noHotKeys, tracing, never),
		newTarget("o", "metrics, hot keys and tracing", tracing, never),
	}
}

// observe measures all targets in every round, in changing order. Connections stay open, so rounds can be short and
// many, which shows small differences even on a busy machine.
func observe(ctx context.Context, o *options, targets []*target, p *payload) error {
	if o.traceparent != "" {
		p.headers = []string{"traceparent", o.traceparent}
	}
	loads := make([]*load, len(targets))
	for i, t := range targets {
		l, err := dialLoad(ctx, t.peers, o.connections, o.inFlight, p)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", t.name, err)
		}
		defer l.close()
		loads[i] = l
		if _, err := l.run(ctx, 500*time.Millisecond); err != nil { // counters are made, tables grow
			return fmt.Errorf("warm up %s: %w", t.name, err)
		}
	}
	for round := range o.rounds {
		for i := range targets {
			i = (i + round) % len(targets)
			m, err := measureWith(targets[i], o, loads[i], func(l *load, d time.Duration) (loadResult, error) { return l.run(ctx, d) })
			if err != nil {
				return fmt.Errorf("measure %s: %w", targets[i].name, err)
			}
			targets[i].rounds = append(targets[i].rounds, m)
		}
	}
	return nil
}

// reportObserving prints how much more each target costs than the first one. It compares within each round, because
// other work on the machine changes least within a round.
func reportObserving(out io.Writer, o *options, targets []*target) error {
	base := targets[0]
	fmt.Fprintf(out, "\nServer CPU per decision, user and system; medians of %d interleaved rounds of %v; %d connections x %d calls in flight; %d keys; %d descriptor(s) a request.\n",
		o.rounds, o.duration, o.connections, o.inFlight, o.keys, o.descriptors)
	fmt.Fprintf(out, "more than (%s): how much more a decision costs than under (%s), the median of all rounds. half of the rounds: the range of the middle half.\n\n", base.id, base.id)

	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, "|\t"+strings.Join(cells, "\t|\t")+"\t|") }
	row("", "observed", "server us", "more than ("+base.id+")", "half of the rounds")
	row("---", "---", "---:", "---:", "---:")
	for _, t := range targets {
		if len(t.rounds) != len(base.rounds) {
			return errors.New("report: not every target was measured in every round")
		}
		us := make([]float64, len(t.rounds))
		more := make([]float64, len(t.rounds))
		for i, m := range t.rounds {
			us[i] = m.perDecision(m.cpu.server)
			b := base.rounds[i]
			more[i] = 100 * (us[i]/b.perDecision(b.cpu.server) - 1)
		}
		if t == base {
			row(t.id, t.name, fmt.Sprintf("%.2f", median(us)), "", "")
			continue
		}
		slices.Sort(more)
		row(t.id, t.name, fmt.Sprintf("%.2f", median(us)), fmt.Sprintf("%+.1f %%", median(more)),
			fmt.Sprintf("%+.1f to %+.1f %%", more[len(more)/4], more[len(more)-1-len(more)/4]))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
