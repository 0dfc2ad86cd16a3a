package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// mostAbove is the most memory above idle that the server may use during an attack, in bytes.
const mostAbove = 300 << 20

// mostUncounted is how many bytes the server may hold for clients without counting them, plus a fifth of its heap.
const mostUncounted = 32 << 20

// report prints the table.
func report(out io.Writer, all []*outcome) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w,
		"\n| attack\t| RSS idle\t| highest\t| at the end\t| heap idle\t| attacked\t| of clients\t| victim\t| p99 before\t| "+
			"during\t| after\t| answered during\t| recovery\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range all {
		for _, v := range r.victims {
			recovery := "none"
			if v.recovered {
				recovery = v.recovery.String()
			}
			fmt.Fprintf(w, "| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %.1f %%\t| %s\t|\n",
				r.scenario.name, megabytes(r.idle), megabytes(r.peak), megabytes(r.left), megabytes(r.own.live),
				megabytes(r.kept.live), megabytes(r.kept.clients), v.name,
				short(v.before.p99), short(v.during.p99), short(v.after.p99), 100*v.during.answered, recovery)
		}
	}
	return w.Flush()
}

func megabytes(n int64) string { return fmt.Sprintf("%d MB", n>>20) }

func short(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

// leastAnswered is the part of a victim's calls that is answered during an attack. A second and a half is too short for
// it: a new connection replaces only one that is a second old.
const leastAnswered = 0.9

// verdict returns an error if the attack harmed the server or its clients: too much memory, a server that ended, or
// calls without an answer. Latency does not count, because it depends on the machine.
func (r *outcome) verdict(short bool) error {
	failed := []error{r.ended}
	say := func(format string, args ...any) {
		failed = append(failed, fmt.Errorf("%s: %s", r.scenario.name, fmt.Sprintf(format, args...)))
	}
	if above := r.peak - r.idle; above > mostAbove {
		say("the server took %s more than idle", megabytes(above))
	}
	if uncounted := r.kept.live - r.own.live - r.kept.clients; uncounted > mostUncounted+r.kept.live/5 {
		say("the server keeps %s for clients that it does not count", megabytes(uncounted))
	}
	for _, v := range r.victims {
		if v.before.answered < 0.99 {
			say("%s: %.1f %% of the calls were answered before the attack", v.name, 100*v.before.answered)
		}
		if v.during.answered == 0 || !short && v.during.answered < leastAnswered {
			say("%s: %.1f %% of the calls were answered during the attack", v.name, 100*v.during.answered)
		}
		if v.after.answered < leastAnswered {
			say("%s: %.1f %% of the calls were answered after the attack", v.name, 100*v.after.answered)
		}
	}
	return errors.Join(failed...)
}
