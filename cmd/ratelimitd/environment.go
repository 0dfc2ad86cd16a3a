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

// ownPrefix is the prefix of ratelimitd's own variables. envoyproxy/ratelimit's variables have no prefix, so a misspelt
// one looks like a variable of another program.
const ownPrefix = "RATELIMITD_"

// serviceLink matches variables that Kubernetes adds to every pod for a Service whose name starts with ratelimitd.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// checkEnvironment rejects variables with ratelimitd's prefix that belong to no flag.
func checkEnvironment(model *kong.Application, environ []string) error {
	known := variables(model)
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, ownPrefix) || slices.Contains(known, name) || serviceLink.MatchString(name) {
			continue
		}
		if meant := closeVariable(name, known); meant != "" {
			return fmt.Errorf("unknown variable %s in the environment: did you mean %s?", name, meant)
		}
		return fmt.Errorf("unknown variable %s in the environment: `ratelimitd help settings` lists all variables", name)
	}
	return nil
}

// families lists the prefixes of variables that only ratelimitd or envoyproxy/ratelimit use, and no other program on
// the same machine.
var families = []string{
	"REDIS_", "GRPC_SERVER_", "GRPC_CLIENT_TLS_", "GRPC_MAX_CONNECTION_", "CONFIG_GRPC_", "XDS_CLIENT_", "LIMIT_",
	"LOCAL_CACHE_", "NEAR_LIMIT_", "MEMCACHE_", "RUNTIME_",
	"TRACING_", "STATSD_", "STATS_FLUSH_", "USE_DOG_STATSD", "DOG_STATSD_", "USE_PROMETHEUS", "PROMETHEUS_", "DESCRIPTOR_",
	"SANITIZE_DESCRIPTOR_", "EXPIRATION_JITTER_", "HEALTHY_WITH_", "FORCE_START_",
}

// otherWords are words in names that other programs use, and ours.
var otherWords = strings.NewReplacer("PASSWORD", "AUTH", "PASSWD", "AUTH", "PASS", "AUTH", "USERNAME", "AUTH", "USER",
	"AUTH", "HOSTNAME", "URL", "HOST", "URL", "ADDRESS", "URL", "ADDR", "URL", "DATABASE", "URL", "DB", "URL")

// shortestGuess is the length of the shortest name outside all families that is compared with ours: HOME and POST are
// no slips.
const shortestGuess = 7

// unknownVariables returns the variables that belong to no flag but look like settings, each with the name that was
// probably meant. They have no prefix, so any may belong to another program: they are only logged.
func unknownVariables(model *kong.Application, environ []string) []string {
	known := variables(model)
	var unknown []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		upper := strings.ToUpper(name)
		if slices.Contains(known, name) || strings.HasPrefix(name, ownPrefix) || serviceLink.MatchString(name) ||
			strings.HasPrefix(name, "DOG_STATSD_MOGRIFIER_") {
			continue
		}
		meant := otherWords.Replace(upper)
		if !slices.Contains(known, meant) {
			meant = closeVariable(upper, known)
		}
		family := slices.ContainsFunc(families, func(f string) bool { return strings.HasPrefix(upper, f) })
		switch {
		case meant != "" && (family || len(name) >= shortestGuess):
			unknown = append(unknown, name+": did you mean "+meant+"?")
		case family:
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// closeVariable returns the known variable that differs from a name in at most one letter of six, or "".
func closeVariable(name string, known []string) string {
	meant := yamlform.Closest(name, known)
	if meant == "" || yamlform.Slips(name, meant) > max(1, len(meant)/6) {
		return ""
	}
	return meant
}

// variables returns all variables of all flags of all commands.
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

// forgetEmpty unsets empty variables whose flag does not accept an empty text. A manifest that leaves such a variable
// empty asks for the default.
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
