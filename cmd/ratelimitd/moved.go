package main

import (
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"github.com/alecthomas/kong"
)

// moved are settings of the reference whose value cannot be meant, and what is used in its place.
type moved struct{ all []move }

type move struct {
	flag        *kong.Value
	given, used string
}

// note records what becomes of a flag's value.
func (m *moved) note(v *kong.Value, given, used string) {
	if given != used {
		m.all = append(m.all, move{v, given, used})
	}
}

// inForce are those that count: a variable is read even where a flag beats it.
func (m *moved) inForce() map[string]move {
	found := make(map[string]move)
	for _, move := range m.all {
		name := move.flag.Name
		if envs := move.flag.Tag.Envs; len(envs) > 0 {
			name = envs[0]
		}
		if fmt.Sprint(reflect.Indirect(move.flag.Target).Interface()) == move.used {
			found[name] = move
		}
	}
	return found
}

// say logs them.
func (m *moved) say(log *slog.Logger) {
	found := m.inForce()
	for _, name := range slices.Sorted(maps.Keys(found)) {
		log.Warn("a setting has a value that cannot be meant: another one is used", "variable", name, "given", found[name].given, "used", found[name].used)
	}
}
