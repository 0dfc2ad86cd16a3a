package config

import (
	"fmt"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// What a file may ask for, so that a small one cannot become a large amount of work.
const (
	maxLevels   = 32        // of descriptors within descriptors, of maps and lists within metadata, of merges within merges
	maxExpanded = 2_000_000 // YAML nodes visited through aliases, in one file
	maxErrors   = 500       // reported for one file
)

// key is one key of a map in a rule file, and what reads its value. read is not called for a null.
type key[T any] struct {
	name string
	read func(r *reader, into *T, value *yaml.Node)
}

// shape is the keys that a map may have, at most 64.
type shape[T any] struct {
	what string // the map, in messages
	keys []key[T]
}

func (s *shape[T]) index(name string) int {
	for i := range s.keys {
		if s.keys[i].name == name {
			return i
		}
	}
	return -1
}

func (s *shape[T]) names() []string {
	names := make([]string, len(s.keys))
	for i := range s.keys {
		names[i] = s.keys[i].name
	}
	return names
}

// reader reads one rule file, one chunk of it, or one resource, from YAML nodes. It notes what is wrong and reads on, so
// that all errors of a file come at once.
type reader struct {
	file     string
	lenient  bool   // what the reference takes is taken as it takes it, with a warning
	lines    int    // before the chunk that is being read
	steps    []step // of a resource, by the line that its nodes claim to be on; nil for a file
	errs     []*Error
	warnings []*Error
	noted    map[Error]struct{} // the errors found behind aliases, which would be found again for every alias
	more     int                // errors beyond maxErrors
	rules    int
	level    int          // of descriptors
	behind   []*yaml.Node // the anchors whose content is being read: an alias for one of them never ends
	expanded int
	limit    rateLimit
}

func (r *reader) errorf(at *yaml.Node, format string, args ...any) {
	r.errorAt(r.position(at), format, args...)
}

func (r *reader) errorAt(at descriptor.Position, format string, args ...any) {
	e := Error{at.File, at.Line, at.Col, fmt.Sprintf(format, args...)}
	if len(r.behind) > 0 {
		if _, again := r.noted[e]; again {
			return
		}
		if r.noted == nil {
			r.noted = make(map[Error]struct{})
		}
		if len(r.noted) < maxErrors {
			r.noted[e] = struct{}{}
		}
	}
	if len(r.errs) >= maxErrors {
		r.more++
		return
	}
	r.errs = append(r.errs, &e)
}

// sorted returns the errors noted so far, in the order of the file.
func (r *reader) sorted() []*Error {
	errs := SortErrors(r.errs)
	if r.more > 0 {
		last := *errs[len(errs)-1]
		last.Msg = fmt.Sprintf("and %d more errors: mend the ones above first", r.more)
		errs = append(errs, &last)
	}
	return errs
}

// position is where a node stands. The library gives lines from 1; a node that it made up itself has none. A resource has
// paths in the place of lines.
func (r *reader) position(n *yaml.Node) descriptor.Position {
	if r.steps != nil {
		return descriptor.Position{File: r.file + pathTo(r.steps, max(n.Line, 1))}
	}
	return descriptor.Position{File: r.file, Line: max(n.Line, 1) + r.lines, Col: max(n.Column, 1)}
}

// enter returns the node that n stands for: n itself, or what an alias points at. If it says true, leave(n) must follow.
func (r *reader) enter(n *yaml.Node) (*yaml.Node, bool) {
	if len(r.behind) > 0 {
		r.expanded++
		if r.expanded > maxExpanded {
			if r.expanded == maxExpanded+1 {
				r.errorf(n, "the aliases of this file stand for more than %d nodes: write fewer aliases within aliases", maxExpanded)
			}
			return nil, false
		}
	}
	if n.Kind != yaml.AliasNode {
		return n, true
	}
	if slices.Contains(r.behind, n.Alias) || n.Alias == nil {
		r.errorf(n, "the alias *%s stands within its own anchor: it would never end", n.Value)
		return nil, false
	}
	r.behind = append(r.behind, n.Alias)
	return n.Alias, true
}

func (r *reader) leave(n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		r.behind = r.behind[:len(r.behind)-1]
	}
}

// readMap reads a map of that shape. It says whether n is a map, and whether unknown keys were found in it: then one of
// them is probably what seems to be missing.
func readMap[T any](r *reader, s *shape[T], into *T, n *yaml.Node) (read, unknown bool) {
	m, ok := r.enter(n)
	if !ok {
		return false, false
	}
	defer r.leave(n)
	if m.Kind != yaml.MappingNode {
		r.errorf(n, "%s must be a map of keys (%s), this is %s", s.what, List(s.names(), "and"), KindOf(m))
		return false, false
	}
	var have uint64
	return true, readPairs(r, s, into, m, &have, 0)
}

// readPairs reads the keys of m that are not yet there, a bit in have for each. A map's own keys come before the ones
// that it merges in, and earlier merges before later ones.
func readPairs[T any](r *reader, s *shape[T], into *T, m *yaml.Node, have *uint64, merges int) (unknown bool) {
	var own uint64
	var merge *yaml.Node
	if r.lenient {
		m = r.lastWins(m)
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		name := k
		if k.Kind == yaml.AliasNode {
			name = k.Alias
		}
		if isMerge(name) {
			if merge != nil {
				r.errorf(k, "key `<<` twice in one map: write `<<: [*one, *other]`")
				continue
			}
			merge = v
			continue
		}
		j := -1
		if name.Kind == yaml.ScalarNode {
			j = s.index(name.Value)
		}
		if j < 0 && r.lenient && ignoredThere(name) {
			r.warnf(k, "%s: it is ignored", UnknownKey(name, s.what, s.names(), places))
			continue
		}
		if j < 0 {
			r.errorf(k, "%s", UnknownKey(name, s.what, s.names(), places))
			unknown = true
			continue
		}
		if own&(1<<j) != 0 {
			first := m.Content[firstKey(m, name.Value)]
			r.errorf(k, "key `%s` twice in one map: the first is %s", name.Value, there(r.position(first)))
			continue
		}
		own |= 1 << j
		if *have&(1<<j) != 0 {
			continue
		}
		*have |= 1 << j
		if !isNull(v) {
			s.keys[j].read(r, into, v)
		}
	}
	if merge != nil {
		r.merge(merge, merges, func(m *yaml.Node) {
			unknown = readPairs(r, s, into, m, have, merges+1) || unknown
		})
	}
	return unknown
}

// merge calls read for every map that a merge key's value stands for.
func (r *reader) merge(n *yaml.Node, merges int, read func(*yaml.Node)) {
	m, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	switch {
	case merges >= maxLevels:
		r.errorf(n, "more than %d merge keys within each other", maxLevels)
	case m.Kind == yaml.MappingNode:
		read(m)
	case m.Kind == yaml.SequenceNode:
		for _, e := range m.Content {
			t, ok := r.enter(e)
			if !ok {
				continue
			}
			if t.Kind == yaml.MappingNode {
				read(t)
			} else {
				r.errorf(e, "`<<` merges maps, this is %s", KindOf(t))
			}
			r.leave(e)
		}
	default:
		r.errorf(n, "`<<` merges a map or a list of maps, this is %s", KindOf(m))
	}
}

func isMerge(k *yaml.Node) bool { return k.Kind == yaml.ScalarNode && k.Tag == "!!merge" }

func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n.Kind == 0 || n.Kind == yaml.ScalarNode && n.Tag == "!!null"
}

func firstKey(m *yaml.Node, name string) int {
	for i := 0; i < len(m.Content); i += 2 {
		k := m.Content[i]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind == yaml.ScalarNode && k.Value == name && !isMerge(k) {
			return i
		}
	}
	return 0
}
