package main

import (
	"context"
	"fmt"
	"runtime/debug"
)

type version struct{}

// Run prints what the build recorded about itself.
func (*version) Run(_ context.Context, s streams) error {
	_, err := fmt.Fprintln(s.out, buildVersion())
	return err
}

// release is the version that an image was built as; the linker sets it.
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
