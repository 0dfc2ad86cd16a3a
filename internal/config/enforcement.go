package config

import (
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// enforcementKeys are the keys that select whom a limit denies. A limit has at most one of them.
var enforcementKeys = []string{"shadow", "enforce_percent", "soft"}

// enforced records the key that selects whom a limit denies, if its value does. It returns true.
func (l *limitReading) enforced(says bool, key string, e descriptor.Enforcement) bool {
	switch {
	case !says:
	case l.whom != "":
		l.second = key
	default:
		l.whom, l.limit.Enforcement = key, e
	}
	return true
}

// checkEnforcement checks the key that selects whom a limit denies.
func (l *limitReading) checkEnforcement() {
	switch {
	case l.second != "":
		l.at(l.second).Errorf("`%s` and `%s` cannot be combined: a limit has one of %s; leave out the others",
			l.whom, l.second,
			yamlform.List(enforcementKeys, "and"))
	case l.whom != "" && l.whom != "soft" && len(l.replaces) > 0:
		l.at("replaces").Errorf("`replaces` and `%s` cannot be combined: customers for whom this limit is not enforced "+
			"would have no limit; leave out one of them", l.whom)
	default:
		return
	}
	l.bad = true
}
