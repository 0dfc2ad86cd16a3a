// Package gatetest has what the tests of both middlewares share: rules and a limiter with them, a decider that keeps
// what it is asked, and the checks that must hold over HTTP as over gRPC.
//
// It is for tests alone. A Decider may be used by any goroutine.
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

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/limits"
	"github.com/ratelimitd/ratelimitd/ratelimit"
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

// Open returns a limiter with these rules.
func Open(t *testing.T, rules string) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.Open(ratelimit.Options{Rules: servicetest.RulesOf(t, rules), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// Left returns what is left of the tokens of ann.
func Left(t *testing.T, l *ratelimit.Limiter) uint64 {
	t.Helper()
	r := limits.New("api", "tokens", "ann")
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

// Entries returns the descriptors of the last request as text and forgets it. Without a request they are "none".
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

// SpoofedAddress checks that a client cannot have more than its limit by writing other addresses into X-Forwarded-For. serve
// returns a function that reports whether a request with this header passes a limit by address.
func SpoofedAddress(t *testing.T, serve func(d limits.Decider, trusted []netip.Prefix) (passes func(forwarded string) bool)) {
	for _, trusted := range [][]netip.Prefix{nil, {netip.MustParsePrefix("127.0.0.0/8")}} {
		passes := serve(Open(t, Rules), trusted)
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
	}
}

// NoDecision checks what happens without a decision: requests pass and the log has the reason, or with failClosed they fail
// as unavailable, without the reason. serve makes a request and returns the client's error.
func NoDecision(t *testing.T, unavailable func(error) bool, serve func(d limits.Decider, failClosed bool, log *slog.Logger) error) {
	var log bytes.Buffer
	d := &Decider{Err: errors.New("no Redis")}
	if err := serve(d, false, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "no Redis") {
		t.Errorf("log: %s", log.String())
	}
	if err := serve(d, true, slog.New(slog.DiscardHandler)); err == nil || !unavailable(err) || strings.Contains(err.Error(), "Redis") {
		t.Errorf("the client's error: %v", err)
	}
}
