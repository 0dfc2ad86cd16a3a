package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/simulate"
	"github.com/ratelimitd/ratelimitd/internal/simulate/report"
)

// simulateCommand is the subcommand that replays access logs through rules.
type simulateCommand struct {
	Rules   string   `required:"" placeholder:"DIR" help:"Folder of rule files, or one file."`
	Against string   `placeholder:"DIR" help:"Folder of the rule files that are in force now, or one file: the report shows which callers would be newly refused."`
	Logs    []string `name:"log" required:"" sep:"none" placeholder:"FILE" help:"Access log, plain or gzip; - is standard input. May be repeated: logs are read one after the other."`
	Mapping string   `required:"" placeholder:"FILE" help:"YAML that maps lines of the log to requests."`

	Reorder    time.Duration `default:"5s" help:"Lines are sorted if they are out of order by no more than this."`
	MaxErrors  int           `default:"1000" placeholder:"N" help:"Fail if more lines than this cannot be used; -1: never."`
	FailOn     []string      `enum:"refused,newly-refused,newly-passed,no-rule,failed" placeholder:"WHAT" help:"Exit with 1 if there are requests that are refused, newly-refused or newly-passed (see --against), match no rule (no-rule) or failed (no decision could be made). With 2 if no request matches any rule."`
	FailAbove  float64       `default:"0" placeholder:"PERCENT" help:"With --fail-on: fail only above this share of all requests."`
	MaxCallers int           `default:"100000" placeholder:"N" help:"Most callers that are counted individually; the others are counted together."`

	Output   string `enum:"text,json" default:"text" help:"text or json."`
	HTML     string `name:"html" placeholder:"FILE" help:"Also write a report with charts to this file."`
	Verdicts string `placeholder:"FILE" help:"Also write the verdict on each request to this file, as JSON lines."`
	Top      int    `default:"10" placeholder:"N" help:"Most rules and callers in the text report."`

	Color    colorOption `embed:""`
	Progress string      `enum:"auto,always,never" default:"auto" help:"A progress bar on standard error; auto: if that is a terminal."`

	Merge       bool   `name:"merge-domain-config" env:"MERGE_DOMAIN_CONFIG" group:"As the service" help:"Files of one domain are merged instead of the second being refused."`
	Shadow      bool   `name:"shadow-mode" env:"SHADOW_MODE" group:"As the service" help:"Judge every rule, enforce none."`
	Quota       bool   `name:"quota-mode" env:"QUOTA_MODE" group:"As the service" help:"Every rule is in quota mode."`
	Stop        bool   `name:"stop-cache-key-increment-when-overlimit" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" group:"As the service" help:"A refused request counts only in the limits that refuse it."`
	Admission   string `env:"RATELIMITD_ADMISSION" oneof:"independent,all_or_nothing" placeholder:"independent|all_or_nothing" default:"independent" group:"As the service" help:"For domains without admission."`
	Months      bool   `name:"use-calendar-month-rate-limit" env:"USE_CALENDAR_MONTH_RATE_LIMIT" group:"As the service" help:"Months are calendar months in UTC instead of 30 days."`
	MaxCounters int    `name:"memory-max-counters" env:"RATELIMITD_MEMORY_MAX_COUNTERS" range:"1.." default:"2000000" group:"As the service" help:"Most counters at once."`
}

// Run returns nil if nothing that --fail-on names happened, and an error with exit code 1 if it did. The exit code is 2 if the
// input cannot be used, has no request, or --fail-on is given and the rules match no request.
func (o *simulateCommand) Run(ctx context.Context, s streams) error {
	options, err := o.options()
	if err != nil {
		return misuse(err)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // most of what lives is counters, which are not garbage
	}
	if o.HTML != "" { // before a long run, not after it
		f, err := os.OpenFile(o.HTML, os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		_ = f.Close()
	}
	verdicts, err := o.openVerdicts(options)
	if err != nil {
		return err
	}
	bar := o.progress(s.err, options)
	r, err := simulate.Run(ctx, *options)
	bar.stop()
	err = errors.Join(err, verdicts.close())
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", ctx.Err())
	case isMisuse(err):
		return misuse(err)
	case err != nil:
		return err
	}
	if err := o.write(s.out, r); err != nil {
		return err
	}
	return o.verdict(r)
}

// isMisuse reports whether an error is about the command's input.
func isMisuse(err error) bool {
	var bad *simulate.BadLinesError
	var log *simulate.LogError
	return errors.As(err, &bad) || errors.As(err, &log) || errors.Is(err, simulate.ErrNoRequest)
}

func (o *simulateCommand) options() (*simulate.Options, error) {
	for _, what := range o.FailOn {
		if strings.HasPrefix(what, "newly-") && o.Against == "" {
			return nil, fmt.Errorf("--fail-on %s needs --against: the folder of the rules that are in force now", what)
		}
	}
	if o.FailAbove < 0 || o.FailAbove > 100 {
		return nil, fmt.Errorf("--fail-above %g: use a share from 0 to 100", o.FailAbove)
	}
	if o.Reorder < 0 || o.Reorder > 24*time.Hour {
		return nil, fmt.Errorf("--reorder %s: use a time from 0s to 24h", o.Reorder)
	}
	mapping, errs := accesslog.LoadMapping(o.Mapping)
	if len(errs) > 0 {
		all := make([]error, len(errs))
		for i, e := range errs {
			all[i] = e
		}
		return nil, fmt.Errorf("mapping:\n%w", errors.Join(all...))
	}
	tree := descriptor.Options{CalendarMonths: o.Months}
	rules, err := simulate.LoadRules(o.Rules, o.Merge, tree)
	if err != nil {
		return nil, err
	}
	out := &simulate.Options{
		Rules: simulate.Rules{Folder: o.Rules, Tree: rules},
		Settings: limiter.Settings{
			Shadow: o.Shadow, Quota: o.Quota, StopWhenOver: o.Stop, Admission: descriptor.ParseAdmission(o.Admission), CalendarMonths: o.Months,
		},
		Mapping: mapping, Window: o.Reorder, MaxBadLines: o.MaxErrors, MaxCallers: o.MaxCallers, MaxCounters: o.MaxCounters,
	}
	if o.Against != "" {
		old, err := simulate.LoadRules(o.Against, o.Merge, tree)
		if err != nil {
			return nil, err
		}
		out.Against = &simulate.Rules{Folder: o.Against, Tree: old}
	}
	for _, name := range o.Logs {
		log := simulate.Log{Name: name, Open: func() (io.ReadCloser, error) { return os.Open(name) }}
		if name == "-" {
			log = simulate.Log{Name: "standard input", Open: func() (io.ReadCloser, error) { return io.NopCloser(os.Stdin), nil }}
		} else if info, err := os.Stat(name); err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		} else if info.IsDir() {
			return nil, fmt.Errorf("read log: %s is a folder; --log takes files and may be repeated", name)
		}
		out.Logs = append(out.Logs, log)
	}
	return out, nil
}

// verdictFile is the file of verdicts.
type verdictFile struct {
	f *os.File // nil: verdicts are not written
	w *bufio.Writer
}

func (o *simulateCommand) openVerdicts(options *simulate.Options) (*verdictFile, error) {
	if o.Verdicts == "" {
		return &verdictFile{}, nil
	}
	f, err := os.Create(o.Verdicts)
	if err != nil {
		return nil, fmt.Errorf("write verdicts: %w", err)
	}
	v := &verdictFile{f, bufio.NewWriterSize(f, 1<<20)}
	encoder := json.NewEncoder(v.w)
	encoder.SetEscapeHTML(false)
	options.Verdicts = func(v *simulate.Verdict) error { return encoder.Encode(v) }
	return v, nil
}

func (v *verdictFile) close() error {
	if v.f == nil {
		return nil
	}
	if err := errors.Join(v.w.Flush(), v.f.Close()); err != nil {
		return fmt.Errorf("write verdicts: %w", err)
	}
	return nil
}

func (o *simulateCommand) write(out io.Writer, r *simulate.Report) error {
	if o.HTML != "" {
		f, err := os.Create(o.HTML)
		if err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		if err := errors.Join(report.WriteHTML(f, r), f.Close()); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	var err error
	if o.Output == "json" {
		err = report.WriteJSON(out, r)
	} else {
		err = report.WriteText(out, r, report.TextOptions{
			Color: o.Color.on(out),
			Top:   o.Top,
		})
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// verdict is the error for a report; nil: all is well.
func (o *simulateCommand) verdict(r *simulate.Report) error {
	unmatched := r.New.NoRule + r.New.UnknownDomain
	if len(o.FailOn) > 0 && unmatched == r.Requests {
		return misuse(fmt.Errorf("--fail-on: the rules of %s match no request at all, so nothing was tried: compare the domain and the keys of the mapping with those of the rules", o.Rules))
	}
	for _, what := range o.FailOn {
		n := r.New.Refused
		switch what {
		case "newly-refused":
			n = r.NewlyRefused.Requests
		case "newly-passed":
			n = r.NewlyPassed.Requests
		case "no-rule":
			n = unmatched
		case "failed":
			n = r.New.Failed
		}
		if share := 100 * float64(n) / float64(r.Requests); share > o.FailAbove {
			return fmt.Errorf("%s: %d of %d requests, which is more than %g%%", what, n, r.Requests, o.FailAbove)
		}
	}
	return nil
}
