package conform

import (
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

func TestCollide(t *testing.T) {
	const minute, hour, day, week = ratelimitv3.RateLimitResponse_RateLimit_MINUTE, ratelimitv3.RateLimitResponse_RateLimit_HOUR, ratelimitv3.RateLimitResponse_RateLimit_DAY, ratelimitv3.RateLimitResponse_RateLimit_WEEK
	for _, c := range []struct {
		at    string
		units []ratelimitv3.RateLimitResponse_RateLimit_Unit
		want  bool
	}{
		{"2027-03-09T12:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{minute, hour, day, week}, false},
		{"2027-03-09T00:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{hour, day}, true},
		{"2027-03-09T00:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{minute, day, week}, false},
		{"2027-03-09T12:00:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{minute, hour}, true},
		{"2027-03-11T12:42:17Z", []ratelimitv3.RateLimitResponse_RateLimit_Unit{hour, day, week}, true},
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		units := make(map[ratelimitv3.RateLimitResponse_RateLimit_Unit]bool)
		for _, unit := range c.units {
			units[unit] = true
		}
		if got := collide(units, at); got != c.want {
			t.Errorf("%s, %v: %t", c.at, c.units, got)
		}
	}
}

// The suite is what it says: every case has a domain of its own, which a run replaces everywhere, and a sentence if it is written by hand.
func TestSetups(t *testing.T) {
	setups, err := Setups()
	if err != nil {
		t.Fatal(err)
	}
	steps, domains := 0, map[string]bool{}
	for _, s := range setups {
		for i := range s.Cases {
			c := &s.Cases[i]
			if domains[c.domain()] || c.domain() == "" {
				t.Errorf("%s: the domain %q is not its own", c.Name, c.domain())
			}
			domains[c.domain()] = true
			if (c.Why == "") != (c.Level == Recorded) {
				t.Errorf("%s: %q", c.Name, c.Why)
			}
			if fresh := c.fresh("run"); fresh.domain() != c.domain()+"-run" {
				t.Errorf("%s: a fresh domain is %s", c.Name, fresh.domain())
			}
			if c.Level == Recorded {
				steps += len(c.Steps)
			}
		}
	}
	if setups[0].Name != Plain || setups[0].Cases[0].Level != Protocol || steps != 4389 {
		t.Errorf("%s is first, %d recorded steps", setups[0].Name, steps)
	}
}
