package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// normalize turns `help [COMMAND]`, `help settings`, --version, and flags of ratelimit_config_check with one dash into
// words that kong understands.
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

// unknownCommand returns an error if the first word is not a command. Kong would take it for an argument of the default
// command.
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

// unknownFlag returns the error for the first flag that the command does not have, or nil. Kong's own error suggests a
// name only for two slips or fewer, and not for --maxMetricSeries.
func unknownFlag(model *kong.Application, args []string) error {
	command := model.DefaultCmd
	if len(args) > 0 {
		if i := slices.IndexFunc(model.Children, func(n *kong.Node) bool { return n.Name == args[0] }); i >= 0 {
			command = model.Children[i]
		}
	}
	known := flagsByName(command)
	var names []string
	for name, f := range known {
		if name == f.Name {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, arg := range args {
		name, isFlag := strings.CutPrefix(arg, "--")
		if isFlag && name == "" {
			break // only arguments follow
		}
		if name, _, _ = strings.Cut(name, "="); !isFlag || known[name] != nil {
			continue
		}
		if meant := yamlform.Closest(name, names); meant != "" {
			return fmt.Errorf("unknown flag --%s: did you mean --%s?", name, meant)
		}
		return fmt.Errorf("unknown flag --%s", name)
	}
	return nil
}

// flagsByName returns the flags of a command by all names that they may be given by.
func flagsByName(command *kong.Node) map[string]*kong.Flag {
	known := make(map[string]*kong.Flag)
	for _, flags := range command.AllFlags(false) {
		for _, f := range flags {
			known[f.Name] = f
			for _, alias := range f.Aliases {
				known[alias] = f
			}
			if f.Tag.Negatable != "" {
				known["no-"+f.Name] = f
			}
		}
	}
	return known
}
