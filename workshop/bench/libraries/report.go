package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// table prints a markdown table.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer, columns ...string) table {
	t := table{tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)}
	t.row(columns...)
	line := make([]string, len(columns))
	for i := range line {
		line[i] = "---:"
	}
	line[0] = "---"
	t.row(line...)
	return t
}

func (t table) row(cells ...string) { fmt.Fprintln(t.w, "|\t"+strings.Join(cells, "\t|\t")+"\t|") }

// quantile returns a value of which the share p of the values is not larger; 0 if there are none.
func quantile(values []float64, p float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.SortedFunc(slices.Values(values), cmp.Compare)
	at := p * float64(n-1)
	low := int(at)
	high := min(low+1, n-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

func (m *measured) values(f func(round) float64) []float64 {
	values := make([]float64, len(m.rounds))
	for i, r := range m.rounds {
		values[i] = f(r)
	}
	return values
}

func (m *measured) median(f func(round) float64) float64 { return quantile(m.values(f), 0.5) }

// ratio returns the median, over the rounds, of the ratio of a round to the round of another library in the same minute.
func (m *measured) ratio(to *measured, f func(round) float64) float64 {
	values := make([]float64, min(len(m.rounds), len(to.rounds)))
	for i := range values {
		values[i] = f(m.rounds[i]) / f(to.rounds[i])
	}
	return quantile(values, 0.5)
}

// least returns the library with the smallest median, of the others if there are any.
func least(all []*measured, f func(round) float64) *measured {
	others := slices.DeleteFunc(slices.Clone(all), func(m *measured) bool { return strings.HasPrefix(m.name, own) })
	if len(others) == 0 {
		others = all
	}
	return slices.MinFunc(others, func(a, b *measured) int { return cmp.Compare(a.median(f), b.median(f)) })
}

func number(f float64) string {
	switch {
	case f == float64(int(f)) && f < 1000:
		return strconv.Itoa(int(f))
	case f >= 999.5:
		text := fmt.Sprintf("%.0f", f)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	case f >= 100:
		return fmt.Sprintf("%.0f", f)
	case f >= 10:
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.2f", f)
}

// reportMemory prints what decisions cost in memory.
func reportMemory(out io.Writer, all []*measured, s shape) error {
	ns := func(r round) float64 { return r.ns(s.goroutines) }
	cpu := func(r round) float64 { return float64(r.cpu.Nanoseconds()) / float64(max(r.decisions, 1)) }
	allocs := func(r round) float64 { return r.per(r.allocs) }
	bytes := func(r round) float64 { return r.per(r.bytes) }
	fastest, cheapest := least(all, ns), least(all, cpu)
	t := newTable(out, "library", "ns", "middle half of rounds", "CPU ns", "ns to the fastest other", "CPU to the least other", "allocations", "bytes", "bytes a key")
	for _, m := range all {
		times := m.values(ns)
		memory := ""
		if s.keys > 1 {
			memory = number(m.memory)
		}
		t.row(m.name, number(m.median(ns)), number(quantile(times, 0.25))+" to "+number(quantile(times, 0.75)), number(m.median(cpu)),
			fmt.Sprintf("%.2fx", m.ratio(fastest, ns)), fmt.Sprintf("%.2fx", m.ratio(cheapest, cpu)),
			fmt.Sprintf("%.1f", m.median(allocs)), fmt.Sprintf("%.0f", m.median(bytes)), memory)
	}
	return t.w.Flush()
}

// reportRedis prints what decisions cost with Redis.
func reportRedis(out io.Writer, all []*measured) error {
	rate := func(r round) float64 { return r.rate() }
	perDecision := func(r round) float64 { return 1e9 / r.rate() }
	cpu := func(r round) float64 { return float64(r.cpu.Microseconds()) / float64(max(r.decisions, 1)) }
	redis := func(r round) float64 { return float64(r.redis.Microseconds()) / float64(max(r.decisions, 1)) }
	allocs := func(r round) float64 { return r.per(r.allocs) }
	failed := func(r round) float64 { return float64(r.errors) / float64(max(r.errors+r.decisions, 1)) }
	fastest := least(all, perDecision)
	t := newTable(out, "library", "decisions/s", "middle half of rounds", "to the fastest other", "CPU us", "Redis CPU us", "allocations", "errors")
	for _, m := range all {
		rates := m.values(rate)
		t.row(m.name, number(m.median(rate)), number(quantile(rates, 0.25))+" to "+number(quantile(rates, 0.75)),
			fmt.Sprintf("%.2fx", m.ratio(fastest, rate)), number(m.median(cpu)), number(m.median(redis)),
			fmt.Sprintf("%.0f", m.median(allocs)), fmt.Sprintf("%.1f %%", 100*m.median(failed)))
	}
	return t.w.Flush()
}

// reportPromises prints what was admitted beyond what the algorithms may admit.
func reportPromises(out io.Writer, all []excess) error {
	t := newTable(out, "library", "its algorithm may admit", "admitted", "most above that", "mean above that", "runs above that", "errors a run")
	for _, e := range all {
		sum, worst, above := 0, 0, 0
		for i, n := range e.admitted {
			beyond := max(n-e.promised[i], 0)
			sum, worst = sum+beyond, max(worst, beyond)
			if beyond > 0 {
				above++
			}
		}
		runs := len(e.admitted)
		t.row(e.name, number(quantile(floats(e.promised), 0.5)), number(quantile(floats(e.admitted), 0.5)), number(float64(worst)),
			number(float64(sum)/float64(runs)), fmt.Sprintf("%d of %d", above, runs), number(float64(e.errors)/float64(runs)))
	}
	return t.w.Flush()
}

func floats(all []int) []float64 {
	values := make([]float64, len(all))
	for i, n := range all {
		values[i] = float64(n)
	}
	return values
}

// reportSpans prints the most that was admitted in one second.
func reportSpans(out io.Writer, all []spans) error {
	t := newTable(out, "library", "median", "most", "most to the limit", "errors a run")
	for _, e := range all {
		worst := slices.Max(e.admitted)
		t.row(e.name, number(quantile(floats(e.admitted), 0.5)), number(float64(worst)), fmt.Sprintf("%.2fx", float64(worst)/spanLimit),
			fmt.Sprintf("%.0f", float64(e.errors)/float64(len(e.admitted))))
	}
	return t.w.Flush()
}

// reportRoom prints what was decided wrongly for want of places.
func reportRoom(out io.Writer, all []crowd) error {
	t := newTable(out, "library", "admitted above the limit", "denied within the limit")
	for _, c := range all {
		t.row(c.name, number(float64(c.admitted)), number(float64(c.refused)))
	}
	return t.w.Flush()
}

// reportExact prints what was admitted beyond the limit.
func reportExact(out io.Writer, all []exactness) error {
	t := newTable(out, "library", "least admitted", "most admitted", "most above the limit", "mean above the limit", "errors a run")
	for _, e := range all {
		sum, worst := 0, 0
		for _, n := range e.admitted {
			sum += max(n-exactLimit, 0)
			worst = max(worst, n-exactLimit)
		}
		runs := float64(len(e.admitted))
		t.row(e.name, fmt.Sprint(slices.Min(e.admitted)), fmt.Sprint(slices.Max(e.admitted)), fmt.Sprint(worst),
			fmt.Sprintf("%.1f", float64(sum)/runs), fmt.Sprintf("%.0f", float64(e.errors)/runs))
	}
	return t.w.Flush()
}
