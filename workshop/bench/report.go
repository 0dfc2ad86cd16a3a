package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// measurement is one round of one target.
type measurement struct {
	load loadResult
	cpu  cpuTimes

	trips float64 // round trips to Redis during the round
}

// rate returns answers per second.
func (m measurement) rate() float64 { return float64(m.load.answered) / m.load.took.Seconds() }

// perDecision converts CPU seconds of the round to microseconds per answer.
func (m measurement) perDecision(seconds float64) float64 {
	return seconds * 1e6 / float64(max(m.load.answered, 1))
}

func (m measurement) percentile(p float64) float64 {
	return float64(m.load.latency.ValueAtQuantile(p)) / 1000
}

// busy returns the used share of the cores of the load generator and Redis.
func (m measurement) busy(cores int) float64 {
	return (m.cpu.self + m.cpu.store) / m.load.took.Seconds() / float64(max(cores, 1))
}

// summary has the medians of a target's rounds, one for each column.
type summary struct {
	rate, server, store, p50, p99, busy float64
}

func summarize(rounds []measurement, loadCores int) summary {
	of := func(f func(measurement) float64) float64 {
		values := make([]float64, len(rounds))
		for i, m := range rounds {
			values[i] = f(m)
		}
		return median(values)
	}
	return summary{
		rate:   of(measurement.rate),
		server: of(func(m measurement) float64 { return m.perDecision(m.cpu.server) }),
		store:  of(func(m measurement) float64 { return m.perDecision(m.cpu.store) }),
		p50:    of(func(m measurement) float64 { return m.percentile(50) }),
		p99:    of(func(m measurement) float64 { return m.percentile(99) }),
		busy:   of(func(m measurement) float64 { return m.busy(loadCores) }),
	}
}

// median returns the middle value, or the mean of the two middle values; 0 if there are none.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// saturated is the used share of the other cores above which they, and not the server, limit the throughput.
const saturated = 0.95

func report(out io.Writer, o *options, cores cores, targets []*target) error {
	sums := make([]summary, len(targets))
	var base *summary
	for i, t := range targets {
		sums[i] = summarize(t.rounds, len(cores.load))
		if t.id == baseline {
			base = &sums[i]
		}
	}

	var notes strings.Builder
	fmt.Fprintf(out,
		"\nMedians of %d interleaved rounds of %v; %d connections x %d calls in flight; %d keys; %d descriptor(s) "+
			"a request.\n",
		o.rounds, o.duration, o.connections, o.inFlight, o.keys, o.descriptors)
	if len(cores.server) == 0 {
		fmt.Fprintln(out, "Nothing is bound to cores: the servers and the load generator compete.")
	} else {
		fmt.Fprintf(out, "Each server has one core; the load generator and Redis share %d.\n", len(cores.load))
	}
	fmt.Fprintln(out)

	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, "|\t"+strings.Join(cells, "\t|\t")+"\t|") }
	row("", "target", "decisions/s", "server us", "Redis us", "p50 ms", "p99 ms", "rate to ("+baseline+")",
		"server CPU to ("+baseline+")")
	row("---", "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:")
	for i, t := range targets {
		s := sums[i]
		store, rate, cpu := "", "", ""
		if len(t.stores) > 0 {
			store = fmt.Sprintf("%.2f", s.store)
		}
		if base != nil {
			rate, cpu = fmt.Sprintf("%.2fx", s.rate/base.rate), fmt.Sprintf("%.2fx", s.server/base.server)
		}
		row(t.id, t.name, fmt.Sprintf("%.0f", s.rate), fmt.Sprintf("%.2f", s.server), store,
			fmt.Sprintf("%.2f", s.p50), fmt.Sprintf("%.2f", s.p99), rate, cpu)
		if s.busy >= saturated {
			fmt.Fprintf(&notes,
				"(%s): the cores of the load generator and Redis were busy %.0f %% of the time and bound the throughput; the CPU "+
					"figures stand.\n",
				t.id, 100*s.busy)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if notes.Len() > 0 {
		fmt.Fprintf(out, "\n%s", notes.String())
	}
	return nil
}
