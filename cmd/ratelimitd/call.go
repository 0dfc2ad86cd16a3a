package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/caller"
)

// call is the subcommand that asks a server for decisions.
type call struct {
	Ask    askOptions `embed:""`
	Server string     `short:"s" default:"localhost:8081" placeholder:"ADDRESS" help:"Where the server's gRPC is: host:port or unix:PATH. Default: localhost:8081."`
	Hits   int64      `default:"1" help:"What each descriptor adds; 0 looks and takes nothing, a negative number (--hits=-1) gives back."`

	Rate        string        `placeholder:"N/s" group:"Many requests" help:"Send so many per second (or N/m, N/h), whatever is answered, and sum up."`
	For         time.Duration `placeholder:"TIME" group:"Many requests" help:"For how long. Default with --rate: 10s, unless --count is given."`
	Count       int64         `placeholder:"N" group:"Many requests" help:"How many. Without --rate the next one goes when one is answered."`
	Concurrency int           `placeholder:"N" group:"Many requests" help:"At most so many at once. Default: 64 with --rate, else 1."`

	Connect connectOptions `embed:"" group:"Connection"`
	Output  outputOptions  `embed:"" group:"Output"`
}

// Run asks: nil if the request passes, exit code 4 if it is refused, an error if there is no answer.
func (o *call) Run(ctx context.Context, s streams) error {
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
	if o.Output.json() {
		err = caller.WriteJSON(s.out, answer)
	} else {
		err = caller.WriteAnswer(s.out, answer, o.Output.color(s.out))
	}
	if err == nil && answer.Code == caller.OverLimit {
		return verdict(exitOverLimit)
	}
	return err
}

func (o *call) request() (*caller.Request, error) {
	entries, override, err := o.Ask.descriptors()
	if err != nil {
		return nil, err
	}
	if o.Hits > backend.MaxHits || o.Hits < -backend.MaxHits {
		return nil, misuse(fmt.Errorf("--hits %d: at most %d, which is more than any limit", o.Hits, int64(backend.MaxHits)))
	}
	return &caller.Request{Domain: o.Ask.Domain, Descriptors: entries, Hits: o.Hits, Override: override}, nil
}

// load is what --rate, --for and --count ask for; nil: one request.
func (o *call) load() (*caller.Load, error) {
	l := &caller.Load{For: o.For, Count: o.Count, Concurrency: o.Concurrency}
	switch {
	case o.For < 0 || o.For > caller.MaxFor:
		return nil, fmt.Errorf("--for %s: at most %s", o.For, caller.MaxFor)
	case o.Count < 0 || o.Count > caller.MaxCount:
		return nil, fmt.Errorf("--count %d: at most %d", o.Count, int64(caller.MaxCount))
	case o.Concurrency < 0 || o.Concurrency > caller.MaxConcurrency:
		return nil, fmt.Errorf("--concurrency %d: at most %d", o.Concurrency, caller.MaxConcurrency)
	case o.Rate == "" && o.For == 0 && o.Count == 0:
		if o.Concurrency > 0 {
			return nil, errors.New("--concurrency is for many requests: give --rate, --for or --count too")
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

func (o *call) many(ctx context.Context, s streams, client *caller.Client, request *caller.Request, load *caller.Load) error {
	progress := isTerminal(s.err)
	if progress {
		load.Progress = func(sum *caller.Summary) { fmt.Fprintf(s.err, "\r\x1b[K%s", sum.Line()) }
	}
	sum := client.Load(ctx, request, *load)
	if progress {
		_, _ = io.WriteString(s.err, "\r\x1b[K")
	}
	var err error
	if o.Output.json() {
		err = caller.WriteJSON(s.out, sum)
	} else {
		err = caller.WriteSummary(s.out, sum, o.Output.color(s.out))
	}
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
