package main

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/caller"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// counterOptions are those of the subcommands that are about counters.
type counterOptions struct {
	Ask     askOptions     `embed:""`
	Server  string         `short:"s" default:"localhost:6070" placeholder:"ADDRESS" help:"Where the server's debug port is. Default: localhost:6070."`
	Token   tokenOptions   `embed:"" group:"Connection"`
	Connect connectOptions `embed:"" group:"Connection"`
	Output  outputOptions  `embed:"" group:"Output"`
}

// peek is the subcommand that looks at counters.
type peek struct {
	Options counterOptions `embed:""`
}

// Run looks: nil if the descriptors have counters, exit code 3 if no rule matches any of them.
func (o *peek) Run(ctx context.Context, s streams) error {
	return o.Options.run(ctx, s, (*caller.Client).Peek)
}

// reset is the subcommand that clears counters.
type reset struct {
	Options counterOptions `embed:""`
}

// Run clears: nil if the counters are cleared, exit code 3 if no rule matches any of the descriptors.
func (o *reset) Run(ctx context.Context, s streams) error {
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
			break // what was answered before is shown: it may have been cleared
		}
		matched = matched || c.Matched
		all = append(all, c)
	}
	if o.Output.json() {
		err = caller.WriteJSON(s.out, all)
	} else {
		err = caller.WriteCounters(s.out, all, o.Output.color(s.out))
	}
	switch {
	case failed != nil:
		return failed
	case err == nil && !matched:
		return verdict(exitNothing)
	}
	return err
}
