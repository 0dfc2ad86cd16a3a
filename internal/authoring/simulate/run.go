package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Options are the inputs of Run. Rules, Mapping and Logs are required.
type Options struct {
	Rules     Rules
	Against   *Rules // the old rules to compare with; nil compares nothing
	Overrides string // the file that the overrides of both are from, for the report; empty without overrides
	Settings  limiter.Settings
	Mapping   *accesslog.Mapping
	Logs      []Log

	// Duration is how long each request is in flight, in whole milliseconds. For this time a request keeps its place under
	// a concurrency limit. 0 means as long as the rule allows, because a log does not contain the time when a request
	// ended.
	Duration time.Duration

	Window       time.Duration // lines are sorted within this time; 0 disables sorting
	MaxBadLines  int           // more bad lines fail the run; negative: no bound
	MaxBadShare  float64       // a larger share of bad lines, in percent, fails the run at its end; 0 means no bound
	MaxCustomers int           // most customers counted individually at the same time; 0 means 100,000
	MaxCounters  int           // most counters in use at the same time, as in the memory backend; 0 means 2,000,000

	Progress func(requests int64)   // called from time to time; may be nil
	Verdicts func(v *Verdict) error // called for every request, in the order of decisions; may be nil
}

// Rules is a directory of rules.
type Rules struct {
	Directory string // name for the report
	Tree      *descriptor.Tree

	Overrides *override.Set // overrides that are active with these rules
	Misfits   []string      // why other overrides are not active, for the report's warnings
}

// Log is one access log.
type Log struct {
	Name string // name for the report and for errors
	Open func() (io.ReadCloser, error)
}

// Verdict is the result of one request. The callback may keep its texts.
type Verdict struct {
	Log      string    `json:"log"`
	Line     int       `json:"line"`
	Time     time.Time `json:"time"`
	Customer string    `json:"customer"`
	Code     string    `json:"code"` // OK, OVER_LIMIT or UNKNOWN
	Rule     string    `json:"rule,omitempty"`
	Old      string    `json:"old,omitempty"`
	OldRule  string    `json:"old_rule,omitempty"`

	Overridden bool `json:"overridden,omitempty"` // decided with an override
}

// BadLinesError is returned for logs with more bad lines than Options.MaxBadLines or Options.MaxBadShare.
type BadLinesError struct {
	Max   int
	Share string    // how many of the lines are bad, and how many may be; empty if there are more than Max
	Lines []BadLine // the first ones
}

func (e *BadLinesError) Error() string {
	var b strings.Builder
	if e.Share != "" {
		b.WriteString(e.Share)
	} else {
		fmt.Fprintf(&b, "more than %d lines cannot be used:", e.Max)
	}
	for i := range e.Lines {
		fmt.Fprintf(&b, "\n  %s", &e.Lines[i])
	}
	return b.String()
}

// LogError is returned for a log that cannot be read, or does not have the mapping's format.
type LogError struct {
	Log string
	Err error
}

func (e *LogError) Error() string { return "read log " + e.Log + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *LogError) Unwrap() error { return e.Err }

// ErrNoRequest is returned, wrapped with a summary of the lines, for logs without a single request.
var ErrNoRequest = errors.New("no line of the log is a request")

// Run replays logs through rules. When ctx ends it returns immediately; the callbacks in Options may be called once
// more.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.MaxCustomers <= 0 {
		o.MaxCustomers = 100_000
	}
	began := time.Now()
	r := &run{options: &o, now: newEngine(&o.Rules, &o), customers: newCustomers(max(o.MaxCustomers, 2))}
	if o.Against != nil {
		r.old = newEngine(o.Against, &o)
	}
	in := newIntake(&o)

	g, running := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(in.full)
		return in.read(running)
	})
	g.Go(func() error {
		for b := range in.full {
			if err := r.decide(running, b); err != nil {
				return err
			}
			b.reset()
			in.free <- b // never blocks: the channel has room for all batches
		}
		return nil
	})
	done := make(chan error, 1)
	go func() { done <- g.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done(): // a blocked read of a log ends without help
		return nil, ctx.Err()
	}
	if r.requests == 0 {
		return nil, in.nothing()
	}
	if err := in.tooMany(); err != nil {
		return nil, err
	}
	report := r.report(in)
	report.Seconds = time.Since(began).Seconds()
	report.PerSec = float64(report.Requests) / max(report.Seconds, 1e-9)
	return report, nil
}

// run is the deciding part of a run.
type run struct {
	options   *Options
	now, old  *engine // old is nil without Options.Against
	customers *customers

	requests      int64
	from, to      int64
	outcomes      [2][3]int64 // number of requests by side and outcome
	newly, passed int64
}

// decide decides a batch and counts the verdicts.
func (r *run) decide(ctx context.Context, b *batch) error {
	if r.old != nil {
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.old.decide(ctx, b, 1)
		}()
		r.now.decide(ctx, b, 0)
		<-done
	} else {
		r.now.decide(ctx, b, 0)
	}
	for i := range b.requests {
		r.count(b, i)
	}
	if r.options.Verdicts != nil {
		for i := range b.requests {
			if err := r.options.Verdicts(r.verdict(&b.requests[i], b.verdicts[0][i], b.old(i))); err != nil {
				return fmt.Errorf("write verdicts: %w", err)
			}
		}
	}
	if r.options.Progress != nil {
		r.options.Progress(r.requests)
	}
	return ctx.Err()
}

// old returns the verdict of the old rules; the zero verdict without old rules.
func (b *batch) old(i int) verdict {
	if len(b.verdicts[1]) == 0 {
		return verdict{}
	}
	return b.verdicts[1][i]
}

// count counts the verdicts of one request of a batch.
func (r *run) count(b *batch, i int) {
	a, now, old := &b.requests[i], b.verdicts[0][i], b.old(i)
	denials := b.denials[0][now.from:now.to]
	if r.requests == 0 {
		r.from = a.at
	}
	r.to = a.at
	r.requests++
	r.outcomes[0][now.outcome]++
	c := r.customers.row(a.Customer)
	c.requests++
	if now.outcome == denied {
		c.denied++
		c.by.add(denials)
		if r.old == nil && c.first == 0 {
			c.first = a.at
		}
	}
	if r.old == nil {
		return
	}
	r.outcomes[1][old.outcome]++
	if old.outcome == denied {
		c.old++
		c.byOld.add(b.denials[1][old.from:old.to])
	}
	switch {
	case now.outcome == denied && old.outcome == allowed:
		r.newly++
		if c.newly++; c.newly == 1 {
			c.first = a.at
		}
		c.byNewly.add(denials)
		r.now.newly(denials)
	case now.outcome == allowed && old.outcome == denied:
		r.passed++
		c.passed++
		r.old.newly(b.denials[1][old.from:old.to])
	}
}

var codes = [...]string{failed: "UNKNOWN", allowed: limiter.OK.String(), denied: limiter.OverLimit.String()}

func (r *run) verdict(a *replayedRequest, now, old verdict) *Verdict {
	v := &Verdict{
		Log: r.options.Logs[a.log].Name, Line: a.line, Time: time.UnixMicro(a.at).UTC(), Customer: string(a.Customer),
		Code: codes[now.outcome], Rule: r.now.path(now.rule), Overridden: now.overridden,
	}
	if r.old != nil {
		v.Old, v.OldRule = codes[old.outcome], r.old.path(old.rule)
	}
	return v
}

// path returns the path of a rule by its index; empty for none.
func (e *engine) path(index int32) string {
	if index < 0 {
		return ""
	}
	return e.tree.Rules[index].Path
}
