package limiter_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// plainRules are rules by the key that they limit. Each is alone in a domain of its name.
var plainRules = []struct {
	key, rule string
	domain    string // keys of the domain
	plain     bool
}{
	{"fixed", `rate_limit: {unit: minute, requests_per_unit: 3}`, "", true},
	{"first_hit", `rate_limit: {unit: minute, requests_per_unit: 3, align: first_hit}`, "", true},
	{"month", `rate_limit: {unit: month, requests_per_unit: 40, calendar: Europe/Rome}`, "", true},
	{"token", `rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}`, "", true},
	{"leaky", `rate_limit: {unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, burst: 4}`, "", true},
	{"sliding", `rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_window}`, "", true},
	{"log", `rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log}`, "", true},
	{"denied", `rate_limit: {unit: minute, requests_per_unit: 3, count_denied: false}`, "", true},
	{"counted", `rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log, count_denied: true}`, "", true},
	{"together", `rate_limit: {unit: minute, requests_per_unit: 3}`, "admission: all_or_nothing", true},
	{"quota", "quota_mode: true\n    rate_limit: {unit: minute, requests_per_unit: 3}", "admission: all_or_nothing", true},
	{"headers", `rate_limit: {unit: minute, requests_per_unit: 3}`, "headers: [ietf]", true},
	{"one_value", "value: v1\n    rate_limit: {unit: minute, requests_per_unit: 3}", "", true},
	{"shared", "value: v*\n    share_threshold: true\n    rate_limit: {unit: minute, requests_per_unit: 9}", "", true},
	{"reserved", "reservations: true\n    rate_limit: {unit: minute, requests_per_unit: 3}", "", true},
	{"below", "descriptors: [{key: more, rate_limit: {unit: minute, requests_per_unit: 3}}]", "", true},

	{"several", `rate_limits: [{name: a, unit: minute, requests_per_unit: 3}, {name: b, unit: hour, requests_per_unit: 9}]`, "", false},
	{"unlimited", `rate_limit: {unlimited: true}`, "", false},
	{"shadow", "shadow_mode: true\n    rate_limit: {unit: minute, requests_per_unit: 3}", "", false},
	{"soft", `rate_limit: {unit: minute, requests_per_unit: 3, soft: true}`, "", false},
	{"warned", `rate_limit: {unit: minute, requests_per_unit: 3, warn_at: 50}`, "", false},
	{"penalty", `rate_limit: {unit: minute, requests_per_unit: 3, penalty: 2m}`, "", false},
	{"grouped", "group: ipv6/64\n    rate_limit: {unit: minute, requests_per_unit: 3}", "", false},
	{"active", `rate_limit: {unit: minute, requests_per_unit: 3, active: {zone: UTC, hours: "00:00-12:05"}}`, "", false},
	{"raised", "overridable: true\n    rate_limit: {unit: minute, requests_per_unit: 3}", "", false},
}

func treeOfPlainRules(t *testing.T) *descriptor.Tree {
	var files []config.File
	for _, r := range plainRules {
		text := fmt.Sprintf("domain: %s\n%s\ndescriptors:\n  - key: %s\n    %s\n", r.key, r.domain, r.key, r.rule)
		files = append(files, config.File{Name: r.key + ".yaml", Data: []byte(text)})
	}
	tree, errs := config.Compile(files, config.CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return tree
}

// AllowPlain and Decide give the same answers, and AllowPlain tells which decisions are not plain.
func TestPlainDecisions(t *testing.T) {
	for name, store := range map[string]func() backend.Store{
		"memory": func() backend.Store { return memory.New(memory.Options{}) },
		"cache": func() backend.Store {
			return overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})})
		},
		"full": func() backend.Store { return memory.New(memory.Options{MaxCounters: 30, Shared: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			tree := treeOfPlainRules(t)
			var limiters [2]*limiter.Limiter
			for i := range limiters {
				limiters[i] = limiter.New(limiter.Options{Store: store(), NoMetrics: true})
				limiters[i].SetOverrides((&override.Set{}).With(1, []override.Change{{
					Identity: override.Identity{Domain: "raised", Rule: "raised.raised", Entries: entries("raised=v1")},
					Numbers:  override.Numbers{Kind: override.Replace, Requests: 5, Burst: 5},
				}}))
				limiters[i].Swap(tree, limiter.Settings{})
			}
			r, now, denied := rand.New(rand.NewPCG(1, 1)), noon, 0
			for range 20_000 {
				now = now.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
				rule := &plainRules[r.IntN(len(plainRules))]
				pairs := []string{rule.key, fmt.Sprint("v", r.IntN(4))}
				if rule.key == "below" {
					pairs = append(pairs, "more", "of it")
				}
				want, wantErr := decidePairs(t, limiters[0], now, rule.key, pairs)
				allowed, delay, plain, err := limiters[1].AllowPlain(t.Context(), now, rule.key, pairs)
				matches := rule.key != "one_value" || pairs[1] == "v1"
				if plain != (rule.plain && matches) {
					t.Fatalf("%s: plain is %v", rule.key, plain)
				}
				if !plain {
					d, e := decidePairs(t, limiters[1], now, rule.key, pairs)
					allowed, delay, err = d.Code == limiter.OK, d.Delay, e
				}
				if allowed != (want.Code == limiter.OK) || delay != want.Delay || !errors.Is(err, wantErr) {
					t.Fatalf("%v at %s: %v after %s, %v; Decide: %v after %s, %v", pairs, now, allowed, delay, err, want.Code, want.Delay, wantErr)
				}
				if !allowed {
					denied++
				}
				if one, other := usedOf(t, limiters[0], now, rule.key, pairs), usedOf(t, limiters[1], now, rule.key, pairs); one != other {
					t.Fatalf("%v at %s: %s in use, %s by Decide", pairs, now, other, one)
				}
			}
			if denied < 1000 {
				t.Errorf("only %d requests were denied", denied)
			}
		})
	}
}

// usedOf returns the hits in use under each limit of a descriptor.
func usedOf(t *testing.T, l *limiter.Limiter, now time.Time, domain string, pairs []string) (used string) {
	c, err := l.Peek(t.Context(), now, domain, &limiter.Descriptor{Entries: entriesOf(pairs)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range c.List {
		used += fmt.Sprint(c.List[i].Used, " ")
	}
	return used
}

func entriesOf(pairs []string) (all []descriptor.Entry) {
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, descriptor.Entry{Key: pair[0], Value: pair[1]})
	}
	return all
}

func decidePairs(t *testing.T, l *limiter.Limiter, now time.Time, domain string, pairs []string) (d limiter.Decision, err error) {
	return d, l.Decide(t.Context(), now, &limiter.Request{Domain: domain, Descriptors: []limiter.Descriptor{{Entries: entriesOf(pairs)}}}, &d)
}

// If the store has no answer, on_error decides as for every other request.
func TestPlainDecisionsOnError(t *testing.T) {
	for on, want := range map[descriptor.OnError]string{
		descriptor.OnErrorError: "error error error error", descriptor.OnErrorAllow: "yes yes yes yes",
		descriptor.OnErrorDeny: "no no no no", descriptor.OnErrorLocal: "yes yes no no",
	} {
		t.Run(descriptor.OnErrorNames[on], func(t *testing.T) {
			tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", Children: []descriptor.NodeSpec{perMinute("k", "", 2, onError(on))}}}, descriptor.Options{})
			if err != nil {
				t.Fatal(err)
			}
			l := limiter.New(limiter.Options{
				Store: &flaky{memory.New(memory.Options{}), all}, Local: memory.New(memory.Options{}), NoMetrics: true,
			})
			l.Swap(tree, limiter.Settings{})
			var got []string
			for range 4 {
				allowed, _, plain, err := l.AllowPlain(t.Context(), noon, "d", []string{"k", "a"})
				switch {
				case !plain:
					t.Fatal("the decision is not plain")
				case err != nil:
					got = append(got, "error")
				case allowed:
					got = append(got, "yes")
				default:
					got = append(got, "no")
				}
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// Settings and options that need all steps of a decision leave none that is plain.
func TestWhatIsNeverPlain(t *testing.T) {
	for name, one := range map[string]struct {
		options  limiter.Options
		settings limiter.Settings
	}{
		"measured": {}, "shadow mode": {limiter.Options{NoMetrics: true}, limiter.Settings{Shadow: true}},
	} {
		one.options.Store = memory.New(memory.Options{})
		l := limiter.New(one.options)
		if _, _, plain, err := l.AllowPlain(t.Context(), noon, "fixed", []string{"fixed", "a"}); plain || err != nil {
			t.Errorf("%s, without rules: %v %v", name, plain, err)
		}
		l.Swap(treeOfPlainRules(t), one.settings)
		if _, _, plain, err := l.AllowPlain(t.Context(), noon, "fixed", []string{"fixed", "a"}); plain || err != nil {
			t.Errorf("%s: %v %v", name, plain, err)
		}
	}
}

func TestPlainDecisionsDoNotAllocate(t *testing.T) {
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{}), NoMetrics: true})
	l.Swap(treeOfPlainRules(t), limiter.Settings{})
	pairs := []string{"fixed", "a"}
	if n := testing.AllocsPerRun(100, func() {
		if _, _, plain, err := l.AllowPlain(t.Context(), noon, "fixed", pairs); !plain || err != nil {
			t.Fatal(plain, err)
		}
	}); n > 0 && !racetest.On {
		t.Errorf("%v allocations, want none", n)
	}
}
