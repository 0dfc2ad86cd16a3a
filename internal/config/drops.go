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

// warnOfDrops logs the domains and files that lost many of their rules, and the rules that are gone. A file that may be
// incomplete (cut) is logged if it lost any.
func warnOfDrops(log *slog.Logger, before, after *Result, cut func(file string) bool) {
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
	var files, incomplete []string
	now := make(map[string]int, len(after.Files))
	for i := range after.Files {
		now[after.Files[i].Name] = after.Files[i].Rules
	}
	for i := range before.Files {
		f := &before.Files[i]
		text := fmt.Sprintf("%s: %d of %d", f.Name, f.Rules-now[f.Name], f.Rules)
		if lost(f.Rules, now[f.Name]) {
			files = append(files, text)
		}
		if now[f.Name] < f.Rules && cut(f.Name) {
			incomplete = append(incomplete, text)
		}
	}
	if len(incomplete) > 0 {
		log.Warn("a rule file lost rules and ends in the middle of a line: is it complete?",
			"files", incomplete[:min(len(incomplete), dropsLogged)], "gone", gone(before.Tree, after.Tree))
	}
	if len(domains) == 0 && !lost(len(before.Tree.Rules), len(after.Tree.Rules)) {
		return
	}
	log.Warn("a reload drops many rules", "domains", domains[:min(len(domains), dropsLogged)], "more_domains",
		max(0, len(domains)-dropsLogged),
		"from", files[:min(len(files), dropsLogged)], "more_from", max(0, len(files)-dropsLogged),
		"rules_before", len(before.Tree.Rules), "rules_now", len(after.Tree.Rules), "gone", gone(before.Tree, after.Tree))
}

// gone returns the paths of rules that are not there any more: the first ones.
func gone(before, after *descriptor.Tree) (paths []string) {
	now := make(map[string]bool, len(after.Rules))
	for _, r := range after.Rules {
		now[r.Path] = true
	}
	for _, r := range before.Rules {
		if !now[r.Path] && len(paths) < dropsLogged {
			paths = append(paths, r.Path)
		}
	}
	return paths
}

func rulesByDomain(t *descriptor.Tree) map[string]int {
	n := make(map[string]int)
	for _, r := range t.Rules {
		n[r.Domain]++
	}
	return n
}
