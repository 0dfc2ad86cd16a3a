package main

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/caller"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// counterOptions are the options of peek and reset.
type counterOptions struct {
	Ask     askOptions     `embed:""`
	Server  string         `short:"s" default:"localhost:6070" placeholder:"ADDRESS" help:"Address of the server's debug port. Default: localhost:6070."`
	Token   tokenOptions   `embed:"" group:"Connection"`
	Connect connectOptions `embed:"" group:"Connection"`
	Output  outputOptions  `embed:"" group:"Output"`
}

// peekCommand is the subcommand that shows counters.
type peekCommand struct {
	Options counterOptions `embed:""`
}

// Run returns nil if the descriptors have counters, and exit code 3 if no rule matches any of them.
func (o *peekCommand) Run(ctx context.Context, s streams) error {
	return o.Options.run(ctx, s, (*caller.Client).Peek)
}

// resetCommand is the subcommand that clears counters.
type resetCommand struct {
	Options counterOptions `embed:""`
}

// Run returns nil if the counters are cleared, and exit code 3 if no rule matches any of the descriptors.
func (o *resetCommand) Run(ctx context.Context, s streams) error {
	return o.Options.run(ctx, s, (*caller.Client).Reset)
}

type counterCall func(*caller.Client, context.Context, string, []descriptor.Entry, *limiter.Override) (*caller.Counters, error)

func (o *counterOptions) run(ctx context.Context, s streams, ask counterCall) error {
	descriptors, override, err := o.Ask.descriptors()
	if err != nil {
		return err
	}
	client, err := o.Token.admin(&o.Connect, o.Server, s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	all := []*caller.Counters{}
	matched := false
	var failed error
	for _, entries := range descriptors {
		var c *caller.Counters
		if c, failed = ask(client, ctx, o.Ask.Domain, entries, override); failed != nil {
			break // earlier answers are still shown: their counters may have been cleared
		}
		matched = matched || c.Matched
		all = append(all, c)
	}
	if o.Output.json() {
		err = caller.WriteJSON(s.out, all)
	} else {
		err = caller.WriteCounters(s.out, all, o.Output.Color.on(s.out))
	}
	switch {
	case failed != nil:
		return failed
	case err == nil && !matched:
		return verdict(exitNothing)
	}
	return err
}
