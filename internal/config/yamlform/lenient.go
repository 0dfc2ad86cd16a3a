package yamlform

import (
	"bytes"
	"slices"

	"gopkg.in/yaml.v3"
)

// lastWins returns a map without repeated keys. The last one counts, but where both values are maps they are merged:
// keys that the last one leaves out come from the first one.
func (v Value) lastWins() Value {
	m, r := v.node(), v.r
	places := make(map[string]int, len(m.Content)/2)
	var out []*yaml.Node               // nil while no key is repeated
	var joined map[*yaml.Node]struct{} // maps in out that were made here, of several
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, value := m.Content[i], m.Content[i+1]
		name := target(k)
		first, twice := places[name.Value]
		if name.Kind != yaml.ScalarNode || isMerge(name) || !twice {
			if name.Kind == yaml.ScalarNode && !isMerge(name) {
				places[name.Value] = i
				if out != nil {
					places[name.Value] = len(out)
				}
			}
			if out != nil {
				out = append(out, k, value)
			}
			continue
		}
		if !v.expand(k) {
			return v
		}
		if out == nil {
			out = slices.Clone(m.Content[:i])
		}
		r.WarnAt(r.position(k), ReadsToo, "key `%s` twice in one map: this one counts, not the first, %s", Clip(name.Value),
			r.position(out[first]).Near())
		if old := out[first+1]; old.Kind == yaml.MappingNode && value.Kind == yaml.MappingNode {
			both := *value
			if _, made := joined[old]; made { // its content grows: a copy for every repetition would take quadratic time
				both.Content = append(old.Content, value.Content...)
			} else {
				both.Content = slices.Concat(old.Content, value.Content)
			}
			if joined == nil {
				joined = make(map[*yaml.Node]struct{})
			}
			joined[&both] = struct{}{}
			value = &both
		}
		out[first], out[first+1] = k, value
	}
	if out == nil {
		return v
	}
	unique := *m
	unique.Content = out
	v.at = &unique
	return v
}

// untilEnd cuts off text that follows the end of a document ("...") without starting another one.
func (r *Reader) untilEnd(data []byte) []byte {
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
			r.WarnAt(Position{r.file, line, 1}, ReadsToo, "text after the end of the document: it is left out")
			return data[:at]
		}
		at = end
	}
	return data
}
