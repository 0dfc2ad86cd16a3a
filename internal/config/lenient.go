package config

import (
	"bytes"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A lenient reader takes what the reference takes, as it takes it, and notes a warning: no rule that the reference
// enforces is lost with a file that is refused. A strict one refuses what is probably a mistake.

func (r *reader) warnf(at *yaml.Node, format string, args ...any) {
	r.warnAt(r.position(at), format, args...)
}

// warnAt notes a warning, once: what stands behind an anchor is read for every alias.
func (r *reader) warnAt(at descriptor.Position, format string, args ...any) {
	c := Complaints{File: r.file, Errs: r.warnings}
	c.ErrorAt(at, format, args...)
	r.warnings = c.Errs
}

// keysThere are the keys that the reference knows. It ignores them where they mean nothing.
var keysThere = []string{
	"domain", "key", "value", "descriptors", "rate_limit", "unit", "requests_per_unit", "unlimited", "shadow_mode", "quota_mode",
	"name", "replaces", "detailed_metric", "value_to_metric", "share_threshold", "metadata",
}

func ignoredThere(k *yaml.Node) bool {
	return k.Kind == yaml.ScalarNode && slices.Contains(keysThere, k.Value)
}

// lastWins returns a map in which no key stands twice. The last one counts, but two rate limits are one, and so are two maps
// of metadata: what the last one does not say is as the first one says.
func (r *reader) lastWins(m *yaml.Node) *yaml.Node {
	places := make(map[string]int, len(m.Content)/2)
	var out []*yaml.Node // nil while nothing stands twice
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		name := k
		if k.Kind == yaml.AliasNode {
			name = k.Alias
		}
		first, twice := places[name.Value]
		if name.Kind != yaml.ScalarNode || isMerge(name) || !twice {
			if name.Kind == yaml.ScalarNode && !isMerge(name) {
				places[name.Value] = i
				if out != nil {
					places[name.Value] = len(out)
				}
			}
			if out != nil {
				out = append(out, k, v)
			}
			continue
		}
		if out == nil {
			out = slices.Clone(m.Content[:i])
		}
		r.warnf(k, "key `%s` twice in one map: this one counts, not the first, %s", Clip(name.Value), there(r.position(out[first])))
		if old := out[first+1]; old.Kind == yaml.MappingNode && v.Kind == yaml.MappingNode {
			both := *v
			both.Content = slices.Concat(old.Content, v.Content)
			v = &both
		}
		out[first], out[first+1] = k, v
	}
	if out == nil {
		return m
	}
	unique := *m
	unique.Content = out
	return &unique
}

// untilEnd cuts off what follows the end of a document ("...") and begins no other one.
func (r *reader) untilEnd(data []byte) []byte {
	for line, at := 1, 0; at < len(data); line++ {
		end := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		text, ends := bytes.CutPrefix(data[at:end], []byte("..."))
		if ends && len(bytes.TrimSpace(text)) == 0 {
			rest := bytes.TrimSpace(data[end:])
			if len(rest) == 0 || bytes.HasPrefix(rest, []byte("---")) || rest[0] == '%' || rest[0] == '#' {
				return data
			}
			r.warnAt(descriptor.Position{File: r.file, Line: line, Col: 1}, "text after the end of the document: it is left out")
			return data[:at]
		}
		at = end
	}
	return data
}
