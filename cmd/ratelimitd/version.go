package main

import (
	"context"
	"fmt"
	"runtime/debug"
)

// versionCommand is the subcommand that prints the version.
type versionCommand struct{}

// Run prints what the build recorded about itself.
func (*versionCommand) Run(_ context.Context, s streams) error {
	_, err := fmt.Fprintln(s.out, buildVersion())
	return err
}

// release is the version of a released image; the linker sets it.
var release string

func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "ratelimitd (unknown build)"
	}
	v := info.Main.Version
	if release != "" {
		v = release
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return fmt.Sprintf("ratelimitd %s %s", v, info.GoVersion)
}
