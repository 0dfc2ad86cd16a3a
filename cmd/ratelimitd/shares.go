package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config/entries"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// sharesCommand is the subcommand that lists the holders of shares of the limits of quota buckets.
type sharesCommand struct {
	Domain string        `short:"d" required:"" help:"Domain of the buckets."`
	Where  string        `short:"w" placeholder:"KEY=VALUE" help:"Entries that the ID of a bucket must have: key=value,key2=value2. Unset: all buckets."`
	Most   uint32        `default:"100" help:"How many buckets to list, up to 1000. Those with the most demand come first."`
	Port   portOptions   `embed:""`
	Output outputOptions `embed:"" group:"Output"`
}

func (*sharesCommand) about() about {
	return about{
		note: "Clients that decide themselves, such as Envoy's rate limit quota filter, get a share of each quota bucket's " +
			"limit. A replica knows only the shares of its own clients, so ask each replica.",
		examples: []example{
			{"see who holds which share in a domain", "ratelimitd shares -d api"},
			{"list the buckets of one tenant", "ratelimitd shares -d api --where tenant=acme"},
			{"ask another machine, as JSON", "ratelimitd shares -s 10.0.0.7:6070 --token-file token --json -d api"},
		},
		exits: []exitCode{
			{0, "The shares were shown, even if there are none."}, {1, "The server does not answer, or rejects the call."},
			{2, "The command line, a setting or a file is invalid or missing."},
		},
	}
}

// Run shows the shares.
func (o *sharesCommand) Run(ctx context.Context, s streams) error {
	if o.Most == 0 || o.Most > 1000 {
		return misuse(errors.New("--most: use a number from 1 to 1000"))
	}
	var where []descriptor.Entry
	if o.Where != "" {
		var err error
		if where, err = entries.Parse(o.Where); err != nil {
			return misuse(fmt.Errorf("--where: %w", err))
		}
	}
	client, err := o.Port.client(s.err)
	if err != nil {
		return err
	}
	defer client.Close()
	found, err := client.Shares(ctx, o.Domain, where, o.Most)
	if err != nil {
		return err
	}
	return o.Output.write(s.out,
		func(w io.Writer) error {
			return serviceclient.WriteShares(w, o.Domain, len(where) > 0, found, time.Now(), o.Output.Color.on(w))
		},
		func(w io.Writer) error { return serviceclient.WriteMessage(w, found) })
}
