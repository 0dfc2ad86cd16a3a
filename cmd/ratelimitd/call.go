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
	Hits   int64      `default:"1" help:"Hits of each descriptor. 0 only looks, a negative number (--hits=-1) returns hits."`

	Count       int64 `placeholder:"N" group:"Many requests" help:"Send this many requests and print a summary."`
	Concurrency int   `placeholder:"N" group:"Many requests" help:"How many requests to send at the same time. Default: 1."`

	Connect connectOptions `embed:"" group:"Connection"`
	Output  outputOptions  `embed:"" group:"Output"`
}

func (*callCommand) about() about {
	return about{
		examples: []example{
			{"ask the server on this machine", "ratelimitd call -d messaging to_number=2061234567"},
			{"send 1,000 requests, 16 at a time", "ratelimitd call -d messaging to_number=1 --count 1000 --concurrency 16"},
			{"look without counting, as JSON", "ratelimitd call -d messaging to_number=2061234567 --hits 0 -o json"},
		},
		exits: []exitCode{
			{0, "Every request passed."}, {1, "A request got no answer."}, {2, "The command line is invalid."},
			{exitOverLimit, "A request was denied."},
		},
	}
}

// Run sends the requests. It returns nil if they pass, exit code 4 if one is denied, and an error without an answer.
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
	sent := time.Now()
	answer, err := client.ShouldRateLimit(ctx, request.Message())
	took := time.Since(sent)
	if err != nil {
		return err
	}
	err = o.Output.write(s.out,
		func(w io.Writer) error {
			return serviceclient.WriteAnswer(w, request, answer, took, o.Output.Color.on(w))
		},
		func(w io.Writer) error { return serviceclient.WriteMessage(w, answer) })
	if err == nil && answer.GetOverallCode() == serviceclient.OverLimit {
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
		return nil, misuse(fmt.Errorf("--hits %d: use at most %d, which is more than any limit", o.Hits,
			int64(backend.MaxHits)))
	}
	return &serviceclient.Request{Domain: o.Ask.Domain, Descriptors: entries, Hits: o.Hits, Limit: limit}, nil
}

// load returns the load of --count, or nil for a single request.
func (o *callCommand) load() (*serviceclient.Load, error) {
	switch {
	case o.Count < 0 || o.Count > serviceclient.MaxCount:
		return nil, fmt.Errorf("--count %d: at most %d", o.Count, int64(serviceclient.MaxCount))
	case o.Concurrency < 0 || o.Concurrency > serviceclient.MaxConcurrency:
		return nil, fmt.Errorf("--concurrency %d: at most %d", o.Concurrency, serviceclient.MaxConcurrency)
	case o.Count > 0:
		return &serviceclient.Load{Count: o.Count, Concurrency: o.Concurrency}, nil
	case o.Concurrency > 0:
		return nil, errors.New("--concurrency needs --count")
	}
	return nil, nil
}

func (o *callCommand) many(ctx context.Context, s streams, client *serviceclient.Client, request *serviceclient.Request,
	load *serviceclient.Load) error {
	sum := client.Load(ctx, request, *load)
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
