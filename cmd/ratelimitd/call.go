package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/operator/serviceclient"
)

// callCommand is the subcommand that sends requests to a server.
type callCommand struct {
	Ask    askOptions `embed:""`
	Server string     `short:"s" default:"localhost:8081" placeholder:"ADDRESS" help:"Address of the server's gRPC port: host:port or unix:PATH."`
	Hits   int64      `default:"1" help:"Hits of each descriptor; 0 peeks, a negative number (--hits=-1) refunds."`

	Rate        string        `placeholder:"N/s" group:"Many requests" help:"Send this many requests per second (or N/m, N/h), without waiting for answers, and print a summary."`
	For         time.Duration `placeholder:"TIME" group:"Many requests" help:"How long to send. Default with --rate: 10s, unless --count is given."`
	Count       int64         `placeholder:"N" group:"Many requests" help:"How many to send. Without --rate each waits for the answer to the one before."`
	Concurrency int           `placeholder:"N" group:"Many requests" help:"Maximum number of requests in flight. Default: 64 with --rate, else 1."`

	Connect connectOptions `embed:"" group:"Connection"`
	Output  outputOptions  `embed:"" group:"Output"`
}

func (*callCommand) about() about {
	return about{
		examples: []example{
			{"one decision, of the server on this machine", "ratelimitd call -d messaging to_number=2061234567"},
			{"a load of 100 requests a second for 10 seconds", "ratelimitd call -d messaging to_number=1 --rate 100/s --for 10s"},
			{"look without counting, as JSON", "ratelimitd call -d messaging to_number=2061234567 --hits 0 -o json"},
		},
		exits: []exitCode{
			{0, "Every request passes."}, {1, "A request has no answer."}, {2, "The command line is invalid."}, {exitOverLimit, "A request is over its limit."},
		},
	}
}

// Run sends the requests. It returns nil if they pass, exit code 4 if one is refused, and an error without an answer.
func (o *callCommand) Run(ctx context.Context, s streams) error {
	request, err := o.request()
	if err != nil {
		return err
	}
	load, err := o.load()
	if err != nil {
		return misuse(err)
	}
	client, err := o.Connect.dial(o.Server, "", "8081")
	if err != nil {
		return err
	}
	defer client.Close()
	if load != nil {
		return o.many(ctx, s, client, request, load)
	}
	answer, err := client.Decide(ctx, request)
	if err != nil {
		return err
	}
	err = o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteAnswer(w, answer, o.Output.Color.on(w)) },
		func(w io.Writer) error { return serviceclient.WriteJSON(w, answer) })
	if err == nil && answer.Code == serviceclient.OverLimit {
		return verdict(exitOverLimit)
	}
	return err
}

func (o *callCommand) request() (*serviceclient.Request, error) {
	entries, limit, err := o.Ask.descriptors()
	if err != nil {
		return nil, err
	}
	if o.Hits > backend.MaxHits || o.Hits < -backend.MaxHits {
		return nil, misuse(fmt.Errorf("--hits %d: use at most %d, which is more than any limit", o.Hits, int64(backend.MaxHits)))
	}
	return &serviceclient.Request{Domain: o.Ask.Domain, Descriptors: entries, Hits: o.Hits, Limit: limit}, nil
}

// load is the load of --rate, --for and --count; nil: one request.
func (o *callCommand) load() (*serviceclient.Load, error) {
	l := &serviceclient.Load{For: o.For, Count: o.Count, Concurrency: o.Concurrency}
	switch {
	case o.For < 0 || o.For > serviceclient.MaxFor:
		return nil, fmt.Errorf("--for %s: at most %s", o.For, serviceclient.MaxFor)
	case o.Count < 0 || o.Count > serviceclient.MaxCount:
		return nil, fmt.Errorf("--count %d: at most %d", o.Count, int64(serviceclient.MaxCount))
	case o.Concurrency < 0 || o.Concurrency > serviceclient.MaxConcurrency:
		return nil, fmt.Errorf("--concurrency %d: at most %d", o.Concurrency, serviceclient.MaxConcurrency)
	case o.Rate == "" && o.For == 0 && o.Count == 0:
		if o.Concurrency > 0 {
			return nil, errors.New("--concurrency needs --rate, --for or --count")
		}
		return nil, nil
	}
	if o.Rate != "" {
		var err error
		if l.Rate, err = parseRate(o.Rate); err != nil {
			return nil, fmt.Errorf("--rate %s: %w", o.Rate, err)
		}
		if l.For == 0 && l.Count == 0 {
			l.For = 10 * time.Second
		}
	}
	return l, nil
}

func (o *callCommand) many(ctx context.Context, s streams, client *serviceclient.Client, request *serviceclient.Request, load *serviceclient.Load) error {
	progress := isTerminal(s.err)
	if progress {
		load.Progress = func(sum *serviceclient.Summary) { fmt.Fprintf(s.err, "\r\x1b[K%s", sum.Line()) }
	}
	sum := client.Load(ctx, request, *load)
	if progress {
		_, _ = io.WriteString(s.err, "\r\x1b[K")
	}
	err := o.Output.write(s.out,
		func(w io.Writer) error { return serviceclient.WriteSummary(w, sum, o.Output.Color.on(w)) },
		func(w io.Writer) error { return serviceclient.WriteJSON(w, sum) })
	switch {
	case err != nil:
		return err
	case sum.Failed > 0:
		return fmt.Errorf("%d of %d requests got no answer", sum.Failed, sum.Sent)
	case sum.Sent == 0:
		return errors.New("nothing was sent")
	case sum.OverLimit > 0:
		return verdict(exitOverLimit)
	}
	return nil
}
