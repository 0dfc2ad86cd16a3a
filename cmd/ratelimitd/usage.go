package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// usageCommand is the subcommand that lists the counters of one customer.
type usageCommand struct {
	Domain string        `short:"d" required:"" help:"Domain of the rules."`
	Where  string        `short:"w" placeholder:"KEY=VALUE" help:"Entries that a descriptor must have: key=value,key2=value2."`
	Most   int           `default:"1000" help:"About how many descriptors to list."`
	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*usageCommand) about() about {
	return about{
		examples: []example{
			{"see what a tenant has used", "ratelimitd usage -d api --where tenant=acme"},
			{"ask another machine, as JSON",
				"ratelimitd usage -s 10.0.0.7:6070 --token-file token --json -d api --where tenant=acme"},
		},
		exits: []exitCode{
			{0, "The counters were shown."}, {1, "The server does not answer, or rejects the call."},
			{2, "The command line, a setting or a file is invalid or missing."},
			{exitNothing, "No counter with these entries is in use."},
		},
	}
}

// Run returns nil if something is shown, and exit code 3 if not.
func (o *usageCommand) Run(ctx context.Context, s streams) error {
	switch {
	case o.Where == "":
		return misuse(errors.New("--where: say which entries a descriptor must have: key=value,key2=value2"))
	case o.Most <= 0:
		return misuse(errors.New("--most: use a number above 0"))
	}
	asked, err := entries.Parse(o.Where)
	if err != nil {
		return misuse(fmt.Errorf("--where: %w", err))
	}
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := client.Usage(ctx, o.Domain, asked, o.Most)
	if err != nil {
		return err
	}
	err = o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteUsage(w, found, o.Output.Color.on(w)) },
		func(w io.Writer) error { return serviceclient.WriteMessage(w, found) })
	if err == nil && len(found.Usages) == 0 {
		return verdict(exitNothing)
	}
	return err
}
