package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/explain"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/stdin"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// explainCommand is the subcommand that shows how rules apply to a request.
type explainCommand struct {
	Ask    askOptions `embed:""`
	At     string     `placeholder:"TIME" help:"Time of the request, such as 2026-03-10T12:00:00Z, or a date. Unset: now."`
	Bucket bool       `name:"quota-bucket" help:"Read each descriptor as the ID of a quota bucket. The domain's quota_buckets order its pairs."`
	Server string     `short:"s" placeholder:"ADDRESS" help:"Admin port of a server, such as localhost:6070. Explains its active rules, with the state of its counters. Not together with --rules."`

	Output  outputOptions  `embed:"" group:"Output"`
	Token   tokenOptions   `embed:"" group:"Connection"`
	Connect connectOptions `embed:"" group:"Connection"`

	Rules     ruleOptions   `embed:"" group:"Rules, as in serve"`
	Overrides string        `placeholder:"FILE" group:"Rules, as in serve" help:"File of overrides, as --overrides of serve; for --rules."`
	KeyPrefix string        `name:"cache-key-prefix" env:"CACHE_KEY_PREFIX" group:"Answers, as in serve" help:"Prefix of every counter's key in Redis. Replicas that share counters need the same one."`
	Answers   answerOptions `embed:"" group:"Answers, as in serve"`
}

func (*explainCommand) about() about {
	return about{
		note: "Explains the rules of a directory or file (--rules), or of a server (--server). The flags and variables of " +
			"serve for rules and answers work too: \"ratelimitd help settings\" lists them.",
		examples: []example{
			{"explain the rules of a directory", "ratelimitd explain --rules config/domains -d messaging to_number=2061234567"},
			{"explain a quota bucket, whose pairs have no order",
				"ratelimitd explain --rules rules -d api --quota-bucket user=ada,plan=gold"},
			{"apply the overrides of a file", "ratelimitd explain --rules rules --overrides overrides.yaml -d api tenant=acme"},
			{"explain what a server does, with its counters",
				"ratelimitd explain -s localhost:6070 -d messaging to_number=2061234567"},
		},
		exits: []exitCode{
			{0, "A rule matches."}, {1, "The rules cannot be loaded, or the server does not answer."},
			{2, "The command line, a setting or a file is invalid or missing."},
			{exitNothing, "No rule matches any of the descriptors."},
		},
	}
}

// Run returns nil if a rule matches, and exit code 3 if none matches any of the descriptors.
func (o *explainCommand) Run(ctx context.Context, s streams) error {
	entries, limit, err := o.Ask.descriptors()
	if err != nil {
		return err
	}
	now, err := o.now()
	if err != nil {
		return misuse(err)
	}
	if o.Bucket {
		if err := o.isBucket(entries); err != nil {
			return misuse(err)
		}
	}
	if o.Server != "" && o.Rules.Rules != "" {
		return misuse(errors.New("--server and --rules: a server explains its own rules; leave out one of them"))
	}
	if o.Server != "" {
		if o.Overrides != "" {
			return misuse(errors.New("--overrides needs --rules: a server has its own overrides"))
		}
		if o.At != "" {
			return misuse(errors.New("--at needs --rules: a server explains the present"))
		}
		return o.askServer(ctx, s, entries, limit)
	}
	if o.Rules.Rules == "" && o.Rules.overXDS() {
		fmt.Fprintln(s.err, "ratelimitd: CONFIG_TYPE=GRPC_XDS_SOTW: such a server reads no rule files; ask it with --server")
	}
	tree, err := o.Rules.load(s.err, o.Answers.tree())
	if err != nil {
		return err
	}
	overrides, err := overridesFor(o.Overrides, tree, s.err)
	if err != nil {
		return err
	}
	if o.Bucket {
		for _, e := range entries {
			tree.Domain(o.Ask.Domain).OrderBucket(e)
		}
	}
	directory, _ := o.Rules.dir()
	options := explain.Options{Overrides: overrides, Tree: tree, Settings: o.Answers.settings(), KeyPrefix: o.KeyPrefix,
		Domain: o.Ask.Domain, Now: now, QuotaBucket: o.Bucket}
	for _, e := range entries {
		d := limiter.Descriptor{Entries: e}
		if limit != nil {
			d.Limit, d.HasLimit = *limit, true
		}
		options.Descriptors = append(options.Descriptors, d)
	}
	report, err := explain.Run(ctx, options)
	if err != nil {
		if _, invalid := errors.AsType[*limiter.InvalidError](err); invalid {
			return misuse(err)
		}
		return fmt.Errorf("explain: %w", err)
	}
	report.RulesFrom = "the files in " + stdin.NameOf(directory)
	return o.write(s, report)
}

// isBucket reports whether the descriptors can be IDs of quota buckets. Only rule files define the order of their
// pairs.
func (o *explainCommand) isBucket(ids [][]descriptor.Entry) error {
	if o.Server != "" {
		return errors.New("--quota-bucket needs --rules: a server does not say in which order it matches the pairs " +
			"of a bucket")
	}
	if o.Ask.Limit != "" {
		return errors.New("--quota-bucket and --limit: a quota bucket brings no limit along; leave out one of them")
	}
	for i, id := range ids {
		seen := make(map[string]bool, len(id))
		for _, e := range id {
			if seen[e.Key] {
				return fmt.Errorf("descriptor %d: the key %q twice: the id of a quota bucket has each key once", i+1, e.Key)
			}
			seen[e.Key] = true
		}
	}
	return nil
}

func (o *explainCommand) write(s streams, report *explain.Report) error {
	err := o.Output.write(s.out,
		func(w io.Writer) error { return explain.WriteText(w, report, o.Output.Color.on(w)) },
		func(w io.Writer) error { return explain.WriteJSON(w, report) })
	switch {
	case err != nil:
		return err
	case report.Matched() == 0:
		return verdict(exitNothing)
	}
	return nil
}

// askServer explains the active rules of a server. It shows the counters' state if the server allows this user to see
// it.
func (o *explainCommand) askServer(ctx context.Context, s streams, entries [][]descriptor.Entry,
	limit *limiter.RequestLimit) error {
	client, err := o.Token.admin(&o.Connect, o.Server, s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	report := &explain.Report{Domain: o.Ask.Domain, Server: o.Server, RulesFrom: "the server " + o.Server,
		Passing: []explain.Header{}, Denied: []explain.Header{}}
	hidden := false
	for _, e := range entries {
		d, known, err := client.Explain(ctx, o.Ask.Domain, e)
		if err != nil {
			return err
		}
		report.Known = known
		if (len(d.Limits) > 0 || limit != nil) && !hidden {
			there, err := client.Peek(ctx, o.Ask.Domain, e, limit)
			switch {
			case err == nil:
				fill(&d, there, limit != nil && len(there.GetCounters()) > 0)
				d.StateOf = o.Server
			case limit != nil:
				return err // without the counters the limit cannot be explained
			default:
				hidden = true
				fmt.Fprintf(s.err, "ratelimitd: the counters' state is not shown: %v\n", err)
			}
		}
		report.Descriptors = append(report.Descriptors, d)
	}
	if report.Matched() > 0 {
		if known, err := client.Regions(ctx); err == nil { // an older server has no regions
			for i := range report.Descriptors {
				d := &report.Descriptors[i]
				d.Regions = serviceclient.InRegions(known, d.Limits)
			}
		}
	}
	return o.write(s, report)
}

// fill adds the states of counters to the limits that the server explained. With a limit of the request and no rule for
// it, its counters are the limits.
func fill(d *explain.Descriptor, there *adminv1.PeekResponse, fromRequest bool) {
	if fromRequest {
		d.Matched, d.FromRequest, d.Rule, d.Limits = true, true, nil, nil
	} else {
		d.Override = there.GetOverride()
	}
	for _, c := range there.GetCounters() {
		key := string(c.GetLimit().GetCounterKey())
		i := slices.IndexFunc(d.Limits, func(l explain.Limit) bool { return l.Key == key })
		if i < 0 { // the request brings it along
			i = len(d.Limits)
			d.Limits = append(d.Limits, explain.Limit{Name: c.GetLimit().GetName(), Words: c.GetWords(), Key: key})
		}
		l := &d.Limits[i]
		if l.State = serviceclient.StateOf(c); c.GetWords() != l.Words && there.GetOverride() != "" {
			l.Words = c.GetWords() + "; without the override " + l.Words
		}
	}
}

// now returns the time of the request.
func (o *explainCommand) now() (time.Time, error) {
	if o.At == "" {
		return time.Now(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, o.At); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--at %s: write a time like 2026-03-10T12:00:00Z or a date like 2026-03-10", o.At)
}

// load reads the rules as the server would at its start, and writes the errors of files that are left out.
func (o *ruleOptions) load(warn io.Writer, of descriptor.Options) (*descriptor.Tree, error) {
	dir, _ := o.dir()
	info, err := files.Stat(dir)
	if dir == stdin.Name || err == nil && !info.IsDir() {
		data, err := stdin.ReadFile(dir)
		if err != nil {
			return nil, misuse(fmt.Errorf("read rules: %w", err))
		}
		dir = stdin.NameOf(dir)
		tree, errs := config.Compile([]config.File{{Name: dir, Data: data}},
			config.CompileOptions{Merge: o.Merge, Lenient: true, Tree: of})
		if len(errs) > 0 {
			for _, e := range errs {
				fmt.Fprintln(warn, e)
			}
			return nil, fmt.Errorf("%s cannot be used", dir)
		}
		return tree, nil
	}
	if err != nil {
		return nil, misuse(fmt.Errorf("read rules: %w\nname a directory or file with --rules, or ask a server with --server",
			err))
	}
	r, err := config.NewDirectory(config.Options{Dir: dir, MergeDomains: o.Merge, Tree: of,
		Logger: slog.New(slog.DiscardHandler)}).Load()
	if err != nil {
		return nil, err
	}
	for _, f := range r.Files {
		for _, e := range f.Errors {
			fmt.Fprintln(warn, e)
		}
	}
	if r.InUse == 0 {
		return nil, fmt.Errorf("no rule file in %s can be used", dir)
	}
	return r.Tree, nil
}
