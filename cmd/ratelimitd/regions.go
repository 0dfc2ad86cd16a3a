package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operator"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// regionsCommand is the subcommand that shows what a server knows about the other regions, and what is next while a home moves.
type regionsCommand struct {
	Action string   `arg:"" optional:"" enum:"show,move" default:"show" help:"show or move. Unset: show."`
	Names  []string `arg:"" optional:"" name:"region" placeholder:"REGION" help:"For move, the old home and the new one."`

	Ask            []string `group:"Move" placeholder:"REGION=ADDRESS,..." help:"Admin ports of replicas: all of the new home, and at least one of each other region that can be reached."`
	OldHomeStopped bool     `group:"Move" help:"The old home has certainly stopped, so the new one need not wait for a majority."`

	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*regionsCommand) about() about {
	return about{
		note: "Each replica knows only whom it asked itself. When regions are cut off from each other, ask one in each region.",
		examples: []example{
			{"what the server on this machine knows", "ratelimitd regions"},
			{"what is next, to move a home from eu to us?", "ratelimitd regions move eu us --ask eu=10.0.0.7:6070,us=10.1.0.7:6070,us=10.1.0.8:6070"},
			{"as JSON, from another machine", "ratelimitd regions -s 10.0.0.7:6070 --token-file token --json"},
		},
		exits: []exitCode{
			{0, "The regions were shown, even if none is set."}, {1, "The server does not answer, or rejects the call; or the move is not safe."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run shows the regions.
func (o *regionsCommand) Run(ctx context.Context, s streams) error {
	switch {
	case o.Action == "move":
		return o.move(ctx, s)
	case len(o.Names) > 0 || len(o.Ask) > 0 || o.OldHomeStopped:
		return misuse(errors.New("regions to move, --ask and --old-home-stopped belong to: ratelimitd regions move OLD NEW"))
	}
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
