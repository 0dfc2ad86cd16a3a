package main

import (
	"context"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// fleetCommand is the subcommand that lists the replicas that share a Redis.
type fleetCommand struct {
	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*fleetCommand) about() about {
	return about{
		examples: []example{
			{"list all replicas that share this one's Redis", "ratelimitd fleet"},
			{"ask another machine, as JSON", "ratelimitd fleet -s 10.0.0.7:6070 --token-file token --json"},
		},
		exits: []exitCode{
			{0, "The replicas were shown."}, {1, "The server does not answer, or rejects the call."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run shows the replicas.
func (o *fleetCommand) Run(ctx context.Context, s streams) error {
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := client.Fleet(ctx)
	if err != nil {
		return err
	}
	return o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteFleet(w, found, time.Now()) },
		func(w io.Writer) error { return serviceclient.WriteMessage(w, found) })
}
