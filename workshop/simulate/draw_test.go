package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/config"
)

// rule is one rule of the fleet. Its limit is a number for each version of the rules.
type rule struct {
	key   string
	yaml  string // the limit in YAML, with its number as %[1]d
	flags string // other keys of the rule in YAML
	kind  kind
	hot   bool // permits are leased
	quota bool // Envoys enforce it
	far   bool // it counts across regions
	held  bool // hits are reserved and committed
	pair  bool // a request is for two rules, this one and the next or the last: both count it, or none
	most  int  // the highest number of the limit
}

// kind is an algorithm with its options. It selects the oracle's checks.
type kind int

const (
	fixed kind = iota
	log
	bucket
	sliding
	places
	first
	leaky
	punish
	classes
)

// window is the window of all limits. ttl is the longest time that a place is held.
const (
	window  = 10 * time.Second
	ttl     = 15 * time.Second
	penalty = 4 * time.Second
	callers = 3
)

var rules = []rule{
	{key: "fixed", kind: fixed, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d"},
	{key: "log", kind: log, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: sliding_log"},
	{key: "bucket", kind: bucket, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: token_bucket"},
	{key: "sliding", kind: sliding, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: sliding_window"},
	{key: "first", kind: first, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, align: first_hit"},
	{key: "leaky", kind: leaky, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: leaky_bucket, nodelay: all"},
	{key: "punish", kind: punish, most: 40, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, penalty: 4s"},
	{key: "shared", kind: classes, most: 120, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, classes: {by: priority, guaranteed_percent: {critical: 20, paid: 50}}"},
	{key: "pair", kind: fixed, most: 40, pair: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d"},
	{key: "other", kind: log, most: 40, pair: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: sliding_log"},
	{key: "tokens", kind: fixed, most: 400, held: true, flags: "reservations: true", yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d"},
	{key: "places", kind: places, most: 6, held: true, flags: "reservations: true", yaml: "algorithm: concurrency, max_in_flight: %[1]d, ttl: 15s"},
	{key: "far-fixed", kind: fixed, most: 800, far: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, regions: {home: a}"},
	{key: "far-sliding", kind: sliding, most: 800, far: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: sliding_window, regions: {home: hash}"},
	{key: "far-home", kind: fixed, most: 800, far: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, lease: true, regions: {home: b}"},
	{key: "far-bucket", kind: bucket, most: 800, far: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: token_bucket, regions: {home: hash}"},
	{key: "quota", kind: bucket, most: 800, quota: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, algorithm: token_bucket"},
	{key: "hot-fixed", kind: fixed, most: 800, hot: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, lease: true"},
	{key: "hot-bucket", kind: bucket, most: 800, hot: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, lease: true, algorithm: token_bucket"},
	{key: "hot-log", kind: log, most: 800, hot: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, lease: true, algorithm: sliding_log"},
	{key: "hot-sliding", kind: sliding, most: 800, hot: true, yaml: "unit: second, unit_multiplier: 10, requests_per_unit: %[1]d, lease: true, algorithm: sliding_window"},
}

// priorities are the classes of customers. guarantees are the percentages of the limit that each class is guaranteed.
var (
	priorities = []string{"critical", "paid", "free"}
	guarantees = []int64{20, 50, 0}
)

// quotaRule is the limit that Envoys share.
var quotaRule = slices.IndexFunc(rules, func(r rule) bool { return r.quota })

func (r *rule) domain() string {
	if r.pair {
		return pairs
	}
	return domain
}

// version is the limit of each rule in one version of the rule file.
type version []uint64

// files are the rule files. Rules whose requests are all or nothing have a separate domain.
func (v version) files() (files []config.File) {
	for _, name := range []string{domain, pairs} {
		files = append(files, config.File{Name: name, Data: []byte(v.yaml(name))})
	}
	return files
}

func (v version) yaml(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\n", name)
	if name == pairs {
		b.WriteString("admission: all_or_nothing\n")
	}
	b.WriteString("descriptors:\n")
	for i, r := range rules {
		if r.domain() != name {
			continue
		}
		if r.kind == classes {
			fmt.Fprintf(&b, "  - {key: %s, descriptors: [{key: priority, condition: true, rate_limit: {%s}}]}\n", r.key, fmt.Sprintf(r.yaml, v[i]))
			continue
		}
		fmt.Fprintf(&b, "  - {key: %s, overridable: {max: 100000}, rate_limit: {%s}", r.key, fmt.Sprintf(r.yaml, v[i]))
		if r.flags != "" {
			fmt.Fprintf(&b, ", %s", r.flags)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// draw derives a fleet and its history from a seed.
func draw(seed uint64) (setup, []step) {
	r := rand.New(rand.NewPCG(seed, 1))
	s := setup{
		seed: seed, replicas: 1 + r.IntN(4), trip: []time.Duration{time.Millisecond, 5 * time.Millisecond, 40 * time.Millisecond}[r.IntN(3)],
		length: time.Minute, drift: r.Int64N(2001) - 1000,
	}
	calm := r.IntN(2) == 0 // no faults, so the oracle checks every answer
	if !calm && r.IntN(3) > 0 {
		s.lost = 0.02
	}
	refunds := r.IntN(3) == 0
	if s.regions = 1; r.IntN(4) == 0 {
		s.regions = 2 + r.IntN(2)
		s.replicas = max(s.replicas, s.regions)
		s.trip = min(s.trip, 5*time.Millisecond)
	}
	for range 3 {
		v := make(version, len(rules))
		for i := range rules {
			v[i] = uint64(1 + r.IntN(rules[i].most))
			if rules[i].far || rules[i].quota {
				v[i] = max(v[i], 40*uint64(len(names))) // regions and Envoys cannot divide a smaller limit
			}
		}
		s.versions = append(s.versions, v)
	}
	if s.regions == 1 && r.IntN(4) == 0 {
		s.replicas, s.envoys = 1, 2+r.IntN(3) // several replicas need a Redis to divide a limit
	}
	steps := demands(r, &s)
	for i, rl := range rules {
		if rl.far != (s.regions > 1) || rl.hot && r.IntN(2) == 0 || r.IntN(2) == 0 || rl.key == "other" || rl.quota {
			continue
		}
		for caller := range 1 + r.IntN(callers) {
			at := time.Duration(r.Int64N(int64(5 * time.Second)))
			ids := byte(0)
			for at < s.length {
				// Phases of different demand, some of them only around the end of a window.
				until, perSecond := at+time.Duration(1+r.Int64N(int64(10*time.Second))), float64(rl.most)/window.Seconds()*[]float64{0.1, 0.5, 1, 3}[r.IntN(4)]
				edges := r.IntN(4) == 0
				for at < until && at < s.length {
					at += time.Duration(r.ExpFloat64() / perSecond * float64(time.Second))
					if edges && at%window > window/10 && at%window < window*9/10 {
						continue
					}
					st := step{at: at, what: "request", replica: r.IntN(s.replicas), rule: i, caller: caller, n: 1}
					if rl.kind == classes {
						st.id = byte(r.IntN(len(priorities)))
					}
					switch {
					case rl.held && ids < 250:
						steps = append(steps, reserved(r, st, &ids, rl.kind == places)...)
						continue
					case rl.kind == places || rl.held:
						continue
					case r.IntN(20) == 0:
						st.what, st.n = "peek", 0
					case r.IntN(10) == 0:
						st.n = 1 + r.Int64N(int64(rl.most)/4+1)
					case refunds && !rl.pair && !rl.far && r.IntN(20) == 0:
						st.what, st.n = "refund", -1-r.Int64N(3)
					}
					steps = append(steps, st)
				}
			}
		}
	}
	for range r.IntN(8) {
		st := step{at: time.Duration(r.Int64N(int64(s.length))), replica: r.IntN(s.replicas), rule: r.IntN(len(rules)), caller: r.IntN(callers)}
		for s.regions > 1 && !rules[st.rule].far { // nobody asks for the others
			st.rule = r.IntN(len(rules))
		}
		kinds := 4
		if calm || s.envoys > 0 {
			kinds = 2
		}
		switch r.IntN(kinds) {
		case 0:
			st.what, st.n = "rules", r.Int64N(int64(len(s.versions)))
		case 1:
			st.what, st.n = "override", r.Int64N(2*int64(rules[st.rule].most))
		case 2:
			st.what = "kill"
		case 3:
			st.what, st.n = "clock", r.Int64N(41)-20
			if s.regions > 1 {
				st.what, st.n = "cut", 1+r.Int64N(20)
			}
		}
		if (rules[st.rule].kind == places || rules[st.rule].kind == classes) && st.what == "override" {
			continue
		}
		steps = append(steps, st)
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	return s, steps
}

// demands draws how much the clients of the Envoys ask for, and when streams break.
func demands(r *rand.Rand, s *setup) (steps []step) {
	for caller := range s.envoys {
		for at := time.Duration(0); at < s.length; at += time.Duration(1 + r.Int64N(int64(15*time.Second))) {
			steps = append(steps, step{at: at, what: "demand", rule: quotaRule, caller: caller, n: []int64{0, 3, 30, 100}[r.IntN(4)]})
			if r.IntN(6) == 0 {
				steps = append(steps, step{at: at, what: "stream", rule: quotaRule, caller: caller, n: 1 + r.Int64N(20)})
			}
		}
	}
	return steps
}

// reserved is a reservation, and its commit: of fewer hits, of more, twice, late or never.
func reserved(r *rand.Rand, st step, ids *byte, place bool) []step {
	*ids++
	st.what, st.id, st.n = "reserve", *ids, 1
	end := st
	end.what, end.at = "commit", st.at+time.Duration(r.Int64N(int64(4*time.Second)))
	if !place {
		st.n = 1 + r.Int64N(60)
		end.n = r.Int64N(st.n + st.n/4 + 1)
	}
	switch r.IntN(10) {
	case 0:
		return []step{st}
	case 1:
		late := end
		late.at += ttl
		return []step{st, late}
	case 2:
		again := end
		again.at += time.Second
		return []step{st, end, again}
	}
	return []step{st, end}
}
