package main

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// bytesPerRule is the most heap that a rule may take, including its source positions and metric handles.
const bytesPerRule = 2048

// heap returns the heap in use after two collections: the second one frees objects that the first one left in pools.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// TestRulesTakeLittleMemory loads many rules, from files and as resources, and replaces them again and again. They take
// little memory, and no more of it after many updates.
func TestRulesTakeLittleMemory(t *testing.T) {
	racetest.Sequential(t)
	rules, updates := 10_000, 3
	if os.Getenv("RATELIMITD_TEST_LARGE") != "" {
		rules, updates = 50_000, 100
	}
	const domains = 20
	for name, load := range map[string]func(round int) config.Result{
		"files":     loadFiles(t, domains, rules/domains),
		"resources": loadResources(t, domains, rules/domains),
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), HotKeys: hotkeys.New(time.Now(), hotkeys.Options{})})
			var first int
			for round := range updates + 1 {
				r := load(round)
				if len(r.Tree.Rules) != rules {
					t.Fatalf("%d rules, want %d", len(r.Tree.Rules), rules)
				}
				l.Swap(r.Tree, limiter.Settings{})
				if round == 1 { // a replaced rule has left all its garbage behind by now
					first = heap() - before
				}
			}
			last := heap() - before
			t.Logf("%d rules: %d bytes each, %d after %d updates", rules, first/rules, last/rules, updates)
			if first > rules*bytesPerRule {
				t.Errorf("%d rules take %d bytes each, want %d", rules, first/rules, bytesPerRule)
			}
			if last > first+first/50 {
				t.Errorf("after %d updates they take %d bytes each, and %d after the first", updates, last/rules, first/rules)
			}
			runtime.KeepAlive(l)
		})
	}
}

func loadFiles(t *testing.T, domains, each int) func(int) config.Result {
	dir := t.TempDir()
	directory := config.NewDirectory(config.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	return func(round int) config.Result {
		for d := range domains {
			var b strings.Builder
			fmt.Fprintf(&b, "domain: gateway-%d\ndescriptors:\n", d)
			for i := range each {
				fmt.Fprintf(&b, "  - key: httproute/namespace-%d/route/rule\n    value: httproute/namespace-%d/route/rule\n    descriptors:\n"+
					"      - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: %d}}\n", i, i, round+1)
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", d)), []byte(b.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := directory.Load()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

func loadResources(t *testing.T, domains, each int) func(int) config.Result {
	resources := config.NewResources(config.ResourceOptions{Logger: slog.New(slog.DiscardHandler)})
	return func(round int) config.Result {
		var set []config.Resource
		for d := range domains {
			var all []any
			for i := range each {
				name := fmt.Sprintf("httproute/namespace-%d/route/rule", i)
				all = append(all, yamlform.Pairs{{Key: "key", Value: name}, {Key: "value", Value: strings.Clone(name)}, {Key: "descriptors", Value: []any{
					yamlform.Pairs{{Key: "key", Value: strings.Clone("remote_address")}, {Key: "rate_limit", Value: yamlform.Pairs{
						{Key: "unit", Value: descriptor.Minute.String()}, {Key: "requests_per_unit", Value: uint32(round + 1)}}}}}}})
			}
			name := fmt.Sprintf("gateway-%d", d)
			set = append(set, config.Resource{Name: name, Sum: sha256.Sum256(fmt.Appendf(nil, "%d %d", d, round)), Rules: yamlform.Pairs{
				{Key: "domain", Value: name}, {Key: "descriptors", Value: all}}})
		}
		r, err := resources.Apply(set)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}
