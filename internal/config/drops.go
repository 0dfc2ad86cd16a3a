package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// A reload drops many rules if one domain, or all domains together, lose at least one in manyOf rules.
const manyOf = 2

const dropsLogged = 10 // domains in one line

// warnOfDrops logs the domains and files that lost many of their rules.
func warnOfDrops(log *slog.Logger, before, after *Result) {
	if before.Tree == nil {
		return
	}
	was, is := rulesByDomain(before.Tree), rulesByDomain(after.Tree)
	lost := func(a, b int) bool { return b < a && manyOf*(a-b) >= a }
	var domains []string
	for _, name := range slices.SortedFunc(maps.Keys(was), func(a, b string) int {
		return cmp.Or(cmp.Compare(was[b]-is[b], was[a]-is[a]), cmp.Compare(a, b))
	}) {
		if lost(was[name], is[name]) {
			domains = append(domains, fmt.Sprintf("%s: %d of %d", name, was[name]-is[name], was[name]))
		}
	}
	if len(domains) == 0 && !lost(len(before.Tree.Rules), len(after.Tree.Rules)) {
		return
	}
	var files []string
	now := make(map[string]int, len(after.Files))
	for i := range after.Files {
		now[after.Files[i].Name] = after.Files[i].Rules
	}
	for i := range before.Files {
		if f := &before.Files[i]; lost(f.Rules, now[f.Name]) {
			files = append(files, fmt.Sprintf("%s: %d of %d", f.Name, f.Rules-now[f.Name], f.Rules))
		}
	}
	log.Warn("a reload drops many rules", "domains", domains[:min(len(domains), dropsLogged)], "more_domains", max(0, len(domains)-dropsLogged),
		"from", files[:min(len(files), dropsLogged)], "more_from", max(0, len(files)-dropsLogged), "rules_before", len(before.Tree.Rules), "rules_now", len(after.Tree.Rules))
}

func rulesByDomain(t *descriptor.Tree) map[string]int {
	n := make(map[string]int)
	for _, r := range t.Rules {
		n[r.Domain]++
	}
	return n
}
