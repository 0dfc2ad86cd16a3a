package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// spoken is a command line as kong knows it: with `help [COMMAND]` and --version as other programs have them, and with two
// dashes before the flags of ratelimit_config_check.
func spoken(args []string) []string {
	if len(args) > 0 {
		switch args[0] {
		case "help":
			return append(slices.Clone(args[1:]), "--help")
		case "--version":
			return []string{"version"}
		}
	}
	return longFlags(args)
}

// unknownCommand says that the first word is no command, nil if it is one. To kong it is an argument of the default one.
func unknownCommand(model *kong.Application, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return nil
	}
	var names []string
	for _, c := range model.Children {
		names = append(names, c.Name)
	}
	if slices.Contains(names, args[0]) {
		return nil
	}
	if meant := yamlform.Closest(args[0], names); meant != "" {
		return fmt.Errorf("unknown command %q: did you mean %s?", args[0], meant)
	}
	return fmt.Errorf("unknown command %q: there are %s", args[0], strings.Join(names, ", "))
}
