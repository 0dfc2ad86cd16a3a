package conform

import (
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

// Windows that start together get separate counters. At the epoch, those of all units start together; at the time of
// the recordings, none do.
func TestRequestsApart(t *testing.T) {
	setups, err := Setups()
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[time.Time]int{time.Unix(0, 0): 73, time.Date(2027, 3, 13, 1, 36, 0, 0, time.UTC): 0, time.Date(2027, 3, 11, 12, 42, 0, 0, time.UTC): 14} {
		changed := 0
		for _, s := range setups {
			for i := range s.Cases {
				c := &s.Cases[i]
				if c.Level != Recorded {
					continue
				}
				units, moved := map[string]string{}, map[string]bool{}
				requests, err := c.requests(at)
				if err != nil {
					t.Fatal(err)
				}
				for n, r := range requests {
					var answer ratelimitv3.RateLimitResponse
					if c.Steps[n].Error != "" || protojson.Unmarshal(c.Steps[n].Response, &answer) != nil {
						continue
					}
					for j, status := range answer.GetStatuses() {
						if status.GetCurrentLimit() == nil {
							continue
						}
						key, unit := sharedKey(r.GetDescriptors()[j], status.GetCurrentLimit().GetUnit(), at), status.GetCurrentLimit().GetUnit().String()
						if units[key] != "" && units[key] != unit {
							t.Errorf("%s: %s is counted for a %s and a %s", c.Name, key, units[key], unit)
						}
						units[key] = unit
						if last := r.Descriptors[j].Entries; len(last) > 0 && last[len(last)-1].Key == "unit" {
							moved[key] = true
						}
					}
				}
				changed += len(moved)
			}
		}
		if changed != want {
			t.Errorf("%s: %d counters were moved, want %d", at, changed, want)
		}
	}
}

// Every case of the suite has a separate domain, which a run replaces everywhere, and a sentence if it is written by
// hand.
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
