package main

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
)

// adjustments holds the settings of envoyproxy/ratelimit whose value this service does not accept, with the value used
// instead.
type adjustments struct{ all []adjustment }

type adjustment struct {
	flag        *kong.Value
	given, used string
}

// note records that a flag has a value and another one is used.
func (m *adjustments) note(v *kong.Value, given, used string) {
	if given != used {
		m.all = append(m.all, adjustment{v, given, used})
	}
}

// inForce returns the adjustments whose value the service uses, by variable. A variable is read even where a flag
// overrides it.
func (m *adjustments) inForce() map[string]adjustment {
	found := make(map[string]adjustment)
	for _, a := range m.all {
		name := a.flag.Name
		if envs := a.flag.Tag.Envs; len(envs) > 0 {
			name = envs[0]
		}
		if fmt.Sprint(reflect.Indirect(a.flag.Target).Interface()) == a.used {
			found[name] = a
		}
	}
	return found
}

// log writes one line for each active adjustment.
func (m *adjustments) log(to *slog.Logger) {
	found := m.inForce()
	for _, name := range slices.Sorted(maps.Keys(found)) {
		to.Warn("a setting has a value that this service does not accept: another one is used", "variable", name, "given",
			found[name].given, "used", found[name].used)
	}
}
