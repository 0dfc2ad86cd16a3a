package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

var sameZone = cmp.Comparer(func(a, b *time.Location) bool { return a.String() == b.String() })

// FuzzCompile checks that no text panics or takes long, that every error names a place in the file, and that a compiled
// tree can be matched.
func FuzzCompile(f *testing.F) {
	for _, c := range conformanceCases(f) {
		for _, text := range c.Files {
			f.Add([]byte(text))
		}
	}
	f.Add(generate("seed", 3, 2))
	f.Add([]byte(everyKey))
	for _, c := range badLimits {
		f.Add([]byte("domain: a\ndescriptors:\n  - key: k\n    rate_limit: " + c.limit + "\n"))
	}
	f.Add([]byte("domain: a\ndescriptors:\n- key: k\n  value: \"a\n- key: b\"\n- <<: &x {key: j, metadata: {a: [*x]}}\n- *x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		stuck := time.AfterFunc(30*time.Second, func() { panic(fmt.Sprintf("not done after 30 s: %q", data)) })
		defer stuck.Stop()
		files := []File{{Name: "a.yaml", Data: data}}
		tree, errs := Compile(files, CompileOptions{})
		checkPositions(t, files, errs)
		for _, r := range tree.Rules {
			if r.Position.File != "a.yaml" || r.Position.Line < 1 || r.Position.Col < 1 {
				t.Errorf("rule %s at %+v", r.Path, r.Position)
			}
			entries := make([]descriptor.Entry, len(r.Levels))
			sure := true
			for i, l := range r.Levels {
				// a wildcard matches itself; a level without a value matches an empty one
				entries[i] = descriptor.Entry{Key: l.Key, Value: l.Value}
				switch l.Kind {
				case descriptor.MatchCIDR:
					entries[i].Value, _, _ = strings.Cut(l.Value, "/")
				case descriptor.MatchRegex, descriptor.MatchValues:
					sure = false
				}
			}
			d := tree.Domain(r.Domain)
			if d == nil {
				t.Fatalf("rule %s of domain %q, which there is not", r.Path, r.Domain)
			}
			if d.Match(entries) == nil && len(tree.Rules) == 1 && sure {
				t.Errorf("%v does not match rule %s", entries, r.Path)
			}
		}
	})
}
