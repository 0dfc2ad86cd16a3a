package regions

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Query is the part of one request whose counters another region keeps. That region finds the limits in its own rules,
// so its numbers hold, and a counter that none of its rules names cannot be asked for.
type Query struct {
	Domain      string
	Descriptors [][]descriptor.Entry // as the caller sent them
	Takes       []Take

	Together, PeekWhenKnown bool // as in backend.Request
	Look                    bool // nothing is taken: would the hits pass?
}

// size is how many bytes the texts of a query have.
func (q *Query) size() int {
	n := len(q.Domain)
	for _, entries := range q.Descriptors {
		for i := range entries {
			n += len(entries[i].Key) + len(entries[i].Value)
		}
	}
	return n
}

// Take is one take of a query, as in backend.Take.
type Take struct {
	Descriptor int    // its index in the query
	Limit      string // descriptor.Rule.Tag
	Hits       int64
	Vote       backend.Vote

	CountDenied, Settled, Guards bool
	Commits                      bool // with Settled: as the commit of a reservation that nobody has made
	Shadow                       bool // with Guards: the penalty is not enforced

	// Ends is the end of the window in which hits that are given back were taken, in microseconds since 1970, or 0. After
	// it nothing is given back: it would free hits of the next window.
	Ends int64
}

// Answer is the answer to a query.
type Answer struct {
	Outcomes []backend.Outcome   // of each take; those of takes that the region cannot find have failed
	Limits   []*descriptor.Limit // of each take: the numbers that it was counted under; nil: there are none
	Rejected Rejection           // why some or all of the outcomes have failed
	Home     string              // of a counter, by the rules of the region that has answered, if that is another region
}

// Rejection is why a region does not carry out a take. It is for people.
type Rejection string

// The rejections.
const (
	NotRejected Rejection = ""
	NoRule      Rejection = "no rule"     // no rule, or no limit of the rule, matches there
	Unavailable Rejection = "unavailable" // its store does not answer
	Invalid     Rejection = "invalid"     // the query is too large, or has numbers that no replica sends
)

// State is what a region says about itself with its answers.
type State struct {
	Replica uint64 // a number of the replica that answers
	// stands for its rules, overrides and resets: after a change it is another number; replicas may have different ones
	Sum      uint64
	Rules    uint64 // stands for its rules alone; 0: unknown
	Replicas int    // of other regions, that are connected to the replica that answers
}

// MaxQueries is the most queries of one call.
const MaxQueries = 1000

// MaxTakes is the most takes of one query, and the most descriptors.
const MaxTakes = 1024

// Peers are the other regions.
type Peers interface {
	// Ask sends queries to a region, each at most once. heard is called first, and then answered for each query that has
	// an answer, one at a time. After an error, nothing is known about the others.
	Ask(ctx context.Context, region string, queries []Query, heard func(State), answered func(i int, a *Answer)) error
}

// Resolver finds limits in the rules of this region: package limiter does.
type Resolver interface {
	// Resolve finds one limit of a descriptor. tag is the limit's.
	Resolve(now time.Time, domain string, entries []descriptor.Entry, tag string) (backend.Resolved, bool)

	// Sums returns a number for all that Resolve depends on, and one for the rules alone. Replicas with the same have the
	// same.
	Sums(now time.Time) (all, rules uint64)
}
