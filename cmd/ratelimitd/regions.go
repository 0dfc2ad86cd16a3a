package main

import (
	"context"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// regionsCommand is the subcommand that lists the other regions, as a server sees them.
type regionsCommand struct {
	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*regionsCommand) about() about {
	return about{
		note: "A replica knows only the regions that it asked. When regions are cut off from each other, ask one " +
			"replica in each.",
		examples: []example{
			{"ask the server on this machine", "ratelimitd regions"},
			{"ask another machine, as JSON", "ratelimitd regions -s 10.0.0.7:6070 --token-file token --json"},
		},
		exits: []exitCode{
			{0, "The regions were shown, even if none is set."}, {1, "The server does not answer, or rejects the call."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run shows the regions.
func (o *regionsCommand) Run(ctx context.Context, s streams) error {
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := client.Regions(ctx)
	if err != nil {
		return err
	}
	return o.Output.write(s.out,
		func(w io.Writer) error { return operator.WriteRegions(w, found, time.Now()) },
		func(w io.Writer) error { return serviceclient.WriteMessage(w, found) })
}
