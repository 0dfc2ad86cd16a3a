package differential

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// object is a map of the rule language. Rule files are written as JSON, which is YAML too.
type object = map[string]any

// file draws the rules of a domain. Each descriptor is drawn until the rule language accepts it.
func (d *drawer) file(domain string) object {
	file := object{"domain": domain}
	for d.domainKeys(file); !compiles(file); d.domainKeys(file) {
		file = object{"domain": domain}
	}
	var all []any
	for n := range d.between(2, 6) {
		for {
			nodes, shapes := d.top(fmt.Sprint("k", n))
			d.tried++
			one := maps.Clone(file)
			one["descriptors"] = nodes
			if !compiles(one) {
				continue
			}
			d.kept++
			all = append(all, nodes...)
			for _, s := range shapes {
				s.domain = domain
				d.shapes = append(d.shapes, s)
			}
			break
		}
	}
	file["descriptors"] = all
	if !compiles(file) { // two descriptors that do not fit together, which is rare
		return d.file(domain)
	}
	return file
}

func (d *drawer) domainKeys(file object) {
	if d.oneIn(2) {
		file["admission"] = pick(d, "independent", "all_or_nothing")
	}
	if d.oneIn(2) {
		file["on_error"] = pick(d, onErrors...)
	}
	if d.oneIn(2) {
		file["headers"] = d.headers()
	}
	if d.oneIn(2) {
		file["request_override"] = pick(d, "honour", "min", "min", "ignore")
	}
	if d.oneIn(3) {
		file["refunds"] = pick(d, "allow", "deny")
	}
	if d.oneIn(3) {
		file["envoy_delay"] = true
	}
	if d.oneIn(4) {
		file["quota_buckets"] = object{"order": []string{"k1", "k0"}, "default": pick(d, "allow", "deny")}
	}
}

var onErrors = []string{"error", "allow", "deny", "local"}

func (d *drawer) headers() []any {
	all := []any{}
	for _, family := range []string{"ratelimit", "x-ratelimit", "ietf", "retry-after"} {
		if d.oneIn(2) {
			all = append(all, family)
		}
	}
	for n := range d.IntN(3) {
		h := object{"name": fmt.Sprint("x-own-", n), "value": pick(d,
			"{limit} of {capacity}; {used}", "{remaining}", "{reset};{window}", "{reset_unix}", "{name}", "{retry_after}", "always", "{remaining} {name} {retry_after}")}
		if d.oneIn(2) {
			h["of"] = pick[any](d, "n0", []string{"n1", "n2"}, []string{"l0"})
		}
		if d.oneIn(2) {
			h["when"] = pick(d, "passed", "refused")
		}
		all = append(all, h)
	}
	return all
}

// path is what is known of the levels above a descriptor.
type path struct {
	keys   []string // that have one value or a condition, so that costs may depend on them
	scales []string // with condition
	levels []level
}

// top draws a descriptor of the first level, or two that belong together.
func (d *drawer) top(key string) (nodes []any, shapes []shape) {
	if d.oneIn(5) {
		return d.plans(key)
	}
	node, shapes := d.node(key, path{}, 0)
	return []any{node}, shapes
}

// plans draws a descriptor that inherits from a sibling.
func (d *drawer) plans(key string) (nodes []any, shapes []shape) {
	base, shapes := d.node(key, path{}, 0)
	for _, name := range matchers {
		delete(base, name)
	}
	special := object{"key": key, "value": "gold", "inherit": true}
	for _, name := range []string{"condition", "fold_case", "group"} {
		if v, has := base[name]; has {
			special[name] = v
		}
	}
	if d.oneIn(2) {
		special["rate_limit"] = d.limit(path{}, false, false)
	}
	for i := range shapes {
		shapes[i].levels[0].values = append([]string{"gold"}, shapes[i].levels[0].values...)
	}
	return []any{base, special}, shapes
}

var matchers = []string{"value", "values", "value_regex", "value_cidr"}

var (
	anyValues = []string{"a", "b", "c"}
	odd       = []string{"", "zz", "A", "10.0.0.1", "gold", "12"}
	numbers   = []string{"1", "2", "3", "07", "0", "x", "99999999999999999999", "4"}
	addresses = []string{"10.1.2.3", "10.1.2.4", "10.1.9.1", "::ffff:10.1.2.3", "11.0.0.1", "2001:db8::1", "2001:db8:0:1::1", "no address"}
)

// node draws a descriptor, and what to send to reach its limits.
func (d *drawer) node(key string, above path, depth int) (object, []shape) {
	n := object{"key": key}
	l := level{keys: []string{key}, values: anyValues, other: odd}
	pattern, constant := false, false
	switch d.IntN(14) {
	case 0:
		n["value"], l.values, constant = "a", []string{"a"}, true
	case 1:
		n["value"], l.values, pattern = pick(d, "x*", "*y", "x*y"), []string{"xy", "x1y", "x22y"}, true
	case 2:
		n["values"], l.values, pattern = []string{"a", "B", "c"}, []string{"a", "B", "c", "b"}, true
	case 3:
		n["value_regex"], l.values, pattern = "u-([a-c]+)-[0-9]*", []string{"u-a-1", "u-a-2", "u-b-", "U-a-1"}, true
		if d.oneIn(2) {
			n["group"] = "$1"
		}
	case 4:
		n["value_cidr"], l.values, pattern = pick(d, "10.0.0.0/8", "2001:db8::/32"), addresses, true
		if d.oneIn(2) {
			n["group"] = pick(d, "ipv4/24", "ipv6/48", "ipv4/16,ipv6/64")
		}
	case 5:
		if depth == 0 {
			n["key"] = key + "_*"
			l.keys = []string{key + "_1", key + "_2", key}
		}
		if d.oneIn(2) {
			n["value"] = "*a"
			l.values = []string{"a", "ba"}
		}
		pattern = true
	case 6:
		n["condition"], l.values = true, numbers
		above.scales = append(slices.Clone(above.scales), key)
	case 7:
		n["group"], l.values = pick(d, "ipv4/24", "ipv4/24,ipv6/56"), addresses
	}
	if d.oneIn(8) {
		n["fold_case"] = true
		l.values = append(slices.Clone(l.values), "A", "C", "U-B-")
	}
	if pattern && d.oneIn(2) {
		n["share_threshold"] = true
	}
	if n["condition"] == nil && constant && d.oneIn(3) {
		n["condition"] = true
	}
	if d.oneIn(8) {
		n["value_to_metric"] = true
	}
	above.keys = append(slices.Clone(above.keys), key)
	above.levels = append(slices.Clone(above.levels), l)
	var shapes []shape
	deeper := depth < 3 && d.oneIn(2+depth)
	if !deeper || d.oneIn(3) {
		d.rule(n, above)
		shapes = append(shapes, shape{levels: slices.Clone(above.levels), reserves: n["reservations"] != nil})
	}
	if deeper {
		var children []any
		for i := range d.between(1, 2) {
			child, below := d.node(fmt.Sprint(key, pick(d, "x", "y"), i), above, depth+1)
			children, shapes = append(children, child), append(shapes, below...)
		}
		n["descriptors"] = children
	}
	return n, shapes
}

// rule draws the limits of a descriptor, and the keys that belong to them.
func (d *drawer) rule(n object, p path) {
	reserves := d.oneIn(5)
	overridable := d.oneIn(4)
	unlimited := false
	switch {
	case d.oneIn(14):
		l := object{"unlimited": true}
		if d.oneIn(2) {
			l["replaces"] = d.replaces()
		}
		n["rate_limit"], unlimited = l, true
	case d.oneIn(3):
		var all []any
		for i := range pick(d, 2, 2, 3, 4) {
			l := d.limit(p, reserves, overridable)
			l["name"] = fmt.Sprint(pick(d, "n", "l"), i)
			all = append(all, l)
		}
		n["rate_limits"] = all
	default:
		n["rate_limit"] = d.limit(p, reserves, overridable)
	}
	flag := func(name string, in int) {
		if d.oneIn(in) {
			n[name] = true
		}
	}
	flag("shadow_mode", 8)
	flag("quota_mode", 4)
	flag("detailed_metric", 6)
	if d.oneIn(4) {
		n["on_error"] = pick(d, onErrors...)
	}
	if d.oneIn(4) {
		n["metadata"] = pick(d, object{"plan": "gold", "nested": object{"a": 1, "b": true}}, object{"nested": object{"b": false, "c": []int{1, 2}}}, object{"plan": "free"})
	}
	if unlimited {
		return
	}
	if overridable {
		n["overridable"] = pick[any](d, true, object{"max": d.between(1, 30)})
	}
	flag("usage", 3)
	if reserves {
		n["reservations"] = pick[any](d, true, d.reservations())
	}
	if cost := d.cost(p, reserves); cost != nil && d.oneIn(3) {
		n["cost"] = cost
	}
}

func (d *drawer) reservations() object {
	r := object{}
	if d.oneIn(2) {
		r["ttl"] = pick(d, "500ms", "2s", "1m")
	}
	if d.oneIn(2) {
		r["max_ttl"] = pick(d, "3s", "2m")
	}
	if d.oneIn(2) {
		r["max_share"] = pick(d, 0.5, 0.9, 1)
	}
	if d.oneIn(2) {
		r["max_outstanding"] = d.between(1, 4)
	}
	if d.oneIn(2) {
		r["on_expire"] = pick(d, "charge", "release")
	}
	return r
}

// cost draws what a hit counts for.
func (d *drawer) cost(p path, reserves bool) any {
	if d.oneIn(3) {
		return d.between(1, 4)
	}
	c := object{}
	if len(p.keys) > 0 && d.oneIn(2) {
		c[pick(d, p.keys...)] = object{"a": 2, "b": 3, "*": 1, "1": 4}
	}
	if reserves && d.oneIn(2) {
		c["input"], c["output"] = 1, pick(d, 0.5, 2, 4)
	}
	if len(c) == 0 {
		return nil
	}
	return c
}

func (d *drawer) replaces() (all []any) {
	for range d.between(1, 2) {
		all = append(all, object{"name": fmt.Sprint(pick(d, "n", "l"), d.IntN(4))})
	}
	return all
}

// limit draws a limit. Some of what it draws is refused by the rule language, so keys are rare where they fit badly.
func (d *drawer) limit(p path, reserves, overridable bool) object {
	l := object{}
	if d.oneIn(2) {
		l["name"] = fmt.Sprint(pick(d, "n", "n", "l", "l", "with \"quotes\" é", strings.Repeat("long", 200)), d.IntN(4))
	}
	if d.oneIn(8) {
		l["replaces"] = d.replaces()
	}
	switch d.IntN(6) {
	case 0:
		l[pick(d, "shadow", "soft")] = true
	case 1:
		l["enforce_percent"] = pick(d, 1, 30, 50, 99, 100)
	}
	if d.oneIn(5) {
		l["warn_at"] = pick(d, 1, 50, 80, 100)
	}
	if d.oneIn(10) {
		l["algorithm"], l["max_in_flight"], l["ttl"] = "concurrency", d.between(1, 5), pick(d, "1s", "30s", "5m")
		return l
	}
	l["unit"] = pick(d, "second", "second", "minute", "minute", "minute", "hour", "day", "week", "month", "year", "millisecond")
	l["requests_per_unit"] = d.requests()
	if d.oneIn(4) {
		l["unit_multiplier"] = d.between(1, 4)
	}
	interval := false
	switch d.IntN(10) {
	case 0, 1:
		l["algorithm"] = "sliding_window"
		if d.oneIn(2) {
			l["precision"] = pick(d, 2, 4, 10)
		}
	case 2:
		l["algorithm"] = "sliding_log"
		l["requests_per_unit"] = d.between(0, 9)
	case 3, 4:
		l["algorithm"] = "token_bucket"
		if d.oneIn(2) {
			l["burst"] = d.between(1, 12)
		}
		if d.oneIn(3) {
			l["refill"] = pick(d, "greedy", "interval")
			interval = l["refill"] == "interval"
		}
	case 5:
		if !reserves {
			l["algorithm"] = "leaky_bucket"
			if d.oneIn(2) {
				l["burst"] = d.between(0, 12)
			}
			if d.oneIn(2) {
				l["nodelay"] = pick[any](d, 1, 3, "all")
			}
		}
	}
	algorithm := l["algorithm"]
	if (algorithm == nil || interval) && d.oneIn(5) {
		l["align"] = pick(d, "clock", "first_hit")
	}
	if unit := l["unit"]; algorithm == nil && l["align"] == nil && (unit == "day" || unit == "week" || unit == "month" || unit == "year") && d.oneIn(2) {
		l["calendar"] = pick(d, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu")
		if unit == "week" && d.oneIn(2) {
			l["week_start"] = pick(d, "sunday", "wednesday")
		}
	}
	if (algorithm == nil || algorithm == "sliding_log") && !reserves && d.oneIn(4) {
		l["count_denied"] = d.oneIn(2)
	}
	if !reserves && d.oneIn(5) {
		l["active"] = d.active()
	}
	if len(p.scales) > 0 && !overridable && d.oneIn(2) {
		l["scale"] = object{"by": pick(d, p.scales...), "max": pick(d, 1, 3, 10)}
	}
	switch {
	case reserves:
	case d.oneIn(6) && l["soft"] == nil:
		l["penalty"] = pick(d, "1s", "10s", "1h")
	case d.oneIn(8) && l["scale"] == nil:
		l["lease"] = true
	}
	return l
}

// active draws times around the beginning.
func (d *drawer) active() object {
	a := object{}
	zone := time.UTC
	if d.oneIn(2) {
		name := pick(d, "UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu")
		a["zone"] = name
		if z, err := time.LoadLocation(name); err == nil {
			zone = z
		}
	}
	at := func(after time.Duration) string { return d.start.Add(after).In(zone).Format("2006-01-02T15:04") }
	if d.oneIn(3) {
		a["from"] = at(time.Duration(d.between(-3, 3)) * time.Minute)
	}
	if d.oneIn(3) {
		a["until"] = at(time.Duration(d.between(4, 600)) * time.Minute)
	}
	if d.oneIn(3) {
		days := []string{"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}
		d.Shuffle(len(days), func(i, j int) { days[i], days[j] = days[j], days[i] })
		a["weekdays"] = days[:d.between(1, 6)]
	}
	if len(a) < 2 || d.oneIn(2) {
		begin := d.start.In(zone).Add(time.Duration(d.between(-2, 2)) * time.Hour / 2)
		a["hours"] = begin.Format("15:04") + "-" + begin.Add(pick(d, 10*time.Minute, time.Hour, 9*time.Hour)).Format("15:04")
	}
	return a
}
