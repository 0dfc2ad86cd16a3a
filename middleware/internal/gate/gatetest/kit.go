// Package gatetest is the common part of the tests of both middlewares: rules and the deciders that count by them, a
// decider that keeps the requests it is asked, and the checks that must hold over HTTP and over gRPC.
//
// It is only for tests. A Decider may be used by any goroutine.
package gatetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/client"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/config"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
	"github.com/ratelimitd/ratelimitd/ratelimit/rulefiles"
)

// Rules are the rules of the domain api.
const Rules = `
domain: api
descriptors:
  - key: customer
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: address
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 100}
    reservations: {ttl: 1m}
`

// Counting is a decider that counts.
type Counting interface {
	limits.Decider
	limits.Reserver
}

// Each runs a test with each kind of decider that counts by these rules: one of package ratelimit, and one of package
// client, which asks a service.
func Each(t *testing.T, rules string, test func(t *testing.T, d Counting)) {
	directory := servicetest.RulesOf(t, rules)
	t.Run("ratelimit", func(t *testing.T) {
		l, err := ratelimit.Open(context.Background(), ratelimit.Options{Dir: rulefiles.Dir(directory),
			Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		test(t, l)
	})
	t.Run("client", func(t *testing.T) {
		c, err := client.New(service(t, directory), client.Options{Timeout: servicetest.Patience,
			OnFailure: limits.OnFailureError})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		test(t, c)
	})
}

// service starts the service in this process, and returns its address.
func service(t *testing.T, directory string) string {
	t.Helper()
	rules, err := config.NewDirectory(config.Options{Dir: directory, Logger: slog.New(slog.DiscardHandler)}).Load()
	if err != nil {
		t.Fatal(err)
	}
	l := limiter.New(limiter.Options{Store: memory.New(memory.Options{})})
	l.Swap(rules.Tree, limiter.Settings{})
	s, err := server.New(server.Options{Decider: l, Listen: server.Listen{GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	s.SetServing(true)
	servicetest.Serve(t, s.Run)
	return s.GRPCAddr.String()
}

// Left returns ann's remaining tokens.
func Left(t *testing.T, l limits.Decider) uint64 {
	t.Helper()
	r := limits.NewRequest("api", "tokens", "ann")
	r.Amount.Peek = true
	d, err := l.Decide(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d.Statuses[0].Remaining
}

// Decider answers every request in the same way, and keeps the last one.
type Decider struct {
	Answer limits.Decision
	Err    error

	mu   sync.Mutex
	last *limits.Request
}

// Decide implements limits.Decider.
func (d *Decider) Decide(_ context.Context, r *limits.Request) (limits.Decision, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = r
	return d.Answer, d.Err
}

// Entries returns the descriptors of the last request as text and clears them. Without a request they are "none".
func (d *Decider) Entries() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last == nil {
		return "none"
	}
	var all []string
	for _, descriptor := range d.last.Descriptors {
		all = append(all, fmt.Sprint(descriptor.Entries))
	}
	d.last = nil
	return strings.Join(all, " ")
}

// SpoofedAddress checks that a client cannot have more than its limit by writing other addresses into X-Forwarded-For.
// serve returns a function that reports whether a request with this header passes a limit by address.
func SpoofedAddress(t *testing.T, serve func(d limits.Decider,
	trusted []netip.Prefix) (passes func(forwarded string) bool)) {
	for _, trusted := range [][]netip.Prefix{nil, {netip.MustParsePrefix("127.0.0.0/8")}} {
		Each(t, Rules, func(t *testing.T, d Counting) {
			passes := serve(d, trusted)
			passed := 0
			for i := range 10 {
				// The client writes the first address; a trusted proxy appends the second.
				if passes(fmt.Sprintf("203.0.113.%d, 198.51.100.7", i)) {
					passed++
				}
			}
			if passed != 1 {
				t.Errorf("%d requests passed a limit of 1, with %v trusted", passed, trusted)
			}
		})
	}
}

// NoDecision checks requests whose decision fails: they pass and the log has the reason, or with limits.OnFailureDeny
// they fail as unavailable, without the reason. serve makes a request and returns the client's error.
func NoDecision(t *testing.T, unavailable func(error) bool,
	serve func(d limits.Decider, onFailure limits.OnFailure, log *slog.Logger) error) {
	var log bytes.Buffer
	d := &Decider{Err: errors.New("no Redis")}
	if err := serve(d, limits.OnFailureDefault, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "no Redis") {
		t.Errorf("log: %s", log.String())
	}
	if err := serve(d, limits.OnFailureDeny, slog.New(slog.DiscardHandler)); err == nil || !unavailable(err) ||
		strings.Contains(err.Error(), "Redis") {
		t.Errorf("the client's error: %v", err)
	}
}
