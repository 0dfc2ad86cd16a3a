// Command ratelimitd decides whether requests may pass.
//
// One file per subcommand; options are structs that kong fills from flags and the environment. Only main exits.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	_ "time/tzdata" // calendar windows need the zones, which an empty image does not have

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/platform/logging"
)

// cli is the command line. The help lists the commands in this order.
type cli struct {
	Serve       serveCommand       `cmd:"" group:"Serve" default:"withargs" help:"Answer rate limit requests over gRPC and HTTP (the default)."`
	Healthcheck healthcheckCommand `cmd:"" group:"Serve" help:"Check whether the server on this machine is healthy."`
	Version     versionCommand     `cmd:"" group:"Serve" help:"Print the version, commit and date of this build."`

	Check    checkCommand    `cmd:"" group:"Write rules" help:"Check rule files for errors and probable mistakes."`
	Test     testCommand     `cmd:"" group:"Write rules" help:"Run unit tests for rules."`
	Simulate simulateCommand `cmd:"" group:"Write rules" help:"Replay access logs through rules, and show who would be denied."`
	Explain  explainCommand  `cmd:"" group:"Write rules" help:"Show which rule a request matches, and why."`
	Schema   schemaCommand   `cmd:"" group:"Write rules" help:"Print the JSON Schema of rule, test or override files."`
	Conform  conformCommand  `cmd:"" group:"Write rules" help:"Compare any rate limit service with envoyproxy/ratelimit."`

	Call  callCommand  `cmd:"" group:"Ask a running server" help:"Ask a server for a decision, or send many requests."`
	Peek  peekCommand  `cmd:"" group:"Ask a running server" help:"Show the counters of a request."`
	Reset resetCommand `cmd:"" group:"Ask a running server" help:"Clear the counters of a request."`
	Usage usageCommand `cmd:"" group:"Ask a running server" help:"List the counters of one customer."`

	Shares sharesCommand `cmd:"" group:"Ask a running server" help:"List the shares of quota buckets, by client."`

	Fleet fleetCommand `cmd:"" group:"Ask a running server" help:"List the replicas that share a Redis."`

	Regions regionsCommand `cmd:"" group:"Ask a running server" help:"Show what a server knows about other regions."`

	Override overrideCommand `cmd:"" group:"Ask a running server" help:"Change one customer's limits on a running server."`

	EverySetting bool `kong:"-"` // the help of serve has all flags
}

func main() {
	os.Exit(run(untilSignal(stopSignals()...), arguments(os.Args), os.Stdout, os.Stderr))
}

// stopSignals end a command cleanly. SIGHUP is one of them, because it shuts down envoyproxy/ratelimit cleanly too,
// unless this process runs under nohup.
func stopSignals() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// streams are the outputs of a subcommand.
type streams struct {
	out, err io.Writer
}

// run executes one command line and returns its exit code: 0 for success, 1 for a failure, 2 for an invalid command
// line or environment. Subcommands may have more (ask.go).
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	parser, err := newParser(&c, kong.Writers(stdout, stderr))
	if err == nil {
		c.Serve.Unknown = unknownVariables(parser.Model, os.Environ())
	}
	if err == nil && len(args) > 0 && isReference(args[0]) {
		args, c.Serve.Ignored = asReference(parser.Model, normalize(args[1:]))
	}
	if err == nil {
		err = unknownCommand(parser.Model, normalize(args))
	}
	var name string
	if err == nil {
		c.EverySetting = slices.Equal(args, []string{"help", everySetting})
		if name, err = parse(parser, normalize(args)); err != nil {
			err = cmp.Or(unknownFlag(parser.Model, normalize(args)), err)
		}
	}
	if err != nil {
		hint := ""
		if parser != nil {
			hint = seeHelp(parser.Model, args)
		}
		failed(stderr, logsJSON(args), err.Error(), hint)
		return 2
	}
	if name == "" { // --help
		return 0
	}
	command := c.commands()[name]
	if name == "serve" {
		err = command.Run(ctx, streams{stdout, stderr}) // a signal ends it cleanly
	} else {
		err = interruptible(ctx, command, streams{stdout, stderr})
	}
	if err != nil {
		if text := err.Error(); text != "" {
			failed(stderr, name == "serve" && c.Serve.Log.Format == "json", text, "")
		}
		var coded kong.ExitCoder
		if errors.As(err, &coded) {
			return coded.ExitCode()
		}
		return 1
	}
	return 0
}

// failed writes why the program ends: for people, or as a line of the log if the log is JSON.
func failed(w io.Writer, asJSON bool, text, hint string) {
	if !asJSON {
		fmt.Fprintf(w, "ratelimitd: %s\n", text)
		if hint != "" {
			fmt.Fprintln(w, hint)
		}
		return
	}
	log, err := logging.New(w, logging.Options{Format: "json"})
	if err != nil {
		return // the format is known
	}
	fields := []any{"error", text}
	if hint != "" {
		fields = append(fields, "hint", hint)
	}
	log.Error("ratelimitd ends", fields...)
}

// logsJSON reports whether a command line that cannot be read is one of a service whose log is JSON.
func logsJSON(args []string) bool {
	if len(args) > 0 && args[0] != "serve" && !strings.HasPrefix(args[0], "-") && !isReference(args[0]) {
		return false
	}
	format := os.Getenv("LOG_FORMAT")
	for i, arg := range args {
		if arg == "--log-format" && i+1 < len(args) {
			format = args[i+1]
		}
		if value, ok := strings.CutPrefix(arg, "--log-format="); ok {
			format = value
		}
	}
	return strings.EqualFold(format, "json")
}

// newParser returns the parser of command lines. It checks the environment first: a misspelt variable is an error.
func newParser(c *cli, options ...kong.Option) (*kong.Kong, error) {
	parser, err := c.parser(options...)
	if err != nil {
		return nil, err
	}
	if err := forgetEmpty(parser.Model); err != nil {
		return nil, err
	}
	return parser, checkEnvironment(parser.Model, os.Environ())
}

// parser returns the parser with all commands and their flags.
func (c *cli) parser(options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(c, append([]kong.Option{
		kong.Name("ratelimitd"),
		kong.Description("Rate limits for Envoy, and for any gRPC or HTTP client."),
		kong.Help(c.printHelp),
		packageDefaults,
	}, append(values(&c.Serve.Adjusted), options...)...)...)
	if err == nil {
		describedBy(parser.Model, c.commands())
	}
	return parser, err
}
