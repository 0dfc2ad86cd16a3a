// Command attack shows how much one client can harm the others. It builds and starts a ratelimitd, attacks it, and
// measures the latency of a well-behaved client, the memory of the server, and the time until it recovers. It prints
// one table, and fails if the server ends, needs more than 300 MB above idle, or does not recover.
//
// The attacker is a separate process that sends HTTP/2 frames without a library.
//
// Everything is bounded in time and number, and runs on loopback only. docs/contributing/attacks.md explains the table.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	short bool
	only  string

	binary   string // an existing binary of the server
	profiles string // the directory for heap profiles; "": none are kept

	// For the attacking process, which this program starts itself.
	attack, at string
	lasts      time.Duration
}

// phases are the durations of a scenario's parts.
type phases struct {
	before, during, after time.Duration
}

func (o *options) phases(s *scenario) phases {
	switch {
	case o.short:
		return phases{500 * time.Millisecond, 1500 * time.Millisecond, time.Second}
	case s.long:
		return phases{5 * time.Second, time.Minute, 10 * time.Second}
	default:
		return phases{3 * time.Second, 8 * time.Second, 5 * time.Second}
	}
}

func main() {
	var o options
	flag.BoolVar(&o.short, "short", false, "a few seconds for each attack, and less of it")
	flag.StringVar(&o.only, "only", "", "attacks to run, by name, comma-separated; all if empty")
	flag.StringVar(&o.binary, "binary", "", "server to attack, if it is not to be built: an older one, to compare with")
	flag.StringVar(&o.profiles, "profiles", "", "directory for the server's heap profile at the end of each attack")
	flag.StringVar(&o.attack, "attack", "", "used by the program itself: be the attacker of this scenario")
	flag.StringVar(&o.at, "at", "", "used by the program itself: address to attack, on loopback")
	flag.DurationVar(&o.lasts, "for", 0, "used by the program itself: how long to attack")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.attack != "" {
		err = attack(ctx, &o)
	} else {
		err = run(ctx, &o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "attack:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options, out io.Writer) (err error) {
	all, err := choose(scenarios(), o.only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "ratelimitd-attack-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if o.binary == "" {
		fmt.Fprintln(out, "building the server")
		if err := build(ctx, dir); err != nil {
			return err
		}
		o.binary = filepath.Join(dir, "ratelimitd")
	}
	var outcomes []*outcome
	var failed []error
	for _, s := range all {
		fmt.Fprintf(out, "%s: %s\n", s.name, s.what(o.short))
		result, err := s.run(ctx, o, dir)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.name, err))
		}
		if result != nil {
			outcomes = append(outcomes, result)
		}
	}
	if err := report(out, outcomes); err != nil {
		return err
	}
	for _, r := range outcomes {
		failed = append(failed, r.verdict(o.short))
	}
	return errors.Join(failed...)
}

// choose picks scenarios by name.
func choose(all []*scenario, only string) ([]*scenario, error) {
	if only == "" {
		return all, nil
	}
	var chosen []*scenario
	for name := range strings.SplitSeq(only, ",") {
		found := find(all, name)
		if found == nil {
			return nil, fmt.Errorf("-only %s: there is no such attack", name)
		}
		chosen = append(chosen, found)
	}
	return chosen, nil
}

func find(all []*scenario, name string) *scenario {
	for _, s := range all {
		if s.name == name {
			return s
		}
	}
	return nil
}
