package main

import (
	"context"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// counterOptions are the options of peek and reset.
type counterOptions struct {
	Ask    askOptions    `embed:""`
	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

// peekCommand is the subcommand that shows counters.
type peekCommand struct {
	Options counterOptions `embed:""`
}

func (*peekCommand) about() about {
	return about{
		examples: []example{
			{"see how much of a limit is used", "ratelimitd peek -d messaging to_number=2061234567"},
			{"ask another machine, with a token from a file",
				"ratelimitd peek -s 10.0.0.7:6070 --token-file token -d edge path=/api"},
		},
		exits: counterExits("shown"),
	}
}

// Run returns nil if the descriptors have counters, and exit code 3 if no rule matches any of them.
func (o *peekCommand) Run(ctx context.Context, s streams) error {
	return askCounters(ctx, s, &o.Options, (*serviceclient.Client).Peek)
}

// resetCommand is the subcommand that clears counters.
type resetCommand struct {
	Options counterOptions `embed:""`
}

func (*resetCommand) about() about {
	return about{
		note: "If a limit has a home region, only servers in that region can clear the counter. The others name the region.",
		examples: []example{
			{"let a customer start again", "ratelimitd reset -d messaging to_number=2061234567"},
			{"ask another machine, with a token from a file",
				"ratelimitd reset -s 10.0.0.7:6070 --token-file token -d edge path=/api"},
		},
		exits: counterExits("cleared"),
	}
}

// counterExits returns the exit codes of a command that reads or changes counters.
func counterExits(done string) []exitCode {
	return []exitCode{
		{0, "The counters were " + done + "."}, {1, "The server does not answer, or rejects the call."},
		{2, "The command line, a setting or a file is invalid or missing."},
		{exitNothing, "No rule matches any of the descriptors."},
	}
}

// Run returns nil if the counters are cleared, and exit code 3 if no rule matches any of the descriptors.
func (o *resetCommand) Run(ctx context.Context, s streams) error {
	return askCounters(ctx, s, &o.Options, (*serviceclient.Client).Reset)
}

// askCounters asks about each descriptor, and writes the answers.
func askCounters[C serviceclient.Counters](ctx context.Context, s streams, o *counterOptions,
	ask func(*serviceclient.Client, context.Context, string, []descriptor.Entry, *limiter.RequestLimit) (C, error),
) error {
	descriptors, limit, err := o.Ask.descriptors()
	if err != nil {
		return err
	}
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	var all []C
	matched := false
	var failed error
	for _, entries := range descriptors {
		var c C
		if c, failed = ask(client, ctx, o.Ask.Domain, entries, limit); failed != nil {
			break // earlier answers are still shown: their counters may have been cleared
		}
		matched = matched || c.GetRule() != nil || len(c.GetCounters()) > 0
		all = append(all, c)
	}
	err = o.Output.write(s.out,
		func(w io.Writer) error {
			return serviceclient.WriteCounters(w, o.Ask.Domain, descriptors, all, o.Output.Color.on(w))
		},
		func(w io.Writer) error { return serviceclient.WriteMessages(w, all) })
	switch {
	case failed != nil:
		return failed
	case err == nil && !matched:
		return verdict(exitNothing)
	}
	return err
}
