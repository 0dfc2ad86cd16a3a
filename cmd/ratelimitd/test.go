package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/authoring/ruletest"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// testCommand is the subcommand that runs unit tests for rules.
type testCommand struct {
	Paths []string `arg:"" optional:"" name:"path" help:"Test files (*_test.yaml), or directories to search for them. - is the standard input. Unset: config/domains."`

	Match       string  `name:"run" placeholder:"REGEXP" help:"Run only cases whose \"FILE: NAME\" matches."`
	JUnit       string  `name:"junit" writes:"" placeholder:"FILE" help:"Also write JUnit XML to this file."`
	Coverage    bool    `help:"List the rules that no test reaches."`
	MinCoverage float64 `placeholder:"PERCENT" help:"Fail if the tests reach a smaller part of the rules."`
	Verbose     bool    `short:"v" help:"List passed cases too."`

	Output outputOptions `embed:""`
}

func (*testCommand) about() about {
	return about{
		examples: []example{
			{"run all tests in a directory", "ratelimitd test config/domains"},
			{"run some cases, and list them", "ratelimitd test --run search -v config/domains"},
			{"in CI: require coverage and write a report",
				"ratelimitd test --min-coverage 90 --junit report.xml config/domains"},
		},
		exits: []exitCode{
			{0, "All cases passed."}, {1, "A case failed, or the tests reach too few rules."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run returns nil if all tests pass, an error with exit code 1 if not, and one with exit code 2 if some cannot be run.
func (o *testCommand) Run(ctx context.Context, s streams) error {
	options := ruletest.Options{}
	if o.Match != "" {
		match, err := regexp.Compile(o.Match)
		if err != nil {
			return misuse(fmt.Errorf("--run: %w", err))
		}
		options.Match = match
	}
	paths, err := orDomains(o.Paths)
	if err != nil {
		return misuse(err)
	}
	files, untested, err := ruletest.Find(paths)
	if err != nil {
		return misuse(err)
	}
	for _, dir := range untested {
		rules, err := rulesBelow([]string{dir})
		if err != nil {
			return misuse(err)
		}
		if len(rules) == 0 || len(files) == 0 || !o.coverage() {
			return misuse(fmt.Errorf("find tests in %s: there is no file named *_test.yaml", dir))
		}
	}
	if options.Rules, err = rulesBelow(paths); err != nil {
		return misuse(err)
	}
	var junit *newFile
	if o.JUnit != "" { // before a long run, not after it
		if junit, err = createFile(o.JUnit); err != nil {
			return misuse(fmt.Errorf("write JUnit XML: %w", err))
		}
		defer junit.discard()
	}
	report, err := ruletest.Run(ctx, files, options)
	if err != nil {
		return err
	}
	if err := o.write(s.out, junit, report); err != nil {
		return err
	}
	return o.verdict(report)
}

// coverage reports whether the rules that no test reaches are listed.
func (o *testCommand) coverage() bool { return o.Coverage || o.MinCoverage > 0 }

// rulesBelow returns the rule files in the directories among the paths. All of them should have tests.
func rulesBelow(paths []string) ([]string, error) {
	var all []string
	for _, p := range paths {
		if info, err := files.Stat(p); err != nil || !info.IsDir() {
			continue // a test file names its rules itself
		}
		names, err := ruletest.RuleFiles(p)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func (o *testCommand) write(out io.Writer, junit *newFile, r *ruletest.Report) error {
	if junit != nil {
		err := ruletest.WriteJUnit(junit, r)
		if err == nil {
			err = junit.commit()
		}
		if err != nil {
			return fmt.Errorf("write JUnit XML: %w", err)
		}
	}
	return o.Output.write(out, func(w io.Writer) error {
		return ruletest.WriteText(w, r, ruletest.TextOptions{
			Color:    o.Output.Color.on(w),
			Verbose:  o.Verbose,
			Coverage: o.coverage(),
		})
	}, func(w io.Writer) error { return ruletest.WriteJSON(w, r) })
}

// verdict returns the error for a report, or nil if all is well.
func (o *testCommand) verdict(r *ruletest.Report) error {
	switch percent := r.Coverage.Percent(); {
	case r.Bad > 0:
		return misuse(fmt.Errorf("%d of %s cannot be run", r.Bad, terminal.Count(len(r.Files), "test file")))
	case o.Match != "" && r.Cases == 0:
		return misuse(fmt.Errorf("--run %s matches no case", o.Match))
	case r.Failed > 0:
		return fmt.Errorf("%d of %s failed", r.Failed, terminal.Count(r.Cases, "case"))
	case o.coverage() && len(r.Coverage.Errors) > 0:
		return misuse(fmt.Errorf("rules without tests cannot be used: %s", &r.Coverage.Errors[0]))
	case percent < o.MinCoverage:
		return fmt.Errorf("the tests reach %.1f%% of the rules, fewer than %g%%", percent, o.MinCoverage)
	}
	return nil
}

// usageError is an invalid command line or file: it ends the process with exit code 2.
type usageError struct{ error }

// ExitCode implements kong.ExitCoder.
func (usageError) ExitCode() int { return 2 }

// Unwrap returns the cause.
func (e usageError) Unwrap() error { return e.error }

func misuse(err error) error { return usageError{err} }
