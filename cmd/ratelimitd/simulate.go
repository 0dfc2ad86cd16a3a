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
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate"
	"github.com/ratelimitd/ratelimitd/internal/authoring/simulate/report"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
)

// simulateCommand is the subcommand that replays access logs through rules.
type simulateCommand struct {
	Rules     string   `required:"" placeholder:"DIR" help:"Directory of rule files, or one file. - is the standard input."`
	Against   string   `placeholder:"DIR" help:"The active rules, to compare with. The report shows which customers would be newly denied."`
	Overrides string   `placeholder:"FILE" help:"File of active overrides."`
	Logs      []string `name:"log" required:"" sep:"none" placeholder:"FILE" help:"Access log, plain or gzip. - is the standard input. May be repeated, in the order to read."`

	Lines mappingOptions `embed:""`

	Duration     time.Duration `placeholder:"TIME" help:"How long each request takes, for concurrency limits. Default: their ttl."`
	Reorder      time.Duration `default:"5s" help:"Sort lines that are out of order by up to this."`
	MaxErrors    string        `default:"1000" placeholder:"N" help:"Fail if more lines than this cannot be used: a number, or a percentage such as 0.5%. -1: never."`
	FailOn       []string      `enum:"denied,newly-denied,newly-passed,no-rule,failed" placeholder:"WHAT" help:"Exit with 1 if requests were denied, newly-denied or newly-passed (see --against), matched no rule (no-rule) or failed. Exit with 2 if no request matches any rule."`
	FailAbove    float64       `default:"0" placeholder:"PERCENT" help:"With --fail-on: fail only above this percentage of requests."`
	Customer     []string      `placeholder:"KEY,..." help:"Keys of the entries that identify a customer, such as remote_address. Default: the mapping's, or all entries from the log."`
	MaxCustomers int           `default:"100000" placeholder:"N" help:"How many customers to count individually."`

	Verdicts string `writes:"" placeholder:"FILE" help:"Also write each answer to this file, as JSON lines."`
	Top      int    `default:"10" placeholder:"N" help:"How many rules and customers the report shows as text or Markdown."`

	Output string      `short:"o" enum:"table,json,yaml,markdown" default:"table" help:"Output format: table, json, yaml or markdown (for a pull request)."`
	JSON   bool        `help:"Short for -o json."`
	Color  colorOption `embed:""`

	Merge       bool   `name:"merge-domain-config" env:"MERGE_DOMAIN_CONFIG" group:"Settings of the server" help:"Merge files of one domain instead of rejecting the second."`
	Shadow      bool   `name:"shadow-mode" env:"SHADOW_MODE" group:"Settings of the server" help:"Enforce no rule. Requests over a limit count as not enforced."`
	Quota       bool   `name:"quota-mode" env:"QUOTA_MODE" group:"Settings of the server" help:"Every rule is in quota mode."`
	Stop        bool   `name:"stop-cache-key-increment-when-overlimit" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" group:"Settings of the server" help:"Count a denied request only in the limits that deny it."`
	Admission   string `env:"RATELIMITD_ADMISSION" oneof:"independent,all_or_nothing" placeholder:"independent|all_or_nothing" default:"independent" group:"Settings of the server" help:"For domains without admission. independent: each descriptor counts on its own. all_or_nothing: a denied request is not counted."`
	Months      bool   `name:"use-calendar-month-rate-limit" env:"USE_CALENDAR_MONTH_RATE_LIMIT" group:"Settings of the server" help:"Months are calendar months in UTC instead of 30 days."`
	MaxCounters int    `name:"memory-max-counters" env:"RATELIMITD_MEMORY_MAX_COUNTERS" range:"1.." default:"2000000" group:"Settings of the server" help:"Maximum number of counters in use at once."`
}

func (*simulateCommand) about() about {
	return about{
		examples: []example{
			{"see who would be denied",
				"ratelimitd simulate --rules rules --format nginx --descriptor remote_address=ip --log access.log"},
			{"compare new rules with the active ones",
				"ratelimitd simulate --rules new --against live --mapping map.yaml --log a.log"},
			{"write the comparison for a pull request",
				"ratelimitd simulate --rules new --against live --mapping map.yaml --log a.log -o markdown"},
			{"read a log of many files", "zcat access.log.*.gz | ratelimitd simulate --rules new --mapping map.yaml --log -"},
		},
		exits: []exitCode{
			{0, "Nothing named by --fail-on happened."}, {1, "Something named by --fail-on happened."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run returns nil if nothing that --fail-on names happened, and an error with exit code 1 if it did. The exit code is 2
// if the input cannot be used, has no request, or --fail-on is given and the rules match no request.
func (o *simulateCommand) Run(ctx context.Context, s streams) error {
	options, err := o.options()
	if err != nil {
		return misuse(err)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400) // most live memory is counters, which are not garbage
	}
	verdicts, err := o.beginVerdicts(options) // before a long run, not after it
	if err != nil {
		return misuse(err)
	}
	defer verdicts.discard()
	if isTerminal(s.err) {
		options.Progress = func(requests int64) { fmt.Fprintf(s.err, "\r\x1b[K%d requests", requests) }
		defer func() { _, _ = io.WriteString(s.err, "\r\x1b[K") }()
	}
	r, err := simulate.Run(ctx, *options)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stopped: %w", ctx.Err())
	case isMisuse(err):
		return misuse(err)
	case err != nil:
		return err
	}
	if err := verdicts.finish(); err != nil {
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

// oneReader rejects a command line on which two flags would read the standard input.
func (o *simulateCommand) oneReader() error {
	var readers []string
	for _, f := range append([][2]string{{"--rules", o.Rules}, {"--against", o.Against}, {"--mapping", o.Lines.Mapping},
		{"--overrides", o.Overrides}}, logsOf(o.Logs)...) {
		if f[1] == stdin.Name {
			readers = append(readers, f[0])
		}
	}
	if len(readers) > 1 {
		return fmt.Errorf("%s are all -: one of them can be the standard input", strings.Join(readers, ", "))
	}
	return nil
}

func logsOf(names []string) (all [][2]string) {
	for _, name := range names {
		all = append(all, [2]string{"--log", name})
	}
	return all
}

// maxErrors returns the largest number of bad lines, and their largest share in percent. Without a bound the number is
// -1 and the share is 0.
func (o *simulateCommand) maxErrors() (badLines int, share float64, err error) {
	if text, is := strings.CutSuffix(o.MaxErrors, "%"); is {
		share, err := strconv.ParseFloat(text, 64)
		switch {
		case err != nil || !(share >= 0 && share <= 100):
			return 0, 0, fmt.Errorf("--max-errors %s: use a number of lines, or a share from 0%% to 100%%", o.MaxErrors)
		case share == 0:
			return 0, 0, nil
		}
		return -1, share, nil
	}
	if badLines, err = strconv.Atoi(o.MaxErrors); err != nil {
		return 0, 0, fmt.Errorf("--max-errors %s: use a number of lines such as 1000, a share such as 0.5%%, "+
			"or -1 for no bound", o.MaxErrors)
	}
	return badLines, 0, nil
}

func (o *simulateCommand) options() (*simulate.Options, error) {
	for _, what := range o.FailOn {
		if strings.HasPrefix(what, "newly-") && o.Against == "" {
			return nil, fmt.Errorf("--fail-on %s needs --against: the directory of the active rules", what)
		}
	}
	if o.FailAbove < 0 || o.FailAbove > 100 {
		return nil, fmt.Errorf("--fail-above %g: use a share from 0 to 100", o.FailAbove)
	}
	if o.Reorder < 0 || o.Reorder > 24*time.Hour {
		return nil, fmt.Errorf("--reorder %s: use a time from 0s to 24h", o.Reorder)
	}
	if d := o.Duration; d < 0 || d > 24*time.Hour || d%time.Millisecond != 0 {
		return nil, fmt.Errorf("--duration %s: use a time from 1ms to 24h, in whole milliseconds", d)
	}
	badLines, badShare, err := o.maxErrors()
	if err != nil {
		return nil, err
	}
	if err := o.oneReader(); err != nil {
		return nil, err
	}
	tree := descriptor.Options{CalendarMonths: o.Months}
	rules, err := simulate.LoadRules(o.Rules, o.Merge, tree)
	if err != nil {
		return nil, err
	}
	mapping, err := o.Lines.mapping(rules)
	if err != nil {
		return nil, err
	}
	if len(o.Customer) > 0 {
		if err := mapping.SetCustomer(o.Customer); err != nil {
			return nil, fmt.Errorf("--customer: %w", err)
		}
	}
	out := &simulate.Options{
		Rules: simulate.Rules{Directory: o.Rules, Tree: rules},
		Settings: limiter.Settings{
			Shadow: o.Shadow, Quota: o.Quota, StopWhenOver: o.Stop, Admission: descriptor.ParseAdmission(o.Admission),
			CalendarMonths: o.Months,
		},
		Mapping: mapping, Duration: o.Duration, Window: o.Reorder, MaxBadLines: badLines, MaxBadShare: badShare,
		MaxCustomers: o.MaxCustomers, MaxCounters: o.MaxCounters,
	}
	if o.Against != "" {
		old, err := simulate.LoadRules(o.Against, o.Merge, tree)
		if err != nil {
			return nil, err
		}
		out.Against = &simulate.Rules{Directory: o.Against, Tree: old}
	}
	if o.Overrides != "" {
		all, err := readOverrides(o.Overrides)
		if err != nil {
			return nil, err
		}
		out.Overrides = stdin.NameOf(o.Overrides)
		fit(&out.Rules, all)
		if out.Against != nil {
			fit(out.Against, all)
		}
		if len(all) > 0 && out.Rules.Overrides.Len() == 0 && (out.Against == nil || out.Against.Overrides.Len() == 0) {
			return nil, fmt.Errorf("no override fits the rules: %s", out.Rules.Misfits[0])
		}
	}
	for _, name := range o.Logs {
		log := simulate.Log{Name: name, Open: func() (io.ReadCloser, error) { return os.Open(name) }}
		if name == "-" {
			log = simulate.Log{Name: "standard input", Open: func() (io.ReadCloser, error) {
				return io.NopCloser(os.Stdin), nil
			}}
		} else if info, err := os.Stat(name); err != nil {
			return nil, fmt.Errorf("read log: %w", err)
		} else if info.IsDir() {
			return nil, fmt.Errorf("read log: %s is a directory; --log takes files and may be repeated", name)
		}
		out.Logs = append(out.Logs, log)
	}
	return out, nil
}

// fit puts the overrides that fit the rules into force with them.
func fit(rules *simulate.Rules, all []override.Placed) {
	good, misfits := override.ResolveAll(rules.Tree, all)
	rules.Overrides = override.SetOf(good)
	for _, e := range misfits {
		rules.Misfits = append(rules.Misfits, e.Error())
	}
}

// verdictFile is the file of verdicts.
type verdictFile struct {
	*newFile // nil if verdicts are not written
	w        *bufio.Writer
}

func (o *simulateCommand) beginVerdicts(options *simulate.Options) (*verdictFile, error) {
	if o.Verdicts == "" {
		return &verdictFile{}, nil
	}
	f, err := createFile(o.Verdicts)
	if err != nil {
		return nil, fmt.Errorf("write verdicts: %w", err)
	}
	v := &verdictFile{f, bufio.NewWriterSize(f, 1<<20)}
	encoder := json.NewEncoder(v.w)
	encoder.SetEscapeHTML(false)
	options.Verdicts = func(v *simulate.Verdict) error { return encoder.Encode(v) }
	return v, nil
}

func (v *verdictFile) finish() error {
	if v.newFile == nil {
		return nil
	}
	err := v.w.Flush()
	if err == nil {
		err = v.commit()
	}
	if err != nil {
		return fmt.Errorf("write verdicts: %w", err)
	}
	return nil
}

func (o *simulateCommand) write(out io.Writer, r *simulate.Report) error {
	if err := o.writeTo(out, r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// writeTo writes the report in the form that was asked for.
func (o *simulateCommand) writeTo(out io.Writer, r *simulate.Report) error {
	form := o.Output
	if o.JSON {
		form = "json"
	}
	if form == "markdown" {
		return report.WriteMarkdown(out, r, report.MarkdownOptions{Top: o.Top})
	}
	return writeAs(form, out, func(w io.Writer) error {
		return report.WriteText(w, r, report.TextOptions{Color: o.Color.on(w), Narrow: isTerminal(w), Top: o.Top})
	}, func(w io.Writer) error { return report.WriteJSON(w, r) })
}

// verdict returns the error for a report, or nil if all is well.
func (o *simulateCommand) verdict(r *simulate.Report) error {
	unmatched := r.New.NoRule + r.New.UnknownDomain
	if len(o.FailOn) > 0 && unmatched == r.Requests {
		return misuse(fmt.Errorf("--fail-on: the rules of %s match no request at all, so nothing was tried: compare the "+
			"domain and the keys in the mapping with the rules", o.Rules))
	}
	if len(o.FailOn) > 0 && r.New.Untried() == r.Requests {
		return misuse(fmt.Errorf("--fail-on: no limit of the rules of %s is active at the time of a request that it "+
			"matches, so nothing was tried: compare the times of the log with `active`", o.Rules))
	}
	for _, what := range o.FailOn {
		n := r.New.Denied
		switch what {
		case "newly-denied":
			n = r.NewlyDenied.Requests
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
