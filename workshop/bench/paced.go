package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// runAt sends calls at a fixed average rate, whether or not the server answers: an open loop, like independent clients.
// Latency is measured from the moment a call was due, so calls that a slow server delays count in full.
func (l *load) runAt(ctx context.Context, rate float64, d time.Duration) (loadResult, error) {
	stop, err := wakeEvery(timerLateness)
	if err != nil {
		return loadResult{}, err
	}
	defer stop()
	every := time.Duration(float64(time.Second) * float64(len(l.connections)) / rate)
	return l.drive(ctx, d, func(c *connection, start time.Time) error { return c.paced(start, start.Add(d), every) })
}

// timerLateness is how late a call may be sent. It is part of the latency that is measured.
const timerLateness = 50 * time.Microsecond

// stalled is the longest time without any answer.
const stalled = 10 * time.Second

// paced sends calls at random moments, at an average interval, and returns when the last one is answered.
func (c *connection) paced(start, until time.Time, every time.Duration) error {
	c.answered, c.latency = 0, newHistogram()
	defer func() { _ = c.conn.SetReadDeadline(time.Time{}) }() // a closed connection shows in the next call
	wait := func() time.Duration { return time.Duration(c.random.ExpFloat64() * float64(every)) }
	due := start.Add(wait())
	for {
		for due.Before(until) && !time.Now().Before(due) && c.window >= c.largest() {
			if err := c.sendDue(due); err != nil {
				return err
			}
			due = due.Add(wait())
		}
		if err := c.out.Flush(); err != nil {
			return err
		}
		sending := due.Before(until)
		if !sending && len(c.sent) == 0 {
			return nil
		}
		deadline := time.Now().Add(stalled)
		if sending && c.window >= c.largest() {
			deadline = due
		}
		framed, err := c.await(deadline)
		switch {
		case err != nil:
			return err
		case !framed && deadline != due:
			return fmt.Errorf("no answer within %v", stalled)
		}
		for ; framed; framed = c.framed() {
			if err := c.receive(); err != nil {
				return err
			}
		}
	}
}

// await waits until a whole frame has been read from the socket, or a deadline passes.
func (c *connection) await(deadline time.Time) (framed bool, err error) {
	if err := c.conn.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	for !c.framed() {
		if _, err := c.in.Peek(c.in.Buffered() + 1); err != nil {
			var timeout net.Error
			if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded) {
				return false, nil
			}
			return false, fmt.Errorf("read a frame: %w", err)
		}
	}
	return true, nil
}

// measureAt loads a target once at a rate.
func measureAt(ctx context.Context, t *target, o *options, p *payload, rate float64) (measurement, error) {
	return measureLoad(ctx, t, o, p, func(l *load, d time.Duration) (loadResult, error) { return l.runAt(ctx, rate, d) })
}

// paceAll measures all targets at a rate, round by round.
func paceAll(ctx context.Context, out io.Writer, o *options, targets []*target, p *payload, rate float64) error {
	fmt.Fprintf(out, "\nopen loop, %.0f calls a second:", rate)
	for round := range o.rounds {
		fmt.Fprintf(out, " %d", round+1)
		for _, t := range targets {
			m, err := measureAt(ctx, t, o, p, rate)
			if err != nil {
				return fmt.Errorf("measure %s at %.0f/s: %w", t.name, rate, err)
			}
			t.paced = append(t.paced, m)
		}
	}
	fmt.Fprintf(out, " of %d\n", o.rounds)
	return nil
}

// pace returns the rate of the open loop: the given one, or half the rate that a target reached in the closed loop; 0
// disables the open loop.
func (o *options) pace(targets []*target) (float64, error) {
	if o.half == "" {
		return o.rate, nil
	}
	for _, t := range targets {
		if t.id == o.half {
			return summarize(t.rounds, 1).rate / 2, nil
		}
	}
	return 0, fmt.Errorf("-half %s: that target is not measured", o.half)
}

// reportPaced prints the results of the open loop.
func reportPaced(out io.Writer, o *options, cores cores, targets []*target, rate float64) error {
	what := "as -rate says"
	if o.half != "" {
		what = "half of what (" + o.half + ") reached above"
	}
	fmt.Fprintf(out, "\nOpen loop, %.0f calls a second: %s. Latencies count from when a call was due.\n\n", rate, what)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	row := func(cells ...string) { fmt.Fprintln(w, "|\t"+strings.Join(cells, "\t|\t")+"\t|") }
	row("", "target", "decisions/s", "server us", "Redis us", "Redis trips", "p50 ms", "p99 ms")
	row("---", "---", "---:", "---:", "---:", "---:", "---:", "---:")
	for _, t := range targets {
		s := summarize(t.paced, len(cores.load))
		store, trips := "", ""
		if len(t.stores) > 0 {
			store, trips = fmt.Sprintf("%.2f", s.store), fmt.Sprintf("%.4f", tripsPerDecision(t.paced))
		}
		row(t.id, t.name, fmt.Sprintf("%.0f", s.rate), fmt.Sprintf("%.2f", s.server), store, trips,
			fmt.Sprintf("%.2f", s.p50), fmt.Sprintf("%.2f", s.p99))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// tripsPerDecision is the median over rounds.
func tripsPerDecision(rounds []measurement) float64 {
	var values []float64
	for _, m := range rounds {
		values = append(values, m.trips/float64(max(m.load.answered, 1)))
	}
	return median(values)
}

// reportTrips prints the trips to Redis in the closed loop.
func reportTrips(out io.Writer, targets []*target) {
	var trips []string
	for _, t := range targets {
		if len(t.stores) > 0 {
			trips = append(trips, fmt.Sprintf("(%s) %.4f", t.id, tripsPerDecision(t.rounds)))
		}
	}
	if len(trips) > 0 {
		fmt.Fprintf(out, "\nRedis trips for each decision: %s.\n", strings.Join(trips, ", "))
	}
}
