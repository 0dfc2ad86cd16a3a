package main

import (
	"context"
	"fmt"
	"io"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/ratelimitd/ratelimitd/internal/authoring/ruleschema"
)

// schemaCommand is the subcommand that prints a JSON Schema for editors and pipelines.
type schemaCommand struct {
	Of     string `arg:"" enum:"rules,tests,overrides" default:"rules" help:"Kind of file: rules, tests or overrides."`
	Output string `short:"o" enum:"json,yaml" default:"json" help:"Output format: json or yaml."`
}

func (*schemaCommand) about() about {
	return about{
		examples: []example{
			{"the schema of rule files, for an editor", "ratelimitd schema > rules.schema.json"},
			{"the schema of test files, as YAML", "ratelimitd schema tests -o yaml"},
		},
		exits: []exitCode{{0, "The schema was printed."}, {2, "The command line is invalid."}},
	}
}

// Run writes the JSON Schema.
func (o *schemaCommand) Run(_ context.Context, s streams) error {
	of := map[string]func() *jsonschema.Schema{"rules": ruleschema.Rules, "tests": ruleschema.Tests,
		"overrides": ruleschema.Overrides}
	b, err := ruleschema.Write(of[o.Of]())
	if err != nil {
		return err
	}
	asJSON := func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
	if err := writeAs(o.Output, s.out, asJSON, asJSON); err != nil {
		return fmt.Errorf("write schema: %w", err)
	}
	return nil
}
