package main

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/conform"
	"github.com/ratelimitd/ratelimitd/internal/platform/terminal"
)

// conformCommand is the subcommand that compares a service with envoyproxy/ratelimit.
type conformCommand struct {
	Target string `required:"" placeholder:"ADDRESS" help:"Address of the service's gRPC port: host:port or unix:PATH."`
	Rules  string `required:"" writes:"" placeholder:"DIR" help:"Directory from which the service reads rule files. Files conform-*.yaml in it are replaced."`

	Setup   string        `default:"plain" placeholder:"NAME" help:"Settings that the service runs with: plain (none), headers, quota, shadow and others."`
	Match   string        `name:"run" placeholder:"REGEXP" help:"Run only cases whose \"LEVEL/NAME\" matches. Levels: protocol, recorded, exact and field."`
	Form    conform.Form  `default:"envoy" enum:"envoy,limitador" help:"Format of the service's rules. limitador: one file, limits.yaml, and only the levels exact and field."`
	Load    string        `placeholder:"COMMAND" help:"Shell command that makes the service reload its rules. Unset: it watches the directory."`
	Restart string        `placeholder:"COMMAND" help:"Shell command that restarts the service. Unset: the case is skipped."`
	Stop    string        `name:"stop-store" placeholder:"COMMAND" help:"Shell command that stops the service's store. Unset: the case is skipped."`
	Start   string        `name:"start-store" placeholder:"COMMAND" help:"Shell command that starts the store again."`
	Wait    time.Duration `default:"30s" help:"How long to wait for the service to load the rules."`
	JUnit   string        `name:"junit" writes:"" placeholder:"FILE" help:"Also write JUnit XML to this file."`

	Connect connectOptions `embed:"" group:"Connection"`
	Output  outputOptions  `embed:"" group:"Output"`
}

func (*conformCommand) about() about {
	return about{
		examples: []example{
			{"test a service that watches its rule files",
				"ratelimitd conform --target localhost:8081 --rules /srv/ratelimit/config"},
			{"test one that must be restarted to read them",
				"ratelimitd conform --target localhost:8081 --rules config --load ./restart"},
			{"test only the protocol, and write JUnit XML",
				"ratelimitd conform --target localhost:8081 --rules config --run '^protocol/' --junit report.xml"},
		},
		exits: []exitCode{
			{0, "All cases passed."}, {1, "A case failed, or the service does not answer."}, {2, "The command line is invalid."},
		},
	}
}

// Run returns nil if all cases pass.
func (o *conformCommand) Run(ctx context.Context, s streams) error {
	options := conform.Options{
		Rules: o.Rules, Form: o.Form, Setup: o.Setup, Wait: o.Wait, Load: o.Load, Restart: o.Restart, StopStore: o.Stop,
		StartStore: o.Start,
	}
	if o.Match != "" {
		match, err := regexp.Compile(o.Match)
		if err != nil {
			return misuse(fmt.Errorf("--run: %w", err))
		}
		options.Match = match
	}
	client, err := o.Connect.dial(o.Target, "", "8081")
	if err != nil {
		return err
	}
	defer client.Close()
	options.Ask, options.Reserve = client.ShouldRateLimit, client.Reserve
	var junit *newFile
	if o.JUnit != "" { // before a long run, not after it
		if junit, err = createFile(o.JUnit); err != nil {
			return misuse(fmt.Errorf("write JUnit XML: %w", err))
		}
		defer junit.discard()
	}
	report, err := conform.Run(ctx, options)
	if err != nil {
		return err
	}
	if junit != nil {
		err := conform.WriteJUnit(junit, report)
		if err == nil {
			err = junit.commit()
		}
		if err != nil {
			return fmt.Errorf("write JUnit XML: %w", err)
		}
	}
	err = o.Output.write(s.out,
		func(w io.Writer) error { return conform.WriteText(w, report, o.Output.Color.on(w)) },
		func(w io.Writer) error { return conform.WriteJSON(w, report) })
	if err == nil && report.Failed > 0 {
		err = fmt.Errorf("%d of %s failed", report.Failed, terminal.Count(len(report.Results)-report.Skipped, "case"))
	}
	return err
}
