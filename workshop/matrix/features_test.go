package matrix

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// feature is a part of the rule language with rules that use it.
type feature struct {
	name    string
	keys    []string // keys of the rule language that it covers, as form.key
	top     string   // keys of the domain, one a line
	rules   string   // the descriptors. A way to count replaces each @ in a limit with its own key
	callers []string // descriptors of the customers: entries in order, as key=value with | between them

	ask func(*limiter.Descriptor) // adds to a customer's descriptor; nil: nothing
	// overrides of the first customer, by the round before which they are set
	over map[int]func() (string, override.Numbers)
}

// plans have a counter for each user, with any plan.
const plans = `
- {key: plan, value: free, condition: true, descriptors: [{key: user, %[1]s rate_limit: {unit: hour, requests_per_unit: 10 @}}]}
- {key: plan, value: pro, condition: true, descriptors: [{key: user, %[1]s rate_limit: {unit: hour, requests_per_unit: 30 @}}]}
`

func limited(limit string) string {
	return "- {key: user, rate_limit: {unit: hour, requests_per_unit: 10 " + limit + " @}}"
}

// features returns the table. Each algorithm has a row without being named here.
func features() []feature {
	ab := []string{"user=a", "user=b"}
	all := []feature{
		{name: "a value", keys: []string{"file.domain", "file.descriptors", "descriptor.key", "descriptor.value", "descriptor.rate_limit", "descriptor.descriptors", "limit.unit", "limit.requests_per_unit"},
			rules: "- {key: app, value: x, descriptors: [{key: user, value: a, rate_limit: {unit: hour, requests_per_unit: 10 @}}, {key: user, rate_limit: {unit: hour, requests_per_unit: 20 @}}]}", callers: []string{"app=x|user=a", "app=x|user=b", "app=y|user=a"}},
		{name: "a limit of 0", rules: "- {key: user, rate_limit: {unit: hour, requests_per_unit: 0 @}}", callers: ab},
		{name: "unlimited", keys: []string{"limit.unlimited"}, rules: "- {key: user, value: a, rate_limit: {unlimited: true}}\n" + limited(""), callers: ab},
		{name: "values", keys: []string{"descriptor.values"}, rules: "- {key: user, values: [a, b], rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"user=a", "user=b", "user=c"}},
		{name: "value_regex", keys: []string{"descriptor.value_regex"}, rules: "- {key: user, value_regex: '[a-b]+', rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"user=a", "user=ab", "user=c"}},
		{name: "value_cidr", keys: []string{"descriptor.value_cidr"}, rules: "- {key: ip, value_cidr: 10.0.0.0/8, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"ip=10.0.0.1", "ip=10.0.0.2", "ip=11.0.0.1"}},
		{name: "keys and values with *", rules: "- {key: 'h_*', rate_limit: {unit: hour, requests_per_unit: 10 @}}\n- {key: path, value: '/x/*', rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"h_a=1", "h_b=1", "path=/x/1", "path=/x/2"}},
		{name: "share_threshold", keys: []string{"descriptor.share_threshold"}, rules: "- {key: path, value: '/x/*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"path=/x/1", "path=/x/2"}},
		{name: "condition", keys: []string{"descriptor.condition"}, rules: fmt.Sprintf(plans, ""), callers: []string{"plan=free|user=a", "plan=pro|user=a", "plan=pro|user=b"}},
		{name: "conditions with a further limit", callers: []string{"plan=free|user=a", "plan=pro|user=a"}, rules: `
- {key: plan, value: free, condition: true, descriptors: [{key: user, rate_limits: [{name: hour, unit: hour, requests_per_unit: 10 @}]}]}
- {key: plan, value: pro, condition: true, descriptors: [{key: user, rate_limits: [{name: hour, unit: hour, requests_per_unit: 30 @}, {name: minute, unit: minute, requests_per_unit: 8 @}]}]}`},
		{name: "conditions with several groups", callers: []string{"plan=free|ip=10.0.0.1", "plan=pro|ip=10.0.7.1", "plan=free|ip=10.0.0.2"}, rules: `
- {key: plan, value: free, condition: true, descriptors: [{key: ip, group: ipv4/24, rate_limit: {unit: hour, requests_per_unit: 10 @}}]}
- {key: plan, value: pro, condition: true, descriptors: [{key: ip, group: ipv4/16, rate_limit: {unit: hour, requests_per_unit: 10 @}}]}`},
		{name: "fold_case", keys: []string{"descriptor.fold_case"}, rules: "- {key: user, value: 'A*', fold_case: true, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"user=Ab", "user=aB", "user=b"}},
		{name: "group", keys: []string{"descriptor.group"}, rules: "- {key: ip, value_cidr: 10.0.0.0/8, group: ipv4/24, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"ip=10.0.0.1", "ip=10.0.0.2", "ip=10.0.1.1"}},
		{name: "inherit", keys: []string{"descriptor.inherit"}, rules: "- {key: user, value: a, inherit: true, usage: true}\n" + limited(""), callers: ab},
		{name: "usage", keys: []string{"descriptor.usage"}, rules: fmt.Sprintf(plans, "usage: true,"), callers: []string{"plan=free|user=a", "plan=pro|user=a"}},
		{name: "several limits", keys: []string{"descriptor.rate_limits", "limit.name"}, rules: "- {key: user, rate_limits: [{name: hour, unit: hour, requests_per_unit: 10 @}, {name: minute, unit: minute, requests_per_unit: 8 @}]}", callers: ab},
		{name: "replaces", keys: []string{"limit.replaces", "replaces.name"}, rules: "- {key: user, rate_limit: {name: per_user, unit: hour, requests_per_unit: 5 @}}\n- {key: vip, rate_limit: {unit: hour, requests_per_unit: 20, replaces: [{name: per_user}] @}}", callers: []string{"user=a", "vip=a"}},
		{name: "unit_multiplier", keys: []string{"limit.unit_multiplier"}, rules: limited(", unit_multiplier: 3"), callers: ab},
		{name: "burst", keys: []string{"limit.burst"}, rules: limited(", algorithm: token_bucket, burst: 12"), callers: ab},
		{name: "refill", keys: []string{"limit.refill"}, rules: limited(", algorithm: token_bucket, refill: interval"), callers: ab},
		{name: "align: first_hit", keys: []string{"limit.align"}, rules: limited(", align: first_hit"), callers: ab},
		{name: "calendar", keys: []string{"limit.calendar", "limit.week_start"}, rules: "- {key: user, rate_limit: {unit: week, requests_per_unit: 10, calendar: Europe/Berlin, week_start: sunday @}}", callers: ab},
		{name: "precision", keys: []string{"limit.precision"}, rules: limited(", algorithm: sliding_window, precision: 6"), callers: ab},
		{name: "nodelay", keys: []string{"limit.nodelay", "file.envoy_delay"}, top: "envoy_delay: true", rules: limited(", algorithm: leaky_bucket, burst: 9, nodelay: 4"), callers: ab},
		{name: "lease", keys: []string{"limit.lease"}, rules: "- {key: user, rate_limit: {unit: hour, requests_per_unit: 10, lease: true}}", callers: ab},
		{name: "regions: regional", keys: []string{"file.regions", "limit.regions", "regions.mode"}, top: "regions: {mode: regional}", rules: limited(", regions: {mode: regional}"), callers: ab},
		{name: "regions with a home", keys: []string{"regions.home"}, rules: limited(", regions: {home: eu}"), callers: ab},
		{name: "active", keys: []string{"limit.active", "active.from", "active.until", "active.weekdays", "active.hours", "active.zone"},
			rules: limited(", active: {from: 1999-12-31, until: 2000-01-03, weekdays: [saturday], hours: '00:00-00:30', zone: UTC}"), callers: ab},
		{name: "scale", keys: []string{"limit.scale", "scale.by", "scale.max"}, rules: "- {key: users, condition: true, descriptors: [{key: app, rate_limit: {unit: hour, requests_per_unit: 4, scale: {by: users, max: 5} @}}]}", callers: []string{"users=2|app=a", "users=9|app=a", "users=x|app=a"}},
		{name: "classes", keys: []string{"limit.classes", "classes.by", "classes.guaranteed_percent"}, rules: "- {key: class, condition: true, descriptors: [{key: app, rate_limit: {unit: hour, requests_per_unit: 20, classes: {by: class, guaranteed_percent: {gold: 60, '*': 20}} @}}]}", callers: []string{"class=gold|app=a", "class=tin|app=a"}},
		{name: "penalty", keys: []string{"limit.penalty"}, rules: limited(", penalty: 2h"), callers: ab},
		{name: "count_denied", keys: []string{"limit.count_denied"}, rules: limited(", count_denied: false"), callers: ab},
		{name: "count_denied of a log", rules: limited(", algorithm: sliding_log, count_denied: true"), callers: ab},
		{name: "shadow", keys: []string{"limit.shadow"}, rules: "- {key: user, rate_limits: [{name: real, unit: hour, requests_per_unit: 10 @}, {name: trial, unit: hour, requests_per_unit: 5, shadow: true @}]}", callers: ab},
		{name: "soft", keys: []string{"limit.soft", "limit.warn_at"}, rules: "- {key: user, rate_limits: [{name: real, unit: hour, requests_per_unit: 10, warn_at: 50 @}, {name: trial, unit: hour, requests_per_unit: 5, soft: true @}]}", callers: ab},
		{name: "enforce_percent", keys: []string{"limit.enforce_percent"}, rules: "- {key: user, rate_limits: [{name: real, unit: hour, requests_per_unit: 10 @}, {name: trial, unit: hour, requests_per_unit: 5, enforce_percent: 50 @}]}", callers: []string{"user=a", "user=b", "user=c", "user=d"}},
		{name: "a trial under one plan", rules: "- {key: plan, value: free, condition: true, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10 @}}]}\n- {key: plan, value: pro, condition: true, descriptors: [{key: user, rate_limit: {name: trial, unit: hour, requests_per_unit: 5, shadow: true @}}]}", callers: []string{"plan=free|user=a", "plan=pro|user=a"}},
		{name: "shadow_mode", keys: []string{"descriptor.shadow_mode"}, rules: "- {key: user, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: ab},
		{name: "quota_mode", keys: []string{"descriptor.quota_mode"}, rules: "- {key: user, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: ab},
		{name: "names in metrics", keys: []string{"descriptor.detailed_metric", "descriptor.value_to_metric"}, rules: "- {key: user, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 10 @}}\n- {key: path, value: '/x/*', value_to_metric: true, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: []string{"user=a", "path=/x/1"}},
		{name: "metadata", keys: []string{"descriptor.metadata"}, rules: "- {key: user, metadata: {tier: gold}, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: ab},
		{name: "on_error", keys: []string{"descriptor.on_error", "file.on_error"}, top: "on_error: allow", rules: "- {key: user, on_error: deny, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: ab},
		{name: "overridable", keys: []string{"descriptor.overridable", "overridable.max"}, rules: "- {key: user, overridable: {max: 100}, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: ab, over: raisedAndLowered("d.user")},
		{name: "an override of a bucket", rules: "- {key: user, overridable: true, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: token_bucket @}}", callers: ab, over: raisedAndLowered("d.user")},
		{name: "reservations", keys: []string{"descriptor.reservations", "reservations.ttl", "reservations.max_ttl", "reservations.max_share", "reservations.max_outstanding", "reservations.on_expire"},
			rules: "- {key: user, reservations: {ttl: 5m, max_ttl: 1h, max_share: 0.9, max_outstanding: 3, on_expire: release}, rate_limit: {unit: hour, requests_per_unit: 10 @}}", callers: ab},
		{name: "reservations that are charged", rules: "- {key: user, reservations: true, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_window @}}", callers: ab},
		{name: "cost", keys: []string{"descriptor.cost"}, rules: "- {key: user, cost: 2, rate_limit: {unit: hour, requests_per_unit: 11 @}}", callers: ab},
		{name: "cost by value", rules: "- {key: model, condition: true, descriptors: [{key: user, cost: {model: {large: 3, '*': 1}}, rate_limit: {unit: hour, requests_per_unit: 30 @}}]}", callers: []string{"model=large|user=a", "model=small|user=a"}},
		{name: "headers", keys: []string{"file.headers", "header.name", "header.value", "header.of", "header.when"}, top: "headers: [ietf, x-ratelimit, {name: x-left, value: '{remaining} of {capacity}', of: main, when: passed}]",
			rules: limited(", name: main"), callers: ab},
		{name: "admission: all_or_nothing", keys: []string{"file.admission"}, top: "admission: all_or_nothing", rules: limited("") + "\n- {key: path, rate_limit: {unit: hour, requests_per_unit: 6 @}}", callers: []string{"user=a", "path=x"}},
		{name: "refunds: deny", keys: []string{"file.refunds"}, top: "refunds: deny", rules: limited(""), callers: ab},
		{name: "a limit in the request", keys: []string{"file.request_override"}, top: "request_override: min", rules: limited(""), callers: ab,
			ask: func(d *limiter.Descriptor) {
				d.HasLimit, d.Limit = true, limiter.RequestLimit{Requests: 4, Unit: int32(descriptor.Hour)}
			}},
		{name: "quota_buckets", keys: []string{"file.quota_buckets", "quota_buckets.order", "quota_buckets.default"}, top: "quota_buckets: {order: [user], default: deny}", rules: limited(""), callers: ab},
	}
	for _, name := range descriptor.AlgorithmNames {
		limit := "unit: hour, requests_per_unit: %d, algorithm: " + name
		var keys []string
		if name == descriptor.AlgorithmNames[descriptor.Concurrency] {
			limit = "algorithm: " + name + ", max_in_flight: %d, ttl: 1h"
			keys = []string{"limit.max_in_flight", "limit.ttl"}
		}
		small, large := fmt.Sprintf(limit, 10), fmt.Sprintf(limit, 30)
		all = append(all, feature{name: "algorithm: " + name, keys: append(keys, "limit.algorithm"), rules: "- {key: user, rate_limit: {" + small + " @}}", callers: ab},
			feature{
				name: name + " under conditions", callers: []string{"plan=free|user=a", "plan=pro|user=a"},
				rules: "- {key: plan, value: free, condition: true, descriptors: [{key: user, rate_limit: {" + small + " @}}]}\n" +
					"- {key: plan, value: pro, condition: true, descriptors: [{key: user, rate_limit: {" + large + " @}}]}",
			})
	}
	return all
}

// raisedAndLowered overrides a rule for the first customer: before any hit, and during use.
func raisedAndLowered(rule string) map[int]func() (string, override.Numbers) {
	to := func(requests uint64) func() (string, override.Numbers) {
		return func() (string, override.Numbers) {
			return rule, override.Numbers{Kind: override.Replace, Requests: requests, Burst: requests}
		}
	}
	return map[int]func() (string, override.Numbers){
		0: to(20), 1: to(3), 2: func() (string, override.Numbers) { return rule, override.Numbers{Kind: override.Blocked} },
		3: func() (string, override.Numbers) { return rule, override.Numbers{} },
	}
}

// file returns the rules of a feature as a rule file, with the keys that a way to count needs.
func (f *feature) file(w *way) string {
	top := w.top
	if key, _, _ := strings.Cut(top, ":"); strings.HasPrefix(f.top, key+":") {
		top = "" // the feature sets this key itself
	}
	rules := strings.ReplaceAll(f.rules, "@", w.inLimit)
	if w.times > 1 {
		rules = number.ReplaceAllStringFunc(rules, func(text string) string {
			name, n, _ := strings.Cut(text, ": ")
			size, _ := strconv.ParseUint(n, 10, 64)
			return fmt.Sprintf("%s: %d", name, size*w.times)
		})
	}
	return strings.Join([]string{"domain: d", f.top, top, "descriptors:", rules}, "\n")
}

// number matches the settings that grow where a way needs larger limits.
var number = regexp.MustCompile(`(requests_per_unit|burst|max_in_flight|max_outstanding): [0-9]+`)

// entriesOf returns the entries of a customer.
func entriesOf(caller string) (all []descriptor.Entry) {
	for _, pair := range strings.Split(caller, "|") {
		key, value, _ := strings.Cut(pair, "=")
		all = append(all, descriptor.Entry{Key: key, Value: value})
	}
	return all
}
