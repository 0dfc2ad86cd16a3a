// Package envoymodel is a client of the rate limit quota service that treats assignments as Envoy 1.40 does. Tests run
// it in virtual time.
package envoymodel

import (
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/lending/quota"
)

// Client is one client's view of one bucket. The zero value has no assignment and gets no requests.
type Client struct {
	Demand float64 // requests per second
	Open   bool    // requests pass while nothing is assigned

	Held    quota.Assignment
	expires time.Time
	content float64
	carry   float64 // fractions of a request

	Allowed, Denied uint64 // requests since the last report

	Passed  float64 // requests passed with an assignment, in total
	Outside float64 // requests passed without one, in total
	Wanted  float64
}

// Receive replaces the assignment. A token bucket starts full, except after another one: then it keeps the ratio.
func (c *Client) Receive(now time.Time, a quota.Assignment) {
	expired := !c.expires.After(now)
	switch {
	case a.Kind != quota.Tokens:
		c.content = 0
	case expired || c.Held.Kind != quota.Tokens:
		c.content = float64(a.MaxTokens)
	case a != c.Held:
		c.content *= float64(a.MaxTokens) / float64(c.Held.MaxTokens)
	}
	c.Held, c.expires = a, now.Add(a.TTL)
}

// Holds returns the rate and the tokens of the token bucket that the client uses.
func (c *Client) Holds(now time.Time) (rate, tokens float64) {
	if !c.expires.After(now) || c.Held.Kind != quota.Tokens {
		return 0, 0
	}
	return c.Held.Rate(), float64(c.Held.MaxTokens)
}

// Forget drops the assignment.
func (c *Client) Forget() {
	c.Held, c.expires, c.Allowed, c.Denied = quota.Assignment{}, time.Time{}, 0, 0
}

// Step lets time pass, and requests arrive at its end.
func (c *Client) Step(now time.Time, dt time.Duration) {
	c.carry += c.Demand * dt.Seconds()
	arrived := math.Floor(c.carry)
	c.carry -= arrived
	c.Wanted += arrived
	pass := 0.0
	switch assigned := c.expires.After(now); {
	case assigned && c.Held.Kind == quota.Tokens:
		c.content = min(c.content+c.Held.Rate()*dt.Seconds(), float64(c.Held.MaxTokens))
		pass = min(arrived, math.Floor(c.content+1e-9))
		c.content -= pass
		c.Passed += pass
	case assigned && c.Held.Kind == quota.AllowAll:
		pass = arrived
		c.Passed += pass
	case !assigned && c.Open:
		pass = arrived
		c.Outside += pass
	}
	c.Allowed += uint64(pass)
	c.Denied += uint64(arrived - pass)
}

// Report returns the requests since the last call.
func (c *Client) Report() (allowed, denied uint64) {
	allowed, denied = c.Allowed, c.Denied
	c.Allowed, c.Denied = 0, 0
	return allowed, denied
}
