package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// everyKey uses every key of the rule language that envoyproxy/ratelimit does not have.
const everyKey = `domain: shop
admission: all_or_nothing
on_error: allow
headers: [ratelimit, {name: X-Shop-Limit, value: "{used}/{capacity}", of: long, when: passed}, retry-after]
descriptors:
  - key: tier
    values: [gold, silver, 7]
    share_threshold: true
    on_error: local
    rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 3, algorithm: token_bucket, burst: 9, refill: interval, align: first_hit, lease: true}
    descriptors:
      - key: path
        value_regex: /v[0-9]+/.*
        rate_limit: {unit: hour, requests_per_unit: 60, algorithm: sliding_window, precision: 3}
      - key: ip
        value_cidr: 2001:DB8::/32
        rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, burst: 5, nodelay: all}
  - key: user
    on_error: deny
    rate_limits:
      - {name: short, unit: second, requests_per_unit: 10, count_denied: false, replaces: [{name: x}]}
      - {name: long, unit: day, requests_per_unit: 250, calendar: Asia/Seoul, replaces: [{name: x}, {name: y}]}
`

func TestEveryExtensionReachesTheRule(t *testing.T) {
	tree, errs := Compile(filesOf(everyKey), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	d := tree.Domain("shop")
	if d.Admission != descriptor.AllOrNothing || d.OnError != descriptor.OnErrorAllow ||
		d.Headers == nil || d.Headers.String() != `[ratelimit, retry-after, {name: X-Shop-Limit, value: "{used}/{capacity}", of: ["long"], when: passed}]` {
		t.Errorf("the domain: admission %v, on_error %v, headers %s", d.Admission, d.OnError, d.Headers)
	}
	for _, c := range []struct {
		entries []descriptor.Entry
		path    string
		onError descriptor.OnError
		shares  bool
	}{
		{[]descriptor.Entry{{Key: "tier", Value: "7"}}, "shop.tier_gold,silver,7", descriptor.OnErrorLocal, true},
		{[]descriptor.Entry{{Key: "tier", Value: "gold"}, {Key: "path", Value: "/v12/x"}}, "shop.tier_gold,silver,7.path_/v[0-9]+/.*", 0, true},
		{[]descriptor.Entry{{Key: "tier", Value: "gold"}, {Key: "ip", Value: "2001:db8:1::"}}, "shop.tier_gold,silver,7.ip_2001:db8::/32", 0, true},
		{[]descriptor.Entry{{Key: "user", Value: "u"}}, "shop.user", descriptor.OnErrorDeny, false},
	} {
		r := d.Match(c.entries)
		if r == nil || r.Path != c.path || r.OnError != c.onError || r.Shares(0) != c.shares {
			t.Errorf("%v: %+v, want %s", c.entries, r, c.path)
		}
	}
	user := d.Match([]descriptor.Entry{{Key: "user", Value: "u"}})
	if diff := cmp.Diff([]string{"x", "y"}, user.Replaces); user.Name != "" || diff != "" {
		t.Errorf("name %q, replaces (-want +got):\n%s", user.Name, diff)
	}
	seoul := loadZone(t, "Asia/Seoul")
	want := []descriptor.Limit{
		{Name: "short", Requests: 10, Window: descriptor.Window{Unit: descriptor.Second}, CountDenied: descriptor.DeniedDrop},
		{Name: "long", Requests: 250, Window: descriptor.Window{Unit: descriptor.Day, Location: seoul}},
	}
	if diff := cmp.Diff(want, without(user.Limits), sameZone); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

func loadZone(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	must(t, err)
	return zone
}

// without returns limits without the fields that Compile derives.
func without(limits []descriptor.Limit) []descriptor.Limit {
	out := append([]descriptor.Limit(nil), limits...)
	for i := range out {
		out[i].Arithmetic = descriptor.Arithmetic{}
	}
	return out
}

func TestLimits(t *testing.T) {
	minute := descriptor.Window{Unit: descriptor.Minute}
	for _, c := range []struct {
		limit string
		want  descriptor.Limit
	}{
		{"{unit: minute, requests_per_unit: 6}", descriptor.Limit{Requests: 6, Window: minute}},
		{"{unit: minute, requests_per_unit: 6, algorithm: fixed_window, align: clock, unit_multiplier: 1, lease: false, burst: null}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Minute, Multiplier: 1}}},
		{"{unit: month, requests_per_unit: 9007199254740991, calendar: UTC}",
			descriptor.Limit{Requests: descriptor.MaxRequests, Window: descriptor.Window{Unit: descriptor.Month, Location: loadZone(t, "UTC")}}},
		{"{unit: month, requests_per_unit: 5000000000, algorithm: token_bucket}",
			descriptor.Limit{Requests: 5_000_000_000, Window: descriptor.Window{Unit: descriptor.Month}, Algorithm: descriptor.TokenBucket, Burst: 5_000_000_000}},
		{"{unit: Millisecond, unit_multiplier: 250, requests_per_unit: 6}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Millisecond, Multiplier: 250}}},
		{"{unit: month, unit_multiplier: 3, requests_per_unit: 6, calendar: UTC}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Month, Multiplier: 3, Location: loadZone(t, "UTC")}}},
		{"{unit: week, requests_per_unit: 6, calendar: UTC, week_start: sunday}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Week, WeekStart: 6, Location: loadZone(t, "UTC")}}},
		{"{unit: minute, unit_multiplier: 30}", descriptor.Limit{Window: descriptor.Window{Unit: descriptor.Minute, Multiplier: 30}}},
		{"{unit: minute, requests_per_unit: 6, align: first_hit, count_denied: true}",
			descriptor.Limit{Requests: 6, Window: minute, FirstHit: true, CountDenied: descriptor.DeniedCount}},
		{"{unit: year, requests_per_unit: 6, calendar: UTC, align: clock, unit_multiplier: 1}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Year, Multiplier: 1, Location: loadZone(t, "UTC")}}},
		{"{unit: week, requests_per_unit: 6, calendar: America/New_York}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Week, Location: loadZone(t, "America/New_York")}}},
		{"{unit: minute, requests_per_unit: 6, algorithm: sliding_window}", descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.SlidingWindow}},
		{"{unit: minute, requests_per_unit: 6, algorithm: sliding_window, precision: 60}",
			descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.SlidingWindow, Precision: 60}},
		{"{unit: minute, requests_per_unit: 6, algorithm: sliding_log, count_denied: true, lease: true}",
			descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.SlidingLog, CountDenied: descriptor.DeniedCount, Lease: true}},
		{"{unit: minute, requests_per_unit: 6, algorithm: token_bucket}", descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.TokenBucket, Burst: 6}},
		{"{unit: minute, requests_per_unit: 6, algorithm: token_bucket, burst: 1, refill: greedy}",
			descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.TokenBucket, Burst: 1}},
		{"{align: first_hit, refill: interval, unit: minute, requests_per_unit: 6, algorithm: token_bucket}",
			descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.TokenBucket, Burst: 6, Interval: true, FirstHit: true}},
		{"{unit: minute, requests_per_unit: 6, algorithm: leaky_bucket}", descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.LeakyBucket, Burst: 6}},
		{"{unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, burst: 0}", descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.LeakyBucket}},
		{"{unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, nodelay: 5}",
			descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.LeakyBucket, Burst: 6, NoDelay: 5}},
		{"{unit: minute, requests_per_unit: 6, algorithm: leaky_bucket, nodelay: all}",
			descriptor.Limit{Requests: 6, Window: minute, Algorithm: descriptor.LeakyBucket, Burst: 6, NoDelay: descriptor.NoDelayAll}},
		{"{algorithm: concurrency, max_in_flight: 6, ttl: 1h1m30s, lease: false}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 3690}, Algorithm: descriptor.Concurrency}},
		{"{unit: minute, requests_per_unit: 6, penalty: 1h30m}",
			descriptor.Limit{Requests: 6, Window: minute, Penalty: descriptor.NewPenalty(90 * time.Minute)}},
		{"{unit: minute, requests_per_unit: 6, penalty: 720h, shadow: true, lease: false}",
			descriptor.Limit{Requests: 6, Window: minute, Penalty: descriptor.NewPenalty(descriptor.MaxPenalty), Enforcement: descriptor.EnforcedInShadow}},
		{"{unit: minute, requests_per_unit: 6, shadow: true, warn_at: 100}",
			descriptor.Limit{Requests: 6, Window: minute, Enforcement: descriptor.EnforcedInShadow, WarnAt: 100}},
		{"{unit: minute, requests_per_unit: 6, soft: true, shadow: false, enforce_percent: null, replaces: [{name: x}]}",
			descriptor.Limit{Requests: 6, Window: minute, Enforcement: descriptor.EnforcedSoftly}},
		{"{unit: minute, requests_per_unit: 6, enforce_percent: 10, soft: false}",
			descriptor.Limit{Requests: 6, Window: minute, Enforcement: descriptor.EnforcedForSome, EnforcePercent: 10}},
		{"{algorithm: concurrency, max_in_flight: 6, ttl: 1m, shadow: true}",
			descriptor.Limit{Requests: 6, Window: descriptor.Window{Unit: descriptor.Second, Multiplier: 60}, Algorithm: descriptor.Concurrency, Enforcement: descriptor.EnforcedInShadow}},
	} {
		t.Run(c.limit, func(t *testing.T) {
			tree, errs := Compile(filesOf("domain: a\ndescriptors:\n  - key: k\n    rate_limit: "+c.limit+"\n"), CompileOptions{})
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			got := tree.Rules[0].Limits
			if got[0].Arithmetic.Length == 0 {
				t.Error("the limit is not compiled")
			}
			if diff := cmp.Diff([]descriptor.Limit{c.want}, without(got), sameZone); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// badLimits are limits, in braces on one line, with their errors: the column within the braces, from 1, and the
// message. There are no other errors.
var badLimits = []struct {
	limit string
	wants []string
}{
	{"{unit: day, unit_multiplier: 0}", []string{"30: `unit_multiplier` must be a whole number from 1 to 4294967295, not the number 0"}},
	{"{unit: day, unit_multiplier: 32851}", []string{"30: `unit_multiplier`: a window of 32851 days is longer than 90 years"}},
	{"{unit: day, unit_multiplier: 1.5}", []string{"30: `unit_multiplier` must be a whole number from 1 to 4294967295, not the number 1.5"}},
	{"{unit: millisecond, requests_per_unit: 5, calendar: UTC}", []string{"53: `calendar` needs a `unit` of a day or longer, not `millisecond`"}},
	{"{unit: millisecond, requests_per_unit: 5, algorithm: sliding_window, precision: 60}", []string{"81: `precision`: a window of 1ms cannot be cut into 60 equal parts of whole microseconds"}},
	{"{unit: day, requests_per_unit: 9007199254740992}", []string{"32: `requests_per_unit` must be a whole number from 0 to 9007199254740991, not the number 9007199254740992"}},
	{"{unit: month, requests_per_unit: 9007199254740991, algorithm: sliding_window}", []string{"34: `requests_per_unit`: 9007199254740991 in a sliding_window of 720h0m0s cannot be counted exactly, 1736829783019 is the most; use fixed_window for more"}},
	{"{unit: second, requests_per_unit: 5000000000000, algorithm: sliding_window}", []string{"35: `requests_per_unit`: 5000000000000 in a sliding_window of 1s cannot be counted exactly, 4499100526843 is the most; use fixed_window for more"}},
	{"{unit: day, requests_per_unit: 4294967296, algorithm: sliding_window, precision: 4}", []string{"32: `requests_per_unit`: 4294967296 in a sliding_window of 24h0m0s with precision 4 cannot be counted exactly, 4294967295 is the most; use fixed_window for more"}},
	{"{unit: month, requests_per_unit: 5000000001, algorithm: token_bucket}", []string{"34: `burst`: 5000000001 at 5000000001 per month cannot be counted exactly, 2702159 is the most; use a requests_per_unit with more zeros at its end, or fixed_window"}},
	{"{unit: day, algorithm: gcra}", []string{"24: unknown `algorithm` \"gcra\": write `fixed_window`, `sliding_window`, `sliding_log`, `token_bucket`, `leaky_bucket` or `concurrency`"}},
	{"{unit: day, algorithm: Token-Bucket, burst: 3}", []string{"24: unknown `algorithm` \"Token-Bucket\": did you mean `token_bucket`?"}},
	{"{unit: day, algorithms: token_bucket, burst: 3}", []string{"13: unknown key `algorithms`: did you mean `algorithm`?"}},
	{"{unit: day, burst: 5}", []string{"20: `burst` cannot be used with `fixed_window`, the default algorithm: it is for `token_bucket` or `leaky_bucket`"}},
	{"{unit: day, burst: 5, algorithm: sliding_log}", []string{"20: `burst` cannot be used with `sliding_log`: it is for `token_bucket` or `leaky_bucket`"}},
	{"{unit: day, burst: -1, algorithm: token_bucket}", []string{"20: `burst` must be a whole number from 0 to 9007199254740991, not the number -1"}},
	{"{unit: day, requests_per_unit: 1, burst: 0, algorithm: token_bucket}", []string{"42: `burst` of a `token_bucket` must be at least 1"}},
	{"{unit: day, algorithm: token_bucket}", []string{"1: `requests_per_unit`: a token_bucket that is never refilled; use fixed_window with 0"}},
	{"{unit: day, requests_per_unit: 0, algorithm: leaky_bucket}", []string{"32: `requests_per_unit`: a leaky_bucket that leaks nothing"}},
	{"{unit: year, requests_per_unit: 1, burst: 1000, algorithm: token_bucket}", []string{"43: `burst`: the bucket would take more than 90 years to fill"}},
	{"{unit: year, requests_per_unit: 1, burst: 1000, algorithm: token_bucket, refill: interval}", []string{"43: `burst`: the bucket would take more than 90 years to fill"}},
	{"{unit: day, requests_per_unit: 4294967291, algorithm: leaky_bucket}", []string{"32: `burst`: 4294967291 at 4294967291 per day cannot be counted exactly"}},
	{"{unit: day, refill: greedy}", []string{"21: `refill` cannot be used with `fixed_window`, the default algorithm: it is for `token_bucket`"}},
	{"{unit: day, refill: slow, algorithm: token_bucket}", []string{"21: unknown `refill` \"slow\": write `greedy` or `interval`"}},
	{"{unit: day, align: frist_hit}", []string{"20: unknown `align` \"frist_hit\": did you mean `first_hit`?"}},
	{"{unit: day, align: clock, algorithm: sliding_window}", []string{"20: `align` cannot be used with `sliding_window`: it is for `fixed_window`, or `token_bucket` with `refill: interval`"}},
	{"{unit: day, align: clock, algorithm: token_bucket}", []string{"20: `align` cannot be used with `token_bucket` with `refill: greedy`: it is for"}},
	{"{unit: day, calendar: Asia/Seul}", []string{"23: unknown time zone \"Asia/Seul\": `calendar` takes a name of the IANA database, like `Asia/Seoul` or `UTC`"}},
	{"{unit: day, calendar: asia/ho chi minh}", []string{"23: unknown time zone \"asia/ho chi minh\": did you mean `Asia/Ho_Chi_Minh`?"}},
	{"{unit: day, calendar: utc}", []string{"23: unknown time zone \"utc\": did you mean `UTC`?"}},
	{"{unit: day, calendar: Local}", []string{"23: unknown time zone \"Local\""}},
	{"{unit: day, calendar: \"\"}", []string{"23: unknown time zone \"\""}},
	{"{unit: day, calendar: ../../etc/localtime}", []string{"23: unknown time zone"}},
	{"{unit: day, calendar: 9}", []string{"23: unknown time zone \"9\""}},
	{"{unit: hour, calendar: UTC}", []string{"24: `calendar` needs a `unit` of a day or longer, not `hour`"}},
	{"{unit: week, week_start: sunday}", []string{"26: `week_start` without `calendar`: write the time zone of the weeks too, such as `calendar: UTC`"}},
	{"{unit: month, week_start: sunday, calendar: UTC}", []string{"27: `week_start` is for `unit: week`, not `month`"}},
	{"{unit: week, week_start: sun, calendar: UTC}", []string{"26: unknown `week_start` \"sun\""}},
	{"{unit: week, calendar: UTC, week_start: sunday, algorithm: token_bucket}", []string{"24: `calendar` cannot be used with `token_bucket`: it is for `fixed_window`", "41: `week_start` cannot be used with `token_bucket`: it is for `fixed_window`"}},
	{"{unit: day, calendar: UTC, align: first_hit}", []string{"35: `calendar` and `align: first_hit`"}},
	{"{unit: day, calendar: UTC, algorithm: sliding_log}", []string{"23: `calendar` cannot be used with `sliding_log`: it is for `fixed_window`"}},
	{"{unit: day, precision: 3}", []string{"24: `precision` cannot be used with `fixed_window`, the default algorithm: it is for `sliding_window`"}},
	{"{unit: day, precision: 61, algorithm: sliding_window}", []string{"24: `precision` must be a whole number from 1 to 60, not the number 61"}},
	{"{unit: day, precision: 0, algorithm: sliding_window}", []string{"24: `precision` must be a whole number from 1 to 60, not the number 0"}},
	{"{unit: second, precision: 7, algorithm: sliding_window}", []string{"27: `precision`: a window of 1s cannot be cut into 7 equal parts"}},
	{"{unit: day, requests_per_unit: 65537, algorithm: sliding_log}", []string{"32: `requests_per_unit`: a sliding_log keeps every hit, 65536 at most"}},
	{"{unit: day, nodelay: 5}", []string{"22: `nodelay` cannot be used with `fixed_window`, the default algorithm: it is for `leaky_bucket`"}},
	{"{unit: day, nodelay: some, algorithm: leaky_bucket}", []string{"22: `nodelay` must be a whole number from 0 to 4294967294, or `all`, not the text \"some\""}},
	{"{unit: day, nodelay: -1, algorithm: leaky_bucket}", []string{"22: `nodelay` must be a whole number from 0 to"}},
	{"{unit: day, count_denied: true, algorithm: token_bucket}", []string{"27: `count_denied` cannot be used with `token_bucket`: it is for `fixed_window` or `sliding_log`"}},
	{"{unit: day, count_denied: maybe}", []string{"27: `count_denied` must be true or false, not the text \"maybe\""}},
	{"{unit: day, lease: 1}", []string{"20: `lease` must be true or false, not the number 1"}},
	{"{unlimited: true, lease: true, burst: 3, requests_per_unit: 7}", []string{"26: `unlimited: true` and `lease` cannot be combined: nothing is counted, so leave it out", "39: `unlimited: true` and `burst` cannot be combined: nothing"}},
	{"{unit: day, shadow: true, soft: true}", []string{"33: `shadow` and `soft` cannot be combined: a limit has one of `shadow`, `enforce_percent` and `soft`; leave out the others"}},
	{"{unit: day, enforce_percent: 5, soft: false, shadow: true}", []string{"54: `enforce_percent` and `shadow` cannot be combined: a limit has one of"}},
	{"{unit: day, penalty: 10}", []string{"22: `penalty` must be a duration from 1s to 720h in whole seconds, such as 10m or 24h, not \"10\""}},
	{"{unit: day, penalty: 721h}", []string{"22: `penalty` must be a duration from 1s to 720h"}},
	{"{unit: day, penalty: 1500ms}", []string{"22: `penalty` must be a duration from 1s to 720h"}},
	{"{unit: day, penalty: 48h, lease: true}", []string{"34: `lease` and `penalty` cannot be combined: a penalty starts with a denial"}},
	{"{unit: day, soft: true, penalty: 48h}", []string{"19: `soft` and `penalty` cannot be combined: a soft limit denies nothing"}},
	{"{unlimited: true, penalty: 48h}", []string{"28: `unlimited: true` and `penalty` cannot be combined: nothing is counted"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 1m, penalty: 1h}", []string{"62: `penalty` cannot be used with `concurrency`"}},
	{"{unit: day, shadow: 1}", []string{"21: `shadow` must be true or false, not the number 1"}},
	{"{unit: day, enforce_percent: 0}", []string{"30: `enforce_percent` must be a whole number from 1 to 100, not the number 0"}},
	{"{unit: day, warn_at: 0.8}", []string{"22: `warn_at` must be a whole number from 1 to 100, not the number 0.8"}},
	{"{unit: day, shadow: true, replaces: [{name: x}]}", []string{"37: `replaces` and `shadow` cannot be combined: customers for whom this limit is not enforced would have no limit; leave out one of them"}},
	{"{unit: day, replaces: [{name: x}], enforce_percent: 5}", []string{"23: `replaces` and `enforce_percent` cannot be combined: customers"}},
	{"{unlimited: true, warn_at: 5}", []string{"28: `unlimited: true` and `warn_at` cannot be combined: nothing is counted"}},
	{"{algorithm: concurrency}", []string{"1: `algorithm: concurrency` without `max_in_flight`: write `max_in_flight` (how many places) and `ttl`"}},
	{"{algorithm: concurrency, max_in_flight: 3}", []string{"1: `algorithm: concurrency` without `ttl`: write"}},
	{"{algorithm: concurrency, max_in_flight: 0, ttl: 1m}", []string{"41: `max_in_flight` must be a whole number from 1 to 65536, not the number 0"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 60}", []string{"49: `ttl` must be a duration from 1ms to 24h, such as 30s or 5m, not \"60\""}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 1500ms}", []string{"49: `ttl` must be whole seconds here, such as 30s or 5m, not 1.5s"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 0s}", []string{"49: `ttl` must be a duration from"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: -1m}", []string{"49: `ttl` must be a duration from"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 25h}", []string{"49: `ttl` must be a duration from"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 99999999999999h}", []string{"49: `ttl` must be a duration from"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 1m, unit: day, requests_per_unit: 4}",
		[]string{"59: `unit` cannot be used with `concurrency`: it has `max_in_flight` and `ttl`", "83: `requests_per_unit` cannot be used with `concurrency`"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 1m, burst: 3, count_denied: false}",
		[]string{"60: `burst` cannot be used with `concurrency`", "77: `count_denied` cannot be used with `concurrency`"}},
	{"{algorithm: concurrency, max_in_flight: 3, ttl: 1m, lease: true}", []string{"60: `lease` cannot be used with `concurrency`: a place is for one request, so it cannot be taken in advance"}},
	{"{max_in_flight: 3, ttl: 1m}", []string{"17: `max_in_flight` without `algorithm: concurrency`: write it too"}},
	{"{ttl: 1m}", []string{"7: `ttl` without `algorithm: concurrency`: write it too"}},
	{"{unit: day, max_in_flight: 3}", []string{"28: `max_in_flight` cannot be used with `fixed_window`, the default algorithm: it is for `concurrency`"}},
	{"{algorithm: concurency, max_in_flight: 3, ttl: 1m}", []string{"13: unknown `algorithm` \"concurency\": did you mean `concurrency`?"}},
	{"{unit: day, burst: 1, precision: 2}", []string{"20: `burst` cannot be used with", "34: `precision` cannot be used with"}},
}

func TestBadLimits(t *testing.T) {
	for _, c := range badLimits {
		t.Run(c.limit, func(t *testing.T) {
			for _, in := range []struct{ name, before, after string }{
				{"rate_limit", "    rate_limit: ", ""},
				{"rate_limits", "    rate_limits: [", "]"},
			} {
				limit := c.limit
				if in.name == "rate_limits" {
					if strings.Contains(limit, "unlimited") {
						continue // another error
					}
					limit = strings.TrimSuffix(limit, "}") + ", name: n}"
				}
				files := filesOf("domain: a\ndescriptors:\n  - key: k\n" + in.before + limit + in.after + "\n")
				_, errs := Compile(files, CompileOptions{})
				checkPositions(t, files, errs)
				if len(errs) != len(c.wants) {
					t.Fatalf("%d errors, want %d: %v", len(errs), len(c.wants), errs)
				}
				for i, want := range c.wants {
					var col int
					column, msg, _ := strings.Cut(want, ": ")
					if _, err := fmt.Sscan(column, &col); err != nil {
						t.Fatal(err)
					}
					want := fmt.Sprintf("a.yaml:4:%d: %s", len(in.before)+col, msg)
					if !strings.HasPrefix(errs[i].Error(), want) {
						t.Errorf("in %s:\ngot  %v\nwant %s", in.name, errs[i], want)
					}
				}
			}
		})
	}
}

func TestBadExtensions(t *testing.T) {
	limit := ", rate_limit: {unit: day}"
	for _, c := range []struct {
		name string
		text string
		want []string
	}{
		{"rate_limit and rate_limits", "- {key: k, rate_limits: [{name: a, unit: day}], rate_limit: {unit: day}}",
			[]string{"2:61: `rate_limit` and `rate_limits`: put all limits into `rate_limits`"}},
		{"no list", "- {key: k, rate_limits: {unit: day}}", []string{"2:25: `rate_limits` must be a list, not a map"}},
		{"empty list", "- {key: k, rate_limits: []}", []string{"2:25: `rate_limits` is empty"}},
		{"no map in the list", "- {key: k, rate_limits: [day]}", []string{"2:26: an entry of `rate_limits` must be a map of keys"}},
		{"no name", "- {key: k, rate_limits: [{unit: day}]}", []string{"2:26: a limit of `rate_limits` without a `name`"}},
		{"no unit", "- {key: k, rate_limits: [{name: a}]}", []string{"2:26: an entry of `rate_limits` without a `unit`: write `unit` (`millisecond`, `second`, `minute`, `hour`, `day`, `week`, `month` or `year`) and `requests_per_unit`"}},
		{"a name twice", "- {key: k, rate_limits: [{name: a, unit: day}, {name: a, unit: hour}]}", []string{"2:55: the name \"a\" twice in `rate_limits`"}},
		{"unlimited among limits", "- {key: k, rate_limits: [{name: a, unlimited: true}]}", []string{"2:47: `unlimited: true` among limits: write `rate_limit: {unlimited: true}` instead of `rate_limits`"}},
		{"one counter", "- {key: k, rate_limits: [{name: a, unit: hour}, {name: b, unit: minute, unit_multiplier: 60}]}",
			[]string{"2:49: the limits \"a\" and \"b\" have the same algorithm and window, so they would be one counter"}},
		{"one counter, whatever the burst", "- {key: k, rate_limits: [{name: a, unit: hour, requests_per_unit: 1, algorithm: token_bucket}, {name: b, unit: hour, requests_per_unit: 2, algorithm: token_bucket, burst: 9}]}",
			[]string{"2:96: the limits \"a\" and \"b\" have the same algorithm and window"}},
		{"replaces a sibling", "- {key: k, rate_limits: [{name: a, unit: hour, replaces: [{name: b}]}, {name: b, unit: day}]}", []string{"2:66: the rate limit \"b\" replaces itself"}},
		{"too many", "- {key: k, rate_limits: [" + strings.Repeat("{}, ", 17) + "]}", []string{"2:25: `rate_limits` has 17 limits: 16 are the most"}},

		{"value and value_regex", "- {key: k, value: v, value_regex: r" + limit + "}",
			[]string{"2:35: a descriptor has one of `value`, `values`, `value_regex` and `value_cidr`"}},
		{"all four", "- {key: k, value_cidr: \"::/0\", values: [a], value: v, value_regex: r}", []string{"2:40: a descriptor has one of"}},
		{"values as text", "- {key: k, values: a}", []string{"2:20: `values` must be a list, not the text \"a\": write `[one, other]`"}},
		{"no values", "- {key: k, values: []}", []string{"2:20: `values` is empty"}},
		{"bad values", "- {key: k, values: [a, 1.5, \"\", b*, a, [], b]}", []string{
			"2:24: `values` must be text, not the number 1.5", "2:29: an empty text in `values`", "2:33: `values` are exact, so a * in them is not a wildcard: write \"b*\" as a `value`",
			"2:37: \"a\" twice in `values`", "2:40: `values` must be text, not a list"}},
		{"one value in two lists", "- {key: k, values: [a, b]}\n- {key: k, value: b}\n- {key: j, values: [b]}\n- {key: k, values: [c, b]}",
			[]string{"5:3: duplicate descriptor: key \"k\" and \"b\" among its `values` is already defined on line 2: remove the value from one of the lists"}},
		{"bad expressions", "- {key: k, value_regex: \"(a\"}\n- {key: k, value_regex: \"\"}\n- {key: k, value_regex: 1.5}", []string{
			"2:25: `value_regex`: missing closing ) in \"(a\"", "3:25: `value_regex`: the expression is empty", "4:25: `value_regex` must be text, not the number 1.5"}},
		{"an expression twice", "- {key: k, value_regex: a+}\n- {key: k, value: a+}\n- {key: k, value_regex: a+}", []string{
			"4:3: duplicate descriptor: key \"k\" and `value_regex` \"a+\" is already defined on line 2"}},
		{"bad networks", "- {key: k, value_cidr: 10.0.0.1}\n- {key: k, value_cidr: 10.0.0.1/8}\n- {key: k, value_cidr: ten}", []string{
			"2:24: `value_cidr`: \"10.0.0.1\" is an address: write 10.0.0.1/32", "3:24: `value_cidr`: \"10.0.0.1/8\" has bits beyond its first 8: write 10.0.0.0/8", "4:24: `value_cidr`: \"ten\" is no network"}},
		{"a network twice", "- {key: k, value_cidr: 2001:db8::/32}\n- {key: k, value_cidr: 2001:DB8:0::/32}", []string{
			"3:3: duplicate descriptor: key \"k\" and `value_cidr` \"2001:db8::/32\" is already defined on line 2"}},
		{"a star in a key beside other than a value", "- {key: 'k*', value_regex: a}\n- {key: 'k*', values: [a]}\n- {key: 'k*', value: 'a*', share_threshold: true}\n- {key: 'k*_a*'}", []string{
			"2:28: a `key` with a * in it is matched together with its `value`", "3:23: a `key` with a * in it", "5:3: duplicate descriptor: key and value \"k*_a*\" is already defined on line 4"}},
		{"usage without a counter of one caller", "- {key: k, value: 'v*', share_threshold: true, usage: true, rate_limit: {unit: day}}\n- {key: l, value: 'v*', share_threshold: true, descriptors: [{key: m, usage: true, rate_limit: {unit: day}}]}\n- {key: n, usage: true, rate_limit: {unlimited: true}}", []string{
			"2:55: `usage` and `share_threshold`", "3:62: `usage` and `share_threshold`", "4:19: `usage` and `unlimited: true`"}},
		{"share_threshold of an exact value", "- {key: k, value: v, share_threshold: true}\n- {key: k, share_threshold: true}", []string{
			"2:39: `share_threshold` needs a `value` or a `key` with a * in it, `values`, `value_regex` or `value_cidr`", "3:29: `share_threshold` needs"}},

		{"unknown on_error", "- {key: k, on_error: fail" + limit + "}", []string{"2:22: unknown `on_error` \"fail\": write `error`, `allow`, `deny` or `local`"}},
		{"on_error of nothing", "- {key: k, on_error: deny}\n- {key: j, on_error: deny, rate_limit: {unlimited: true}}", []string{
			"2:22: `on_error` belongs to a `rate_limit`, and this descriptor has none", "3:22: `on_error` and `unlimited: true` cannot be combined: nothing is counted"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkMistakes(t, c.text, c.want)
		})
	}
}

// These values look the same but differ.
func TestNotTwice(t *testing.T) {
	for _, text := range []string{
		"- {key: k, value: a}\n- {key: k, values: [a, b]}\n- {key: k, value_regex: a}\n- {key: j, values: [a]}\n",
		"- {key: k, value: a*}\n- {key: k, value_regex: a*}\n",
		"- {key: k, value: 10.0.0.0/8}\n- {key: k, value_cidr: 10.0.0.0/8}\n- {key: k, value_cidr: 10.0.0.0/9}\n",
		"- {key: k, value: \"\", value_regex: a}\n- {key: k, value: null, values: [a]}\n- {key: k}\n",
	} {
		for _, merge := range []bool{false, true} {
			files := filesOf("domain: a\ndescriptors:\n" + text)
			if merge {
				all := strings.SplitAfterN(text, "\n", 2)
				files = filesOf("domain: a\ndescriptors:\n"+all[0], "domain: a\ndescriptors:\n"+all[1])
			}
			if _, errs := Compile(files, CompileOptions{Merge: merge}); len(errs) > 0 {
				t.Errorf("merged %v: %q: %v", merge, text, errs)
			}
		}
	}
}

func TestDomainSettings(t *testing.T) {
	for _, c := range []struct {
		name  string
		texts []string // files of one domain
		want  string   // the domain's settings, or the errors
	}{
		{"absent", []string{""}, "admission 0, on_error 0, headers unset"},
		{"null", []string{"admission:\non_error:\nheaders:\n"}, "admission 0, on_error 0, headers unset"},
		{"given", []string{"admission: independent\non_error: deny\nheaders: [x-ratelimit, ietf]\n"}, "admission 1, on_error 3, headers 6"},
		{"no headers", []string{"headers: []\n"}, "admission 0, on_error 0, headers 0"},
		{"all headers", []string{"headers: [retry-after, ietf, x-ratelimit, ratelimit]\n"}, "admission 0, on_error 0, headers 15"},
		{"bad", []string{"admission: all\non_error: [x]\nheaders: [ietf, IETF, retry_after, ietf]\n"},
			"a.yaml:2:12: unknown `admission` \"all\": write `independent` or `all_or_nothing`; a.yaml:3:11: `on_error` must be text, not a list; " +
				"a.yaml:4:17: unknown `headers` \"IETF\": did you mean `ietf`?; a.yaml:4:23: unknown `headers` \"retry_after\": did you mean `retry-after`?; a.yaml:4:36: \"ietf\" twice in `headers`"},
		{"headers as text", []string{"headers: ietf\n"}, "a.yaml:2:10: `headers` must be a list, not the text \"ietf\": write some of `ratelimit`, `x-ratelimit`, `ietf` and `retry-after` in brackets, headers as `{name: NAME, value: VALUE}`, or `[]` for none"},
		{"merged", []string{"on_error: deny\n", "admission: all_or_nothing\n", "headers: []\nadmission: all_or_nothing\n"}, "admission 2, on_error 3, headers 0"},
		{"merged and at odds", []string{"admission: independent\nheaders: []\n", "on_error: deny\n", "admission: all_or_nothing\non_error: allow\nheaders: [ietf]\n"},
			"c.yaml:1:9: domain \"d\" has another `admission` at a.yaml:1: say it in one of them; c.yaml:1:9: domain \"d\" has another `on_error` at b.yaml:1: say it in one of them; " +
				"c.yaml:1:9: domain \"d\" has another `headers` at a.yaml:1: say it in one of them"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var texts []string
			for _, text := range c.texts {
				texts = append(texts, "domain: d\n"+text)
			}
			files := filesOf(texts...)
			tree, errs := Compile(files, CompileOptions{Merge: true})
			checkPositions(t, files, errs)
			got := ""
			for i, e := range errs {
				if i > 0 {
					got += "; "
				}
				got += e.Error()
			}
			if got == "" {
				d := tree.Domain("d")
				headers := "unset"
				if d.Headers != nil {
					headers = fmt.Sprint(d.Headers.Families)
				}
				got = fmt.Sprintf("admission %d, on_error %d, headers %s", d.Admission, d.OnError, headers)
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// BenchmarkCompilePatterns measures the loading of a long list of values, of many networks and of many wildcards. They
// should load as fast as other rules.
func BenchmarkCompilePatterns(b *testing.B) {
	var values, networks, wildcards strings.Builder
	values.WriteString("domain: a\ndescriptors:\n  - key: k\n    rate_limit: {unit: day}\n    values:\n")
	networks.WriteString("domain: a\ndescriptors:\n")
	wildcards.WriteString("domain: a\ndescriptors:\n")
	for i := range 100_000 {
		fmt.Fprintf(&values, "      - value-%06d\n", i)
		fmt.Fprintf(&networks, "  - {key: k, value_cidr: 10.%d.%d.%d/32, rate_limit: {unit: day}}\n", i>>16, i>>8&255, i&255)
		fmt.Fprintf(&wildcards, "  - {key: k, value: \"value-%06d-*\", rate_limit: {unit: day}}\n", i)
	}
	for name, text := range map[string]string{"100k_values": values.String(), "100k_networks": networks.String(), "100k_wildcards": wildcards.String()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			files := filesOf(text)
			for b.Loop() {
				if _, errs := Compile(files, CompileOptions{}); len(errs) > 0 {
					b.Fatal(errs[0])
				}
			}
		})
	}
}

func TestNetworkOfAllAddresses(t *testing.T) {
	tree, errs := Compile(filesOf("domain: a\ndescriptors:\n  - key: k\n    value_cidr: ::/0\n    rate_limit: {unit: day}\n"), CompileOptions{})
	if len(errs) > 0 || tree.Domain("a").Match([]descriptor.Entry{{Key: "k", Value: "::1"}}) == nil {
		t.Error(errs)
	}
}
