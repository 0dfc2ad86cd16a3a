package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ratelimitd/ratelimitd/internal/config"
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
		if meant := config.Closest(name, known); meant != "" {
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
			return next(nil)
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

// flagValue reads true and false in all the ways that the reference's environment may write them (1, t, T, TRUE, true, True
// and their opposites), and yes and no.
type flagValue struct{}

// IsBool tells kong that the flag needs no value.
func (flagValue) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (flagValue) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		target.SetBool(true)
		return nil
	}
	switch v := ctx.Scan.Pop().Value.(type) {
	case bool:
		target.SetBool(v)
		return nil
	case string:
		switch strings.ToLower(v) {
		case "yes", "no":
			target.SetBool(strings.EqualFold(v, "yes"))
			return nil
		}
		b, err := strconv.ParseBool(v)
		if err != nil {
			return fmt.Errorf("must be true or false, this is %q", v)
		}
		target.SetBool(b)
		return nil
	default:
		return fmt.Errorf("must be true or false, this is %v", v)
	}
}
