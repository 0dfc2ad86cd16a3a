package descriptor

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// mapEdges is edges as one Go map. It has only exact values and keys without a value, because other edges are the same
// in both.
type mapEdges map[mapEdge]node

type mapEdge struct {
	parent     node
	key, value string
}

func mapOf(e *edges) mapEdges {
	m := make(mapEdges)
	for i := range e.list {
		x := &e.list[i]
		m[mapEdge{x.parent, x.key, x.value}] = x.exact
		if x.value == "" {
			m[mapEdge{x.parent, x.key, x.value}] = e.any(x.parent, x.key)
		}
	}
	return m
}

func (m mapEdges) child(parent node, key, value string) node {
	if value != "" {
		if c, ok := m[mapEdge{parent, key, value}]; ok {
			return c
		}
	}
	if c, ok := m[mapEdge{parent, key, ""}]; ok {
		return c
	}
	return noNode
}

// matchByMap is Domain.Match with a map.
func matchByMap(d *Domain, m mapEdges, entries []Entry) *Rule {
	n := root
	for i := range entries {
		if n = m.child(n, entries[i].Key, entries[i].Value); n == noNode {
			return nil
		}
	}
	return d.rules[n]
}

// BenchmarkEdgesBesideMap compares the table of a domain with a Go map, over trees of 100,000 rules and of 100.
// Requests are for one path, for any path, or for values that no rule names.
func BenchmarkEdgesBesideMap(b *testing.B) {
	for _, shape := range append(shapes, [2]int{10, 10}) {
		d, paths := twoLevels(b, shape[0], shape[1])
		m := mapOf(&d.edges)
		random := make([]int32, 1<<16)
		for i := range random {
			random[i] = int32(rand.IntN(len(paths)))
		}
		for _, how := range []struct {
			name  string
			match func([]Entry) *Rule
		}{{"table", d.Match}, {"map", func(e []Entry) *Rule { return matchByMap(d, m, e) }}} {
			name := fmt.Sprintf("%dx%d/%%s/%s", shape[0], shape[1], how.name)
			b.Run(fmt.Sprintf(name, "hot"), func(b *testing.B) {
				for b.Loop() {
					how.match(paths[len(paths)/2])
				}
			})
			b.Run(fmt.Sprintf(name, "random"), func(b *testing.B) {
				entries := make([]Entry, 2)
				var tenant, route [32]byte // reused for each request, as a decoder's buffers would be
				i := 0
				for b.Loop() {
					at := int(random[i&(len(random)-1)])
					entries[0] = Entry{"tenant", number(&tenant, "tenant-000000", at/shape[1])}
					entries[1] = Entry{"path", number(&route, "/api/v1/route-000000", at%shape[1])}
					if how.match(entries) == nil {
						b.Fatal("no rule")
					}
					i++
				}
			})
			b.Run(fmt.Sprintf(name, "unknown"), func(b *testing.B) {
				entries := []Entry{{"tenant", "nobody-has-this"}, {"path", "/"}}
				for b.Loop() {
					how.match(entries)
				}
			})
		}
	}
}
