package client

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/limits"
)

// Stats counts what a client has done since it was made.
type Stats struct {
	Decisions [limits.Sources]uint64 // by source: Decisions[limits.FailOpen]
	Errors    uint64                 // requests without a decision
	RPCs      uint64                 // messages with requests for decisions that were sent to the service
	Requests  uint64                 // requests in them
}

// counts are the counters that Stats reads.
type counts struct {
	decisions              [limits.Sources]atomic.Uint64
	errors, rpcs, requests atomic.Uint64
}

func (c *counts) count(d *limits.Decision, err error) {
	if err != nil {
		c.errors.Add(1)
		return
	}
	c.decisions[d.Source].Add(1)
}

// Stats returns what the client has done so far. Reservations count as decisions.
func (c *Client) Stats() Stats {
	s := Stats{Errors: c.stats.errors.Load(), RPCs: c.stats.rpcs.Load(), Requests: c.stats.requests.Load()}
	for i := range s.Decisions {
		s.Decisions[i] = c.stats.decisions[i].Load()
	}
	return s
}
