package config

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// Users also pass files that are not rule files: a ConfigMap that contains rules, the values of a chart, a template.
// One error for each unknown key would not help them. Such a file gets a single error: its kind, and where its rules
// are.

// ofTemplates matches text that only templates have outside of quotes: {{ or {% at the start of a line, an item or a
// value.
var ofTemplates = regexp.MustCompile(`(?m)(?:^|[:\-][ \t])[ \t]*(\{\{|\{%)`)

// template returns the position of the first piece of a template. It is asked only about files with errors.
func template(name string, data []byte) (at yamlform.Position, found bool) {
	m := ofTemplates.FindSubmatchIndex(data)
	if m == nil {
		return at, false
	}
	line := bytes.LastIndexByte(data[:m[2]], '\n') + 1
	return yamlform.Position{File: name, Line: bytes.Count(data[:line], []byte("\n")) + 1,
		Col: utf8.RuneCount(data[line:m[2]]) + 1}, true
}

const isTemplate = "this is a template, not a rule file: render it first, such as with `helm template`, and " +
	"give the result"

// foreign is a document that is not a rule document.
type foreign struct {
	doc   yamlform.Value
	text  string // error text: the kind of document, and how to fix it
	rules bool   // it has rules in it
}

// mostExamined bounds the documents of a file that are examined: the file has one error about all of them.
const mostExamined = 16

// foreignOf recognizes a document that has neither `domain` nor `descriptors`. A document with other keys of the rule
// language is foreign only if it contains a complete rule file.
func foreignOf(doc yamlform.Value) (f foreign, is bool) {
	var names []string
	top := make(map[string]yamlform.Value)
	for key, value := range doc.Pairs() {
		name := key.Written()
		names = append(names, name)
		top[name] = value
	}
	object := top["apiVersion"].Given() && top["kind"].Given()
	s := ruleSearch{left: mostSearched}
	s.search(doc, 0)
	known := object || top["cases"].Given() || top["overrides"].Given()
	if !known && (len(names) == 0 || (s.path == nil || s.bare) && slices.ContainsFunc(names, ours)) {
		return f, false
	}
	f.doc = doc
	what := "not a rule file"
	switch {
	case object:
		what = "a Kubernetes object (`kind: " + yamlform.Clip(top["kind"].Written()) + "`), not a rule file"
	case top["apiVersion"].Given() && top["version"].Given():
		what = "the Chart.yaml of a Helm chart, not a rule file"
	case top["services"].Given() && top["services"].IsMap():
		what = "a Compose file, not a rule file"
	case top["static_resources"].Given(), top["dynamic_resources"].Given():
		what = "a configuration of Envoy, not a rule file"
	case top["cases"].Given():
		f.text = "this is a file of tests, not a rule file: run it with `ratelimitd test`"
		return f, true
	case top["overrides"].Given():
		f.text = "this is a file of overrides, not a rule file: give it to `check` with --overrides"
		return f, true
	case top["openapi"].Given(), top["swagger"].Given():
		what = "an OpenAPI description, not a rule file"
	}
	f.text = "this is " + what
	if s.path == nil {
		f.text += fmt.Sprintf(": its keys are %s; a rule file has `domain: NAME` and a list of `descriptors`",
			yamlform.List(clipped(names), "and"))
		return f, true
	}
	f.rules = true
	f.text += ": its rules are under `" + s.written() + "`; " + s.takeOut(top, object)
	return f, true
}

// clipped returns the first of the names, each cut to a length for messages.
func clipped(names []string) []string {
	const few = 5
	var all []string
	for _, n := range names[:min(len(names), few)] {
		all = append(all, yamlform.Clip(n))
	}
	return all
}

// ours reports whether a key is one of the rule language, or resembles one.
func ours(name string) bool {
	for _, m := range places {
		if slices.Contains(m.Names(), name) || yamlform.Closest(name, m.Names()) != "" {
			return true
		}
	}
	return false
}

// mostSearched bounds the values in which rules are looked for.
const mostSearched = 20_000

// ruleSearch looks for rules within a document.
type ruleSearch struct {
	left int
	path []string // path to the rules; nil if none were found
	here []string
	text bool // they are a text
	bare bool // they have no domain
}

var (
	domainAtStart      = regexp.MustCompile(`(?m)^["']?domain["']?[ \t]*:`)
	descriptorsAtStart = regexp.MustCompile(`(?m)^["']?descriptors["']?[ \t]*:`)
)

func (s *ruleSearch) search(v yamlform.Value, level int) {
	if s.left--; s.left < 0 || s.path != nil || level > yamlform.MaxLevels {
		return
	}
	switch {
	case v.IsMap():
		if v.Has("descriptors") {
			s.path, s.bare = slices.Clone(s.here), !v.Has("domain")
			return
		}
		for key, value := range v.Pairs() {
			s.below(key.Written(), value, level)
		}
	case v.IsList():
		i := 0
		for item := range v.Items() {
			s.below("["+strconv.Itoa(i)+"]", item, level)
			i++
		}
	default:
		if text := v.Written(); domainAtStart.MatchString(text) && descriptorsAtStart.MatchString(text) {
			s.path, s.text = slices.Clone(s.here), true
		}
	}
}

func (s *ruleSearch) below(name string, v yamlform.Value, level int) {
	s.here = append(s.here, name)
	s.search(v, level+1)
	s.here = s.here[:len(s.here)-1]
}

// written is the path as kubectl and yq take it: .data.config\.yaml
func (s *ruleSearch) written() string {
	var b strings.Builder
	for _, name := range s.path {
		if !strings.HasPrefix(name, "[") {
			b.WriteByte('.')
			name = strings.ReplaceAll(name, ".", `\.`)
		}
		b.WriteString(yamlform.Clip(name))
	}
	return b.String()
}

// plainName matches names that a command line accepts without quotes.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,252}$`)

// takeOut tells how to extract the rules into a separate file.
func (s *ruleSearch) takeOut(top map[string]yamlform.Value, object bool) string {
	text := "write that part to a file of its own"
	if s.bare {
		return text + ", with `domain: NAME` before it"
	}
	kind, name := top["kind"], "NAME"
	if metadata := top["metadata"]; metadata.Given() && metadata.IsMap() {
		for key, value := range metadata.Pairs() {
			if key.Written() == "name" && plainName.MatchString(value.Written()) {
				name = value.Written()
			}
		}
	}
	path := s.written()
	if !object || !plainName.MatchString(kind.Written()) || strings.ContainsAny(path, "'`\n") || kind.Written() == "List" {
		return text
	}
	return text + fmt.Sprintf(", such as with `kubectl get %s %s -o jsonpath='{%s}' > rules.yaml`",
		strings.ToLower(kind.Written()), name, path)
}
