package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// runner is a subcommand whose flags have been read.
type runner interface {
	Run(ctx context.Context, s streams) error
	about() about
}

// commands returns the subcommands by their names on the command line.
func (c *cli) commands() map[string]runner {
	return map[string]runner{
		"serve": &c.Serve, "check": &c.Check, "test": &c.Test, "conform": &c.Conform, "schema": &c.Schema,
		"version": &c.Version, "simulate": &c.Simulate,
		"explain": &c.Explain, "call": &c.Call, "peek": &c.Peek, "reset": &c.Reset, "usage": &c.Usage, "shares": &c.Shares,
		"fleet": &c.Fleet, "regions": &c.Regions, "override": &c.Override, "healthcheck": &c.Healthcheck,
	}
}

// parse reads a command line into the parser's struct and returns the name of the subcommand. For --help it prints the
// help and returns no name.
//
// It covers the parts of kong's Parse and Validate that we use. Parse and Validate look for hooks by the names of
// methods. Because of that the linker would keep every method of every type in the binary: another 9 MB.
func parse(parser *kong.Kong, args []string) (name string, err error) {
	line, err := kong.Trace(parser, args)
	if err == nil {
		err = line.Error
	}
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(line.Path, func(p *kong.Path) bool {
		return p.Flag != nil && p.Flag == parser.Model.HelpFlag
	}) {
		return "", line.PrintUsage(false)
	}
	if err := line.Reset(); err != nil { // defaults and the environment
		return "", err
	}
	if _, err := line.Apply(); err != nil {
		return "", err
	}
	return line.Selected().Name, validate(line)
}

// validate reports missing flags and arguments, and values that are not among their choices.
func validate(line *kong.Context) error {
	for _, p := range line.Path {
		if node := p.Node(); node != nil {
			for _, v := range node.Values() {
				if err := validateChoice(v); err != nil {
					return err
				}
			}
		}
	}
	for _, p := range line.Path {
		var missing []string
		for _, f := range p.Flags {
			if f.Required && !f.Set {
				missing = append(missing, f.Summary())
			}
		}
		if len(missing) > 0 {
			slices.Sort(missing)
			return fmt.Errorf("missing flags: %s", strings.Join(missing, ", "))
		}
	}
	var missing []string
	for _, v := range line.Selected().Positional {
		if v.Required && !v.Set {
			missing = append(missing, v.Summary())
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("expected %s", strconv.Quote(strings.Join(missing, " ")))
	}
	return nil
}

// validateChoice reports a value that is not in the flag's enum.
func validateChoice(v *kong.Value) error {
	if v.Enum == "" || v.Required && !v.Set && v.Flag == nil { // a missing argument is reported as that
		return nil
	}
	given := []string{v.Target.String()}
	if v.Target.Kind() == reflect.Slice {
		given = v.Target.Interface().([]string)
	}
	choices := v.EnumSlice()
	for _, text := range given {
		if slices.Contains(choices, text) {
			continue
		}
		var quoted []string
		for _, c := range choices {
			quoted = append(quoted, strconv.Quote(c))
		}
		return fmt.Errorf("%s must be one of %s but got %q", v.ShortSummary(), strings.Join(quoted, ","), text)
	}
	return nil
}
