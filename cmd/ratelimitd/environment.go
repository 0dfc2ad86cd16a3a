package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// ownPrefix is the prefix of ratelimitd's own variables. envoyproxy/ratelimit's variables have no prefix, so a misspelt one
// looks like a variable of another program.
const ownPrefix = "RATELIMITD_"

// serviceLink matches variables that Kubernetes adds to every pod for a Service whose name begins with ratelimitd.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// checkEnvironment rejects variables with ratelimitd's prefix that belong to no flag.
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
		return fmt.Errorf("unknown variable %s in the environment: `ratelimitd help settings` lists all variables", name)
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

// forgetEmpty unsets variables that are empty where an empty text is no value: a manifest that leaves one empty means the
// default.
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
					return fmt.Errorf("unset the empty variable %s: %w", name, err)
				}
			}
		}
		return next(nil)
	})
}
