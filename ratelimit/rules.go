package ratelimit

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/limits"
)

// Domain is a namespace of rules, written in code. It is checked and counted like a rule file with the same content: a
// domain in code and the same domain in a file of another program share counters in Redis.
//
// Rule files have more options than Rule and Limit: Options.Files takes rule files from an embed.FS.
type Domain struct {
	Name  string
	Rules []Rule

	// AllOrNothing makes a denied request consume nothing under any of its descriptors: `admission: all_or_nothing`.
	AllOrNothing bool
}

// Rule applies to descriptors whose entry on this level has Key, and Value if it is not empty. Without Value, each
// value of the entry has separate counters.
type Rule struct {
	Key   string
	Value string // may contain * for any bytes

	Limit  Limit   // the zero Limit: none
	Limits []Limit // several limits instead of one, each with a Name

	// Rules are for the next entry of the descriptor.
	Rules []Rule

	// Condition makes the entry choose among Rules without being part of their counters: a customer who changes plans
	// keeps the same counters.
	Condition bool

	Shadow       bool             // measure the limits and enforce none of them
	OnFailure    limits.OnFailure // applies if the counters cannot be read; the default comes from Options
	Reservations bool             // allow Reserve

	overridable bool // calls may bring other numbers along
}

// Limit is a number of requests for a window. PerSecond and its siblings return one.
type Limit struct {
	Name     string
	Requests uint64
	// Window is in whole milliseconds. It is counted in the largest unit up to a day that divides it: 24 h are one day.
	Window    time.Duration
	Algorithm Algorithm

	// Burst is how many tokens a TokenBucket holds, or how many requests may wait in a LeakyBucket. Default Requests; a
	// LeakyBucket in which none may wait needs a rule file with `burst: 0`.
	Burst uint64
}

// Algorithm is how a limit is enforced.
type Algorithm uint8

// String is the name of the algorithm in rule files, such as token_bucket.
func (a Algorithm) String() string {
	if int(a) >= len(descriptor.AlgorithmNames) {
		return "unknown"
	}
	return descriptor.AlgorithmNames[a]
}

// MarshalText encodes the name, for logs and JSON.
func (a Algorithm) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// The algorithms. docs/learn/algorithms.md helps to choose.
const (
	FixedWindow   = Algorithm(descriptor.FixedWindow)   // Requests in each window of the clock
	SlidingWindow = Algorithm(descriptor.SlidingWindow) // an estimate of the requests in the last Window
	SlidingLog    = Algorithm(descriptor.SlidingLog)    // exactly the requests in the last Window
	TokenBucket   = Algorithm(descriptor.TokenBucket)   // Burst immediately, then Requests per Window, evenly
	// requests wait for their turn: one each Window/Requests, at most Burst of them
	LeakyBucket = Algorithm(descriptor.LeakyBucket)
	// Requests at the same time; a place that is not given back is free after Window
	Concurrency = Algorithm(descriptor.Concurrency)
)

// PerSecond allows n requests in each second.
func PerSecond(n uint64) Limit { return Per(n, time.Second) }

// PerMinute allows n requests in each minute.
func PerMinute(n uint64) Limit { return Per(n, time.Minute) }

// PerHour allows n requests in each hour.
func PerHour(n uint64) Limit { return Per(n, time.Hour) }

// PerDay allows n requests in each day, from midnight UTC.
func PerDay(n uint64) Limit { return Per(n, 24*time.Hour) }

// Bucket is a token bucket. It allows n requests in each window, evenly, and up to burst of them at the same time.
// Bucket(10, time.Second, 20) is 10 a second with a burst of 20.
func Bucket(n uint64, window time.Duration, burst uint64) Limit {
	return Limit{Requests: n, Window: window, Algorithm: TokenBucket, Burst: burst}
}

// AtOnce allows n requests at the same time. A place that is not given back, because a program died, is free after a
// time.
func AtOnce(n uint64, freeAfter time.Duration) Limit {
	return Limit{Requests: n, Window: freeAfter, Algorithm: Concurrency}
}

// Per allows n requests in each window of the clock.
func Per(n uint64, window time.Duration) Limit { return Limit{Requests: n, Window: window} }

// pairs returns the domain as the content of a rule file, so that rules in code have the same meaning as files.
func (d *Domain) pairs() (yamlform.Pairs, error) {
	if len(d.Rules) == 0 {
		return nil, errors.New("it has no Rules, so it limits nothing")
	}
	rules, err := descriptors(d.Rules)
	if err != nil {
		return nil, err
	}
	all := yamlform.Pairs{{Key: "domain", Value: d.Name}, {Key: "descriptors", Value: rules}}
	if d.AllOrNothing {
		all = append(all, yamlform.Pair{Key: "admission", Value: "all_or_nothing"})
	}
	return all, nil
}

func descriptors(rules []Rule) ([]any, error) {
	all := make([]any, len(rules))
	for i := range rules {
		p, err := rules[i].pairs()
		if err != nil {
			return nil, err
		}
		all[i] = p
	}
	return all, nil
}

func (r *Rule) pairs() (yamlform.Pairs, error) {
	var all yamlform.Pairs
	add := func(key string, value any, given bool) {
		if given {
			all = append(all, yamlform.Pair{Key: key, Value: value})
		}
	}
	add("key", r.Key, true)
	add("value", r.Value, r.Value != "")
	add("condition", true, r.Condition)
	add("shadow_mode", true, r.Shadow)
	add("on_error", r.OnFailure.String(), r.OnFailure != limits.OnFailureDefault)
	add("reservations", true, r.Reservations)
	add("overridable", true, r.overridable)
	if r.Limit != (Limit{}) {
		limit, err := r.Limit.pairs()
		if err != nil {
			return nil, fmt.Errorf("rule with key %q: %w", r.Key, err)
		}
		add("rate_limit", limit, true)
	}
	several := make([]any, len(r.Limits))
	for i := range r.Limits {
		limit, err := r.Limits[i].pairs()
		if err != nil {
			return nil, fmt.Errorf("rule with key %q: %w", r.Key, err)
		}
		several[i] = limit
	}
	add("rate_limits", several, len(several) > 0)
	if r.Value == "" && r.Limit == (Limit{}) && len(r.Limits) == 0 && len(r.Rules) == 0 {
		return nil, fmt.Errorf("rule with key %q: it has neither a Limit nor Rules, so it limits nothing", r.Key)
	}
	below, err := descriptors(r.Rules)
	add("descriptors", below, len(below) > 0)
	return all, err
}

// units are the units of a Window, largest first.
var units = []struct {
	name string
	long time.Duration
}{{"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second},
	{"millisecond", time.Millisecond}}

func (l *Limit) pairs() (yamlform.Pairs, error) {
	if int(l.Algorithm) >= len(descriptor.AlgorithmNames) {
		return nil, fmt.Errorf("the limit's Algorithm is %d, which package ratelimit does not know", l.Algorithm)
	}
	all := yamlform.Pairs{{Key: "algorithm", Value: descriptor.AlgorithmNames[l.Algorithm]}}
	if l.Name != "" {
		all = append(all, yamlform.Pair{Key: "name", Value: l.Name})
	}
	if l.Burst > 0 {
		all = append(all, yamlform.Pair{Key: "burst", Value: float64(l.Burst)})
	}
	if l.Algorithm == Concurrency {
		return append(all, yamlform.Pair{Key: "max_in_flight", Value: float64(l.Requests)},
			yamlform.Pair{Key: "ttl", Value: l.Window.String()}), nil
	}
	for _, u := range units {
		if l.Window > 0 && l.Window%u.long == 0 {
			return append(all, yamlform.Pair{Key: "unit", Value: u.name},
				yamlform.Pair{Key: "unit_multiplier", Value: float64(l.Window / u.long)},
				yamlform.Pair{Key: "requests_per_unit", Value: float64(l.Requests)}), nil
		}
	}
	return nil, fmt.Errorf("the limit's Window is %s: it must be at least 1ms, in whole milliseconds", l.Window)
}

// fixedRules returns the rules that never change, which are in code and in Options.Files, and their tree. A mistake in
// them is an error, because only a new version of the program can correct it.
func (o *Options) fixedRules() (files []config.File, tree *descriptor.Tree, err error) {
	for i := range o.Domains {
		d := &o.Domains[i]
		content, err := d.pairs()
		if err != nil {
			return nil, nil, fmt.Errorf("domain %q: %w", d.Name, err)
		}
		files = append(files, config.File{Name: fmt.Sprintf("Options.Domains[%d]", i), Rules: content})
	}
	if o.Files != nil {
		inFiles := len(files)
		err := fs.WalkDir(o.Files, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !isRuleFile(name) {
				return err
			}
			data, err := fs.ReadFile(o.Files, name)
			files = append(files, config.File{Name: name, Data: data})
			return err
		})
		if err == nil && len(files) == inFiles {
			err = errors.New("there is no rule file (*.yaml)")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read Options.Files: %w", err)
		}
	}
	tree, mistakes := config.Compile(files, config.CompileOptions{Lenient: !o.Strict, NoRegions: true})
	all := make([]error, len(mistakes))
	for i, e := range mistakes {
		if all[i] = e; strings.HasPrefix(e.Error(), "Options.Domains") {
			all[i] = errors.New(inCode.Replace(e.Error()))
		}
	}
	return files, tree, errors.Join(all...)
}

// inCode replaces the names of rule files in an error by those of Rule and Limit.
var inCode = strings.NewReplacer(
	": domain: ", ": ", "descriptors[", "Rules[", "the descriptors there", "the rules there", "descriptors", "Rules",
	"a descriptor", "a rule",
	".rate_limit.requests_per_unit", ".Limit.Requests", ".rate_limit.ttl", ".Limit.Window", ".rate_limit.burst",
	".Limit.Burst",
	".rate_limits[", ".Limits[", ".rate_limit", ".Limit", "`rate_limits`", "Limits", "`requests_per_unit`", "Requests",
	"`ttl`", "Window",
	"`burst`", "Burst", "write `key: NAME`", "set it", "`key`", "Key", "a `name`", "a Name", "`fixed_window`",
	"FixedWindow",
	"`sliding_window`", "SlidingWindow", "`sliding_log`", "SlidingLog", "`token_bucket`", "TokenBucket", "`leaky_bucket`",
	"LeakyBucket",
	"`concurrency`", "Concurrency",
)

// isRuleFile reports whether a file has rules, judging by its name: tests of rules have different names.
func isRuleFile(name string) bool {
	ext := path.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasSuffix(strings.TrimSuffix(name, ext), "_test")
}
