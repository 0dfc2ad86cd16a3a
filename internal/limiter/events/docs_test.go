package events

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// docs/do/events.md has every field of an event and every type, in the order of the program, and no other.
func TestFieldsAreDocumented(t *testing.T) {
	racetest.Sequential(t)
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "do", "events.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(text), "\n### The envelope\n")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^- `(\\w+)`:").FindAllStringSubmatch(tables, -1) {
		documented = append(documented, m[1])
	}
	var fields []string
	for _, of := range []reflect.Type{reflect.TypeFor[cloudEvent](), reflect.TypeFor[eventData]()} {
		for f := range of.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, name)
		}
	}
	if !slices.Equal(documented, fields) {
		t.Errorf("docs/do/events.md has the fields %v, an event has %v", documented, fields)
	}
	named, types := make(map[string]bool), make(map[string]bool)
	for _, name := range regexp.MustCompile(`io\.github\.ratelimitd\.\w+\.v\d+`).FindAllString(string(text), -1) {
		named[name] = true
	}
	for kind := range kinds {
		types[kind.cloudType()] = true
	}
	if !maps.Equal(named, types) {
		t.Errorf("docs/do/events.md has the types %v, the program has %v", named, types)
	}
}
