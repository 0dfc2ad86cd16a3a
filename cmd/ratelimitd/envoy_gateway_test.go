package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	rulesv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/config/xds"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// These are the shapes of Envoy Gateway's rules: a domain for a listener or for a shared policy, a descriptor for a
// route, and below it one nested descriptor for each condition on the request.

const (
	web, admin     = "shop/edge/web", "shop/edge/admin" // listeners
	cart, search   = "httproute/shop/cart/rule/0", "httproute/shop/search/rule/0"
	policy, second = "shop/limits", "shop/more-limits" // shared policies
)

type level = *rulesv3.RateLimitDescriptor

// at returns a level without a limit.
func at(key, value string, below ...level) level {
	return &rulesv3.RateLimitDescriptor{Key: key, Value: value, Descriptors: below}
}

// same returns a level whose value equals its key, as in routes and in rules with matches.
func same(key string, below ...level) level { return at(key, key, below...) }

// limitAt returns a level with a limit.
func limitAt(key, value string, n uint32, unit rulesv3.RateLimitUnit) level {
	return &rulesv3.RateLimitDescriptor{Key: key, Value: value, RateLimit: &rulesv3.RateLimitPolicy{RequestsPerUnit: n, Unit: unit}}
}

func limited(key string, n uint32) level { return limitAt(key, key, n, rulesv3.RateLimitUnit_HOUR) }

// shadow sets shadow mode on a level and on all levels below it, as Envoy Gateway does.
func shadow(l level) level {
	l.ShadowMode = true
	for _, below := range l.GetDescriptors() {
		shadow(below)
	}
	return l
}

func listener(domain string, routes ...level) types.Resource {
	return &rulesv3.RateLimitConfig{Name: domain, Domain: domain, Descriptors: routes}
}

// wanted is a request and the number of such requests that pass. An entry is written key=value; a key without = is its
// own value.
type wanted struct {
	domain  string
	entries []string
	passes  int // the next one is rejected; -1: no rule matches; -2: a rule matches and never rejects
}

func requestOf(domain string, passes int, entries ...string) wanted {
	return wanted{domain, entries, passes}
}

func TestShapesOfEnvoyGateway(t *testing.T) {
	const hour, month, year, week = rulesv3.RateLimitUnit_HOUR, rulesv3.RateLimitUnit(5), rulesv3.RateLimitUnit(6), rulesv3.RateLimitUnit(7)
	rule := func(policy string, n int) string { return fmt.Sprintf("%s/rule/%d", policy, n) }
	three := func(last ...level) level {
		return same(cart, same("rule-0-match-0", same("rule-0-match-1", same("rule-0-match-2", last...))))
	}
	var many []level // the most rules that one policy may have
	for n := range 256 {
		many = append(many, limited(fmt.Sprintf("rule-%d-match-0", n), uint32(n%7))) //nolint:gosec // below 7
	}
	all := []struct {
		name  string
		rules []types.Resource
		ask   []wanted
	}{
		{"a header's value", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 3)))}, []wanted{
			requestOf(web, 3, cart, "rule-0-match-0"), requestOf(web, -1, cart), requestOf(web, -1, search, "rule-0-match-0"), requestOf(admin, -1, cart, "rule-0-match-0")}},
		{"every value of a header", []types.Resource{listener(web, same(cart, limitAt("rule-0-match-0", "", 2, hour)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0=ada"), requestOf(web, 2, cart, "rule-0-match-0=bob")}},
		{"every address of a network", []types.Resource{listener(web, same(cart, at("masked_remote_address", "10.20.0.0/16", limitAt("remote_address", "", 2, hour))))}, []wanted{
			requestOf(web, 2, cart, "masked_remote_address=10.20.0.0/16", "remote_address=10.20.0.1"), requestOf(web, 2, cart, "masked_remote_address=10.20.0.0/16", "remote_address=10.20.0.2"),
			requestOf(web, -1, cart, "masked_remote_address=10.30.0.0/16", "remote_address=10.30.0.1")}},
		{"nothing to match", []types.Resource{listener(web, same(cart, limited("rule-0-match--1", 4)))}, []wanted{requestOf(web, 4, cart, "rule-0-match--1")}},
		{"shadow mode", []types.Resource{listener(web, same(cart, shadow(same("rule-0-match-0", same("rule-0-match-1", limitAt("masked_remote_address", "0.0.0.0/0", 1, hour))))))}, []wanted{
			requestOf(web, -2, cart, "rule-0-match-0", "rule-0-match-1", "masked_remote_address=0.0.0.0/0")}},
		{"a shared policy", []types.Resource{listener(policy, same(rule(policy, 0), limitAt("rule-0-match-0", "", 2, hour)))}, []wanted{
			requestOf(policy, 2, rule(policy, 0), "rule-0-match-0=ada"), requestOf(policy, 2, rule(policy, 0), "rule-0-match-0=bob")}},
		{"two shared policies and a listener", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 3))), listener(policy, same(rule(policy, 0), limited("rule-0-match-0", 1))), listener(second, same(rule(second, 0), limited("rule-0-match-0", 2)))}, []wanted{
			requestOf(web, 3, cart, "rule-0-match-0"), requestOf(policy, 1, rule(policy, 0), "rule-0-match-0"), requestOf(second, 2, rule(second, 0), "rule-0-match-0")}},
		{"headers and a network", []types.Resource{listener(web, three(limitAt("masked_remote_address", "0.0.0.0/0", 3, hour)))}, []wanted{
			requestOf(web, 3, cart, "rule-0-match-0", "rule-0-match-1", "rule-0-match-2", "masked_remote_address=0.0.0.0/0"), requestOf(web, -1, cart, "rule-0-match-0", "rule-0-match-1", "masked_remote_address=0.0.0.0/0")}},
		{"a network", []types.Resource{listener(web, same(cart, limitAt("masked_remote_address", "10.20.0.0/16", 3, hour)))}, []wanted{
			requestOf(web, 3, cart, "masked_remote_address=10.20.0.0/16"), requestOf(web, -1, cart, "masked_remote_address=10.21.0.0/16")}},
		{"methods", []types.Resource{listener(web, same(cart, limited("rule-0-method", 2), limited("rule-1-method", 5)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-method"), requestOf(web, 5, cart, "rule-1-method")}},
		{"months and years", []types.Resource{listener(web, same(cart, limitAt("rule-0-match-0", "rule-0-match-0", 3, month)), same(search, limitAt("rule-0-match-0", "rule-0-match-0", 1, year)))}, []wanted{
			requestOf(web, 3, cart, "rule-0-match-0"), requestOf(web, 1, search, "rule-0-match-0")}},
		{"weeks", []types.Resource{listener(web, same(cart, limitAt("rule-0-match-0", "rule-0-match-0", 2, week)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0")}},
		{"no requests", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 0), limited("rule-1-match-0", 3)))}, []wanted{
			requestOf(web, 0, cart, "rule-0-match-0"), requestOf(web, 3, cart, "rule-1-match-0")}},
		{"256 rules", []types.Resource{listener(web, same(cart, many...))}, []wanted{
			requestOf(web, 0, cart, "rule-0-match-0"), requestOf(web, 1, cart, "rule-1-match-0"), requestOf(web, 3, cart, "rule-255-match-0")}},
		{"everything at once", []types.Resource{listener(web, three(same("rule-0-method", same("rule-0-path", limitAt("masked_remote_address", "0.0.0.0/0", 2, hour)))))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0", "rule-0-match-1", "rule-0-match-2", "rule-0-method", "rule-0-path", "masked_remote_address=0.0.0.0/0"), requestOf(web, -1, cart, "rule-0-match-0", "rule-0-match-1", "rule-0-match-2", "rule-0-method")}},
		{"a listener and a policy", []types.Resource{listener(web, same(search, limited("rule-0-match-0", 2))), listener(policy, same(rule(policy, 0), limited("rule-0-match-0", 3)))}, []wanted{
			requestOf(web, 2, search, "rule-0-match-0"), requestOf(policy, 3, rule(policy, 0), "rule-0-match-0")}},
		{"three rules of a shared policy", []types.Resource{listener(policy, same(rule(policy, 0), limitAt("rule-0-match-0", "", 1, hour)), same(rule(policy, 1), limitAt("rule-1-match-0", "", 2, hour)), same(rule(policy, 2), limitAt("rule-2-match-0", "", 3, hour)))}, []wanted{
			requestOf(policy, 1, rule(policy, 0), "rule-0-match-0=ada"), requestOf(policy, 2, rule(policy, 1), "rule-1-match-0=ada"), requestOf(policy, 3, rule(policy, 2), "rule-2-match-0=ada")}},
		{"two listeners with one route", []types.Resource{listener(web, same(cart, limitAt("rule-0-match-0", "", 2, hour))), listener(admin, same(cart, limitAt("rule-0-match-0", "", 2, hour)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0=ada"), requestOf(admin, 2, cart, "rule-0-match-0=ada")}},
		{"two listeners, one shared policy", []types.Resource{listener(policy, same(rule(policy, 0), limitAt("rule-0-match-0", "", 3, hour)))}, []wanted{requestOf(policy, 3, rule(policy, 0), "rule-0-match-0=ada")}},
		{"one listener of its own, one with a shared policy", []types.Resource{listener(web, same(cart, limitAt("rule-0-match-0", "", 2, hour))), listener(second, same(rule(second, 0), limitAt("rule-0-match-0", "", 4, hour)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0=ada"), requestOf(second, 4, rule(second, 0), "rule-0-match-0=ada")}},
		{"one address, two routes", []types.Resource{listener(web, same(cart, limitAt("masked_remote_address", "10.20.0.9/32", 2, hour)), same(search, limitAt("masked_remote_address", "10.20.0.9/32", 6, hour)))}, []wanted{
			requestOf(web, 2, cart, "masked_remote_address=10.20.0.9/32"), requestOf(web, 6, search, "masked_remote_address=10.20.0.9/32")}},
		{"two headers", []types.Resource{listener(web, same(cart, same("rule-0-match-0", limited("rule-0-match-1", 3))))}, []wanted{
			requestOf(web, 3, cart, "rule-0-match-0", "rule-0-match-1"), requestOf(web, -1, cart, "rule-0-match-1")}},
		{"two routes", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 2)), same(search, limited("rule-0-match-0", 4)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0"), requestOf(web, 4, search, "rule-0-match-0")}},
		{"a rule with the largest number", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 2), limited("rule-1-match-0", 1<<32-1)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0"), requestOf(web, -2, cart, "rule-1-match-0")}},
		{"rules of a route, and shared ones", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 2), limited("rule-1-match-0", 3))), listener(policy, same(rule(policy, 0), limited("rule-0-match-0", 4)), same(rule(policy, 2), limited("rule-1-match-0", 5)))}, []wanted{
			requestOf(web, 2, cart, "rule-0-match-0"), requestOf(web, 3, cart, "rule-1-match-0"), requestOf(policy, 4, rule(policy, 0), "rule-0-match-0"), requestOf(policy, 5, rule(policy, 2), "rule-1-match-0"), requestOf(policy, -1, rule(policy, 1), "rule-1-match-0")}},
		{"a rule of a route, and two shared ones", []types.Resource{listener(web, same(cart, limited("rule-0-match-0", 3))), listener(policy, same(rule(policy, 0), limited("rule-0-match-0", 1)), same(rule(policy, 1), limited("rule-1-match-0", 2)))}, []wanted{
			requestOf(web, 3, cart, "rule-0-match-0"), requestOf(policy, 1, rule(policy, 0), "rule-0-match-0"), requestOf(policy, 2, rule(policy, 1), "rule-1-match-0")}},
		{"paths", []types.Resource{listener(web, same(cart, limited("rule-0-path", 2), limited("rule-1-path", 3)))}, []wanted{requestOf(web, 2, cart, "rule-0-path"), requestOf(web, 3, cart, "rule-1-path")}},
		{"query parameters", []types.Resource{listener(web, same(cart, same("rule-0-match-0", limited("rule-0-match-1", 2))))}, []wanted{requestOf(web, 2, cart, "rule-0-match-0", "rule-0-match-1")}},
		{"all addresses but a network", []types.Resource{listener(web, same(cart, limitAt("masked_remote_address", "invert:10.20.0.0/24", 3, hour)))}, []wanted{
			requestOf(web, 3, cart, "masked_remote_address=invert:10.20.0.0/24"), requestOf(web, -1, cart, "masked_remote_address=10.20.0.0/24")}},
		{"one network, exact and by address", []types.Resource{listener(web, same(cart, limitAt("masked_remote_address", "10.20.0.0/16", 4, hour), at("masked_remote_address", "10.20.0.0/16", limitAt("remote_address", "", 1, hour))))}, []wanted{
			requestOf(web, 4, cart, "masked_remote_address=10.20.0.0/16"), requestOf(web, 1, cart, "masked_remote_address=10.20.0.0/16", "remote_address=10.20.0.1")}},
	}

	g := newGateway(t, "envoy-ratelimit")
	client, err := xds.New(xds.Options{Server: g.addr, NodeID: "envoy-ratelimit", RejectedRetry: time.Millisecond, RejectedRetryMax: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	results, ended := make(chan config.Result, len(all)+2), make(chan error, 1)
	go func() { ended <- client.Run(ctx, func(r config.Result) { results <- r }) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	decide := func(t *testing.T, l *limiter.Limiter, w *wanted) limiter.Decision {
		t.Helper()
		var entries []descriptor.Entry
		for _, e := range w.entries {
			key, value, given := strings.Cut(e, "=")
			if !given {
				value = key
			}
			entries = append(entries, descriptor.Entry{Key: key, Value: value})
		}
		var d limiter.Decision
		err := l.Decide(t.Context(), time.Unix(1_800_000_000, 0), &limiter.Request{Domain: w.domain, Descriptors: []limiter.Descriptor{{Entries: entries}}}, &d)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) {
			g.set(fmt.Sprint(i+1), c.rules...)
			var r config.Result
			select {
			case r = <-results:
			case <-time.After(patience):
				t.Fatalf("no rules within %s: %+v", patience, client.Files())
			}
			for _, f := range r.Files {
				if f.State != descriptor.FileLoaded {
					t.Fatalf("%+v", f)
				}
			}
			l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
			l.Swap(r.Tree, limiter.Settings{})
			for _, w := range c.ask {
				for n := range max(w.passes, 1) + 1 {
					d := decide(t, l, &w)
					want := limiter.OK
					if w.passes >= 0 && n >= w.passes {
						want = limiter.OverLimit
					}
					if d.Code != want || d.Statuses[0].Limited != (w.passes != -1) {
						t.Errorf("request %d of %s %v: %v, limited %t; want %d of them to pass", n+1, w.domain, w.entries, d.Code, d.Statuses[0].Limited, w.passes)
					}
				}
			}
		})
	}

	// The bad resource is rejected, and the rules of the other listener take effect.
	g.set("bad", listener(web, same(cart, at("", "x"))), listener(admin, same(cart, limited("rule-0-match-0", 1))))
	r := <-results
	if len(r.Files) != 2 || r.Files[0].State != descriptor.FileLoaded || r.Files[1].State != descriptor.FileStale {
		t.Errorf("with a bad listener: %+v", r.Files)
	}
}
