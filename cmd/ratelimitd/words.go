package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// normalize turns `help [COMMAND]`, `help settings`, --version, and flags of ratelimit_config_check with one dash into what kong understands.
func normalize(args []string) []string {
	if len(args) > 0 {
		switch args[0] {
		case "help":
			switch {
			case len(args) > 1 && args[1] == "help":
				args = args[1:]
			case len(args) == 2 && args[1] == everySetting:
				return []string{"serve", "--help"}
			}
			return append(slices.Clone(args[1:]), "--help")
		case "--version":
			return append([]string{"version"}, args[1:]...)
		}
	}
	return longFlags(args)
}

// unknownCommand is the error for a first word that is no command. Kong would take it for an argument of the default one.
func unknownCommand(model *kong.Application, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return nil
	}
	var names []string
	for _, c := range model.Children {
		if c.Name == args[0] {
			return nil
		}
	}
	for _, c := range visible(model) {
		names = append(names, c.Name)
	}
	if meant := yamlform.Closest(args[0], names); meant != "" {
		return fmt.Errorf("unknown command %q: did you mean %s?", args[0], meant)
	}
	return fmt.Errorf("unknown command %q: use one of %s", args[0], strings.Join(names, ", "))
}
