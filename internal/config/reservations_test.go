package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

func TestReservations(t *testing.T) {
	whole := descriptor.Reservations{TTL: time.Minute, MaxTTL: 10 * time.Minute, MaxShare: 1_000_000, MaxOutstanding: 10_000}
	with := func(change func(*descriptor.Reservations)) *descriptor.Reservations {
		r := whole
		change(&r)
		return &r
	}
	for text, want := range map[string]*descriptor.Reservations{
		"true":                                &whole,
		"{}":                                  &whole,
		"false":                               nil,
		"~":                                   nil,
		"{ttl: 5s}":                           with(func(r *descriptor.Reservations) { r.TTL = 5 * time.Second }),
		"{ttl: 1h30m}":                        with(func(r *descriptor.Reservations) { r.TTL, r.MaxTTL = 90*time.Minute, 90*time.Minute }),
		"{max_ttl: 30s}":                      with(func(r *descriptor.Reservations) { r.TTL, r.MaxTTL = 30*time.Second, 30*time.Second }),
		"{max_ttl: 24h, max_share: 0.000001}": with(func(r *descriptor.Reservations) { r.MaxTTL, r.MaxShare = 24*time.Hour, 1 }),
		"{max_outstanding: 1, on_expire: release}": with(func(r *descriptor.Reservations) { r.MaxOutstanding, r.Release = 1, true }),
		"{on_expire: charge, ttl: 1ms}":            with(func(r *descriptor.Reservations) { r.TTL = time.Millisecond }),
	} {
		tree, errs := Compile(filesOf("domain: a\ndescriptors:\n  - key: k\n    reservations: "+text+"\n    rate_limits: [{name: a, unit: day}, {name: b, unit: day, algorithm: sliding_log}]\n"), CompileOptions{})
		if len(errs) > 0 {
			t.Errorf("%s: %v", text, errs)
			continue
		}
		if got := tree.Domain("a").Reservable; got != (want != nil) {
			t.Errorf("%s: the domain holds reservations: %v", text, got)
		}
		for i := range tree.Rules[0].Limits {
			l := &tree.Rules[0].Limits[i]
			if diff := cmp.Diff(want, l.Reservations); diff != "" {
				t.Errorf("%s: (-want +got):\n%s", text, diff)
			}
			if l.Reservable() && l.CountDenied != descriptor.DeniedDrop {
				t.Errorf("%s: reservations that are rejected count", text)
			}
		}
	}
}

func TestCost(t *testing.T) {
	tree, errs := Compile(filesOf("domain: a\ndescriptors:\n  - {key: k, reservations: true, cost: {output: 4, input: 1, cached: 0.1, free: 0, 7: 0.000001}, rate_limit: {unit: day, requests_per_unit: 5}}\n"), CompileOptions{})
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	want := descriptor.Cost{{Name: "7", Millionths: 1}, {Name: "cached", Millionths: 100_000}, {Name: "free"}, {Name: "input", Millionths: 1_000_000}, {Name: "output", Millionths: 4_000_000}}
	if diff := cmp.Diff(want, tree.Rules[0].Cost()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBadReservations(t *testing.T) {
	const limit = ", rate_limit: {unit: day, requests_per_unit: 9}}"
	for _, c := range []struct {
		text string
		want []string
	}{
		{"{key: k, reservations: 1m" + limit, []string{"2:26: `reservations` must be true or false, not the text \"1m\""}},
		{"{key: k, reservations: {ttl: 90}" + limit, []string{"2:32: `ttl` must be a duration from 1ms to 24h, such as 30s or 5m, not \"90\""}},
		{"{key: k, reservations: {ttl: -1s}" + limit, []string{"2:32: `ttl` must be a duration"}},
		{"{key: k, reservations: {ttl: 1.5s}" + limit, []string{"2:32: `ttl` must be a duration"}},
		{"{key: k, reservations: {ttl: 0s}" + limit, []string{"2:32: `ttl` must be a duration"}},
		{"{key: k, reservations: {max_ttl: 25h}" + limit, []string{"2:36: `max_ttl` must be a duration from 1ms to 24h, such as 30s or 5m, not \"25h\""}},
		{"{key: k, reservations: {ttl: 2m, max_ttl: 1m}" + limit, []string{"2:32: `ttl` is 2m0s and `max_ttl` is 1m0s: a `ttl` is at most as long as `max_ttl`"}},
		{"{key: k, reservations: {max_share: 1.1}" + limit, []string{"2:38: `max_share` must be a number above 0 and at most 1"}},
		{"{key: k, reservations: {max_outstanding: 1000001}" + limit, []string{"2:44: `max_outstanding` must be a whole number from 1 to 1000000"}},
		{"{key: k, reservations: {on_expire: relase}" + limit, []string{"2:38: unknown `on_expire` \"relase\": did you mean `release`?"}},
		{"{key: k, reservations: true, rate_limit: {unlimited: true}}", []string{"2:26: `reservations` and `unlimited: true` cannot be combined: nothing is counted"}},
		{"{key: k, reservations: true, rate_limit: {unit: day, requests_per_unit: 9, algorithm: leaky_bucket}}", []string{"2:26: `reservations` and `algorithm: leaky_bucket` cannot be combined: its requests wait"}},
		{"{key: k, reservations: true, rate_limit: {unit: day, penalty: 48h}}", []string{"2:26: `reservations` and `penalty` cannot be combined: a reservation that does not fit is not abuse"}},
		{"{key: k, reservations: true, rate_limit: {unit: day, lease: true}}", []string{"2:26: `reservations` and `lease: true` cannot be combined: all replicas must see"}},
		{"{key: k, reservations: true, rate_limit: {unit: day, count_denied: true}}", []string{"2:26: `reservations` and `count_denied: true` cannot be combined: a denied reservation would"}},
		{"{key: k, reservations: true, descriptors: [{key: reserve_id}, {key: commit_id, value: x}, {key: j}]" + limit, []string{"2:46: the key `reserve_id` below a descriptor with `reservations`", "2:65: the key `commit_id` below"}},
		{"{key: k, cost: {a: 1}" + limit, []string{"2:18: `cost` of \"a\" needs `reservations`"}},
		{"{key: k, reservations: no, cost: {a: 1}" + limit, []string{"2:36: `cost` of \"a\" needs `reservations`"}},
		{"{key: k, reservations: true, cost: {}" + limit, []string{"2:38: `cost` is empty"}},
		{"{key: k, reservations: true, cost: {a: 0, b: 0.0}" + limit, []string{"2:38: all weights of `cost` are 0"}},
		{"{key: k, reservations: true, cost: [a]" + limit, []string{"2:38: `cost` must be a whole number from 1 to 1000000, or a map such as `{model: {large: 10, \"*\": 1}}`, not a list"}},
		{"{key: k, reservations: true, cost: {a: 0.0000001, b: -1, c: 1e3, d: '1', e: 1000000.1, f: 1000000}" + limit, []string{
			"2:42: \"a\" of `cost` must be a number from 0 to 1000000, with at most six decimals, not the number 0.0000001", "2:56: \"b\" of `cost`", "2:63: \"c\" of `cost`", "2:71: \"d\" of `cost`", "2:79: \"e\" of `cost`"}},
		{"{key: k, reservations: true, cost: {a: 1, a: 2}" + limit, []string{"2:45: \"a\" twice in `cost`"}},
		{"{key: k, reservations: true, cost: {'': 1}" + limit, []string{"2:38: \"\" in `cost`: a name has 1 to 64 bytes"}},
		{"{key: k, reservations: true, cost: {" + strings.Repeat("x", 65) + ": 1}" + limit, []string{"2:38: \"xxxx"}},
	} {
		t.Run(c.text, func(t *testing.T) {
			checkMistakes(t, "- "+c.text, c.want)
		})
	}
}
