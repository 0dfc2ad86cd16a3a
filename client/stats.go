package client

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/limits"
)

// Stats counts the decisions and messages of a client since New.
type Stats struct {
	Decisions [limits.Sources]uint64 // decisions by source, e.g. Decisions[limits.FailOpen]
	Errors    uint64                 // requests without a decision
	RPCs      uint64                 // messages with requests for decisions that were sent to the service
	Requests  uint64                 // requests in these messages
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

// Stats returns the client's counts so far. Reservations count as decisions.
func (c *Client) Stats() Stats {
	s := Stats{Errors: c.stats.errors.Load(), RPCs: c.stats.rpcs.Load(), Requests: c.stats.requests.Load()}
	for i := range s.Decisions {
		s.Decisions[i] = c.stats.decisions[i].Load()
	}
	return s
}
