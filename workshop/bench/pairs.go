package main

import (
	"bytes"
	"math/rand/v2"
	"time"
)

// pairs sends the calls of a connection in pairs with the same numbers, if the payload has a second message. The second
// call of a pair waits for the answer to the first, so that a commit finds its reservation.
type pairs struct {
	second []byte // the second message of a pair, with its numbers; nil: single calls
	seed   *rand.PCG
	random *rand.Rand // draws the same numbers again from the same seed
	due    []uint64   // the seeds of pairs whose first call was answered
}

// sent is a call in flight.
type sent struct {
	due   time.Time
	seed  uint64
	first bool // whether it is the first call of a pair
}

func (p *pairs) init(of *payload) {
	if of.then == nil {
		return
	}
	p.second = bytes.Clone(of.then.message)
	p.seed = rand.NewPCG(0, 0)
	p.random = rand.New(p.seed)
}

// answered notes that the second call of a pair is due.
func (p *pairs) answered(s sent) {
	if s.first {
		p.due = append(p.due, s.seed)
	}
}

// largest returns the size of the largest message.
func (c *connection) largest() int { return max(len(c.request), len(c.pairs.second)) }

// draw returns the next message, with its numbers.
func (c *connection) draw() ([]byte, sent) {
	p := &c.pairs
	if p.second == nil {
		c.payload.draw(c.request, c.random)
		return c.request, sent{}
	}
	if last := len(p.due) - 1; last >= 0 {
		p.seed.Seed(p.due[last], 0)
		p.due = p.due[:last]
		c.payload.then.draw(p.second, p.random)
		return p.second, sent{}
	}
	s := sent{seed: c.random.Uint64(), first: true}
	p.seed.Seed(s.seed, 0)
	c.payload.draw(c.request, p.random)
	return c.request, s
}
