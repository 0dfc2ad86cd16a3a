package main

import (
	"path"
	"strings"

	"github.com/alecthomas/kong"
)

// isReference reports whether a path is the path of envoyproxy/ratelimit's program. That program ignores its arguments,
// and manifests rely on it: they name its path as the command of an image that has an entry point, or pass it the
// arguments of another container.
func isReference(name string) bool { return path.Base(name) == "ratelimit" }

// arguments returns the words after the program's name. envoyproxy/ratelimit's name stays in front, because the words
// mean something else after it.
func arguments(line []string) []string {
	if isReference(line[0]) {
		return line
	}
	return line[1:]
}

// asReference leaves out the arguments that serve does not have, if the program was called by envoyproxy/ratelimit's
// name. The name of a command stays a command.
func asReference(model *kong.Application, args []string) (kept, ignored []string) {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") && unknownCommand(model, args) == nil {
		return args, nil
	}
	known := flagsByName(model.DefaultCmd)
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "--")
		name, _, hasValue := strings.Cut(name, "=")
		flag := known[name]
		switch {
		case args[i] == "-h":
			kept = append(kept, args[i])
		case !isFlag || flag == nil:
			ignored = append(ignored, args[i])
		case hasValue || flag.IsBool() || i+1 == len(args):
			kept = append(kept, args[i])
		default:
			kept = append(kept, args[i], args[i+1])
			i++
		}
	}
	return kept, ignored
}
