package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/authoring/rulecheck"
	"github.com/ratelimitd/ratelimitd/internal/authoring/ruletest"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/files"
)

// checkCommand is the subcommand that checks rule files.
type checkCommand struct {
	Paths []string `arg:"" optional:"" name:"path" help:"Rule files, and directories as the server would load them. - is the standard input. Unset: config/domains."`

	Merge     bool     `name:"merge-domain-config" env:"MERGE_DOMAIN_CONFIG" help:"Merge files of one domain instead of rejecting the second."`
	Months    bool     `name:"use-calendar-month-rate-limit" env:"USE_CALENDAR_MONTH_RATE_LIMIT" help:"Months are calendar months in UTC instead of 30 days."`
	Strict    bool     `help:"Exit with 1 for warnings too."`
	Disable   []string `placeholder:"CODE" help:"Leave out findings with this code. May be repeated."`
	Info      bool     `help:"Also show notes."`
	Regions   []string `env:"RATELIMITD_REGIONS" placeholder:"NAME" help:"Names of all regions. A home that is not one of them is an error. Unset: any home is accepted."`
	Overrides []string `sep:"none" placeholder:"FILE" help:"Also check this file of overrides against the rules. May be repeated."`

	Output string `short:"o" enum:"table,json,yaml,plain,github" default:"table" help:"Output format: table, json, yaml, plain (one line for each finding, for editors) or github (annotations)."`
	JSON   bool   `help:"Short for -o json."`

	Color colorOption `embed:""`

	// The flags of ratelimit_config_check, so that a pipeline only needs to change the binary.
	ConfigDir    string `name:"config_dir" hidden:""`
	MergeDomains bool   `name:"merge_domain_configs" hidden:""`
}

func (*checkCommand) about() about {
	return about{
		examples: []example{
			{"check a directory", "ratelimitd check config/domains"},
			{"in GitHub Actions: fail on warnings too", "ratelimitd check --strict -o github rules"},
			{"check overrides against the rules", "ratelimitd check --overrides overrides.yaml rules"},
			{"check that each home is one of your regions", "ratelimitd check --regions eu,us rules"},
			{"check a committed file", "git show HEAD:rules/edge.yaml | ratelimitd check -"},
		},
		exits: []exitCode{
			{0, "The server would load the rules."}, {1, "A file has errors, or warnings with --strict."},
			{2, "There is nothing to check, or the command line is invalid."},
		},
	}
}

// Run returns nil if the files can be loaded, an error with exit code 1 if not, and one with exit code 2 if there is
// nothing to check.
func (o *checkCommand) Run(_ context.Context, s streams) error {
	paths := o.Paths
	if o.ConfigDir != "" {
		paths = append(paths, o.ConfigDir)
	}
	paths, err := orDomains(paths)
	if err != nil {
		return misuse(err)
	}
	for _, p := range paths {
		if info, err := files.Stat(p); err == nil && !info.IsDir() && ruletest.IsTestFile(p) {
			return misuse(fmt.Errorf("%s is a test file: ratelimitd test runs it", p))
		}
	}
	regions, err := o.regions()
	if err != nil {
		return misuse(err)
	}
	report, err := rulecheck.Run(rulecheck.Options{
		Paths: paths, Merge: o.Merge || o.MergeDomains, Months: o.Months, Disable: o.Disable, Overrides: o.Overrides,
		Regions: regions,
	})
	if err != nil {
		return misuse(err)
	}
	if err := o.write(s.out, report); err != nil {
		return fmt.Errorf("write findings: %w", err)
	}
	switch errs, warnings := report.Count(rulecheck.Error), report.Count(rulecheck.Warning); {
	case errs > 0:
		return fmt.Errorf("errors in rule files: %d", errs)
	case o.Strict && warnings > 0:
		return fmt.Errorf("warnings about rule files: %d, and --strict is given", warnings)
	}
	return nil
}

// regions returns the names of the regions.
func (o *checkCommand) regions() (names []string, err error) {
	for _, entry := range o.Regions {
		name, _, _ := strings.Cut(entry, "=")
		if !descriptor.ValidRegion(name) {
			return nil,
				fmt.Errorf("--regions (RATELIMITD_REGIONS): %q is no region: write names of at most %d letters from a to z, "+
					"digits and hyphens, such as eu,us",
					entry, descriptor.MaxRegionName)
		}
		names = append(names, name)
	}
	return names, nil
}

// orDomains returns the paths, or the default directory without paths.
func orDomains(paths []string) ([]string, error) {
	if len(paths) > 0 {
		return paths, nil
	}
	dir := filepath.Join("config", "domains")
	if _, err := files.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s here: name directories or files", dir)
	}
	return []string{dir}, nil
}

func (o *checkCommand) write(out io.Writer, r *rulecheck.Report) error {
	form := o.Output
	if o.JSON {
		form = "json"
	}
	switch form {
	case "github":
		return rulecheck.WriteGitHub(out, r, o.Info)
	case "plain":
		return rulecheck.WritePlain(out, r, o.Info)
	}
	return writeAs(form, out, func(w io.Writer) error {
		return rulecheck.WriteText(w, r, rulecheck.TextOptions{Color: o.Color.on(w), Info: o.Info})
	}, func(w io.Writer) error { return rulecheck.WriteJSON(w, r, o.Info) })
}

// longFlags adds a second dash to the flags of ratelimit_config_check, which Go's flag package accepts with one. Kong
// would read -config_dir as nine short flags.
func longFlags(args []string) []string {
	if len(args) == 0 || args[0] != "check" {
		return args
	}
	out := make([]string, len(args))
	for i, a := range args {
		name, _, _ := strings.Cut(a, "=")
		if name == "-config_dir" || name == "-merge_domain_configs" {
			a = "-" + a
		}
		out[i] = a
	}
	return out
}
