// Command ratelimitd decides whether requests may pass.
//
// One file per subcommand; options are structs that kong fills from flags and the environment. Only main exits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // calendar windows need the zones, which an empty image does not have

	"github.com/alecthomas/kong"
)

// cli is the command line.
type cli struct {
	Serve   serveCommand   `cmd:"" default:"withargs" help:"Serve decisions over gRPC and HTTP (the default)."`
	Check   checkCommand   `cmd:"" help:"Check rule files: exit code 0 if they can be loaded, 1 if not, 2 if there is nothing to check."`
	Test    testCommand    `cmd:"" help:"Run unit tests for rules: exit code 0 if all pass, 1 if not, 2 if some cannot be run."`
	Schema  schemaCommand  `cmd:"" help:"Print the JSON Schema of rule files or of test files, for editors."`
	Version versionCommand `cmd:"" help:"Print the version and exit."`

	Simulate simulateCommand `cmd:"" help:"Replay access logs through rules and report what would have been refused: exit code 0, 1 if --fail-on applies, 2 if rules, mapping or log cannot be used."`

	Explain explainCommand `cmd:"" help:"Show what rules do with a request, and why: exit code 0 if a rule matches, 3 if none does."`
	Call    callCommand    `cmd:"" help:"Send one request to a server, or many: exit code 0 if all pass, 4 if one is refused, 1 if there is no answer."`
	Peek    peekCommand    `cmd:"" help:"Show counters of a server: exit code 0 if a rule matches, 3 if none does."`
	Reset   resetCommand   `cmd:"" help:"Clear counters of a server: exit code 0 if a rule matches, 3 if none does."`

	Healthcheck healthcheckCommand `cmd:"" help:"Check the health of the service on this machine: exit code 0 if it is healthy."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// streams are the outputs of a subcommand.
type streams struct {
	out, err io.Writer
}

// run executes one command line and returns its exit code: 0 for success, 1 for a failure, 2 for an invalid command line or
// environment. Subcommands may have more (ask.go).
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var c cli
	parser, err := newParser(&c, kong.Writers(stdout, stderr))
	if err == nil {
		err = unknownCommand(parser.Model, normalize(args))
	}
	var name string
	if err == nil {
		name, err = parse(parser, normalize(args))
	}
	if err != nil {
		fmt.Fprintf(stderr, "ratelimitd: %v\n", err)
		return 2
	}
	if name == "" { // --help
		return 0
	}
	if err := c.commands()[name].Run(ctx, streams{stdout, stderr}); err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintf(stderr, "ratelimitd: %s\n", text)
		}
		var coded kong.ExitCoder
		if errors.As(err, &coded) {
			return coded.ExitCode()
		}
		return 1
	}
	return 0
}

// newParser reads command lines, after a look at the environment: what is misspelt there ends it.
func newParser(c *cli, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(c, append([]kong.Option{
		kong.Name("ratelimitd"),
		kong.Description("A rate limit service for Envoy and everybody else. Every flag can be set by the environment variable shown beside it; a flag beats the environment."),
		kong.Help(printHelp),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		packageDefaults,
	}, append(values(&c.Serve.Adjusted), options...)...)...)
	if err != nil {
		return nil, err
	}
	if err := forgetEmpty(parser.Model); err != nil {
		return nil, err
	}
	return parser, checkEnvironment(parser.Model, os.Environ())
}

// printHelp is the help of a command. That of the program has the flags of serve too, which is what it does unasked.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil || ctx.Selected() != nil {
		return err
	}
	served, err := kong.Trace(ctx.Kong, []string{"serve"})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(ctx.Stdout); err != nil {
		return err
	}
	return kong.DefaultHelpPrinter(options, served)
}
