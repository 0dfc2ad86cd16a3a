package main

import (
	"context"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/ratelimitd/ratelimitd/internal/ruleschema"
)

// schemaCommand is the subcommand that prints a JSON Schema for editors and pipelines.
type schemaCommand struct {
	Of string `arg:"" enum:"rules,tests" default:"rules" help:"rules: of rule files; tests: of test files."`
}

// Run writes the JSON Schema.
func (o *schemaCommand) Run(_ context.Context, s streams) error {
	of := map[string]func() *jsonschema.Schema{"rules": ruleschema.Rules, "tests": ruleschema.Tests}
	b, err := ruleschema.Write(of[o.Of]())
	if err != nil {
		return err
	}
	if _, err := s.out.Write(b); err != nil {
		return fmt.Errorf("write schema: %w", err)
	}
	return nil
}
