package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// outputOptions select the format of a result.
type outputOptions struct {
	Output string `short:"o" enum:"table,json,yaml" default:"table" help:"Output format: table, json or yaml."`
	JSON   bool   `help:"Short for -o json."`

	Color colorOption `embed:""`
}

// write writes a result in the form that was asked for. YAML is made from the JSON, so both have the same content.
func (o *outputOptions) write(to io.Writer, asText, asJSON func(io.Writer) error) error {
	form := o.Output
	if o.JSON {
		form = "json"
	}
	return writeAs(form, to, asText, asJSON)
}

func writeAs(form string, to io.Writer, asText, asJSON func(io.Writer) error) error {
	switch form {
	case "json":
		return asJSON(to)
	case "yaml":
		var b bytes.Buffer
		if err := asJSON(&b); err != nil {
			return err
		}
		text, err := yamlform.FromJSON(b.Bytes())
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = to.Write(text)
		return err
	default:
		return asText(to)
	}
}

// colorOption is the flag that switches colours in text on or off.
type colorOption struct {
	Color string `enum:"auto,always,never" default:"auto" help:"Colours. auto: on a terminal, unless NO_COLOR is set."`
}
