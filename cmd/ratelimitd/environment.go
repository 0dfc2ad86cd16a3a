package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/yamlform"
)

// ownPrefix is what our own variables begin with. The reference's have no prefix, so what is misspelt among those cannot be
// told from what belongs to somebody else.
const ownPrefix = "RATELIMITD_"

// serviceLink is what Kubernetes adds to the environment of every pod for a Service whose name begins with ratelimitd.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// checkEnvironment refuses variables with our prefix that no flag has.
func checkEnvironment(model *kong.Application, environ []string) error {
	known := variables(model)
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, ownPrefix) || slices.Contains(known, name) || serviceLink.MatchString(name) {
			continue
		}
		if meant := yamlform.Closest(name, known); meant != "" {
			return fmt.Errorf("unknown variable %s in the environment: did you mean %s?", name, meant)
		}
		return fmt.Errorf("unknown variable %s in the environment: `ratelimitd serve --help` lists those there are", name)
	}
	return nil
}

// variables is every variable of every flag of every command.
func variables(model *kong.Application) []string {
	var names []string
	_ = kong.Visit(model, func(n kong.Visitable, next kong.Next) error {
		if f, ok := n.(*kong.Flag); ok {
			names = append(names, f.Envs...)
		}
		return next(nil)
	})
	slices.Sort(names)
	return slices.Compact(names)
}

// forgetEmpty takes variables that are set to nothing, where nothing is no value, for unset: a manifest that leaves one
// empty means the default.
func forgetEmpty(model *kong.Application) error {
	return kong.Visit(model, func(n kong.Visitable, next kong.Next) error {
		f, ok := n.(*kong.Flag)
		if !ok {
			return next(nil)
		}
		switch f.Target.Kind() {
		case reflect.String, reflect.Slice, reflect.Map:
			if !f.Tag.Has("oneof") && !f.Tag.Has("nonempty") && f.Tag.Get("form") != "path" {
				return next(nil)
			}
		}
		for _, name := range f.Envs {
			if v, set := os.LookupEnv(name); set && v == "" {
				if err := os.Unsetenv(name); err != nil {
					return fmt.Errorf("forget the empty variable %s: %w", name, err)
				}
			}
		}
		return next(nil)
	})
}
