package matrix

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/testkit/rapidtest"
)

// parts are keys that can stand next to each other, in a limit and next to it.
var (
	inLimit = []string{
		"", "algorithm: sliding_window", "algorithm: sliding_log", "algorithm: token_bucket", "algorithm: leaky_bucket, nodelay: all", "refill: interval", "burst: 12",
		"precision: 4", "align: first_hit", "unit_multiplier: 2", "penalty: 2h", "count_denied: false", "count_denied: true", "warn_at: 50", "soft: true", "enforce_percent: 50",
		"active: {hours: '00:00-00:30'}", "scale: {by: users, max: 3}", "classes: {by: users, guaranteed_percent: {'2': 50}}", "lease: true",
	}
	nextToIt = []string{"", "cost: 2", "cost: {users: {'2': 3, '*': 1}}", "reservations: true", "usage: true", "overridable: true", "shadow_mode: true", "fold_case: true"}
	onTop    = []string{"", "admission: all_or_nothing", "refunds: deny"}
)

// Features in pairs and more: if check accepts the rules, all ways count them like plain counters in memory.
func TestPairs(t *testing.T) {
	if os.Getenv("RATELIMITD_SOAK") == "" {
		t.Skip("it draws many pairs: make soak")
	}
	columns := ways(t)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		keys := []string{"unit: hour", "requests_per_unit: 10"}
		for range rapid.IntRange(1, 3).Draw(r, "keys") {
			if key := rapid.SampledFrom(inLimit).Draw(r, "in the limit"); key != "" {
				keys = append(keys, key)
			}
		}
		next := rapid.SampledFrom(nextToIt).Draw(r, "next to it")
		if next != "" {
			next += ", "
		}
		f := feature{
			name: "a pair", top: rapid.SampledFrom(onTop).Draw(r, "on top"),
			rules:   "- {key: users, condition: true, descriptors: [{key: app, " + next + "rate_limit: {" + strings.Join(keys, ", ") + " @}}]}",
			callers: []string{"users=2|app=a", "users=3|app=a", "users=2|app=b"},
		}
		if tree, _ := treeOf(&f, &plain); tree == nil {
			r.Skip("check rejects it")
		}
		w := columns[rapid.IntRange(0, len(columns)-1).Draw(r, "way")]
		counts := strings.Contains(f.rules, "count_denied: true") || strings.Contains(f.rules, "soft") || strings.Contains(f.rules, "enforce_") || strings.Contains(f.rules, "shadow_")
		switch {
		case w.run != nil || w.grade == within:
			r.Skip("it is not exact")
		case w.top == uncounted && counts:
			r.Skip("hits count here although they are over the limit, and a denial that is remembered counts none")
		case w.column == "Cluster" && f.top == uncounted:
			// If a request is denied, its reservation in another slot shows in the reset time until it is canceled.
			w.grade = verdict
		}
		n++
		t.Run(f.rules, func(t *testing.T) { cellOf(t, &f, &w, fmt.Sprintf("p%d.", n)) })
	})
}
