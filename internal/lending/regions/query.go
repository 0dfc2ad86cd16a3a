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
	Descriptors [][]descriptor.Entry // the descriptors of the request, unchanged
	Takes       []Take

	Together, PeekWhenKnown bool // see backend.Request
	Look                    bool // whether the hits would pass; nothing is charged
}

// size returns the total length of the query's texts, in bytes.
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
	Commits                      bool // only with Settled: charge like the commit of an unknown reservation
	Shadow                       bool // only with Guards: the penalty is not enforced

	// Ends is the end of the window in which returned hits were taken, in microseconds since 1970, or 0. Later the hits
	// are not returned: they would free hits of the next window.
	Ends int64
}

// Answer is the answer to a query.
type Answer struct {
	Outcomes []backend.Outcome   // one for each take; failed if the region does not know the limit
	Limits   []*descriptor.Limit // the limit under which each take was counted, if any
	Rejected Rejection           // why some or all of the outcomes have failed
	Home     string              // the counter's home by the rules of the answering region, if that is another region
}

// Rejection is why a region does not carry out a take. Only people read it.
type Rejection string

// The rejections.
const (
	NotRejected Rejection = ""
	NoRule      Rejection = "no rule"     // no rule, or no limit of the rule, matches there
	Unavailable Rejection = "unavailable" // its store does not answer
	Invalid     Rejection = "invalid"     // the query is too large, or has numbers that no replica sends
)

// State describes a region. Every answer carries it.
type State struct {
	Replica uint64 // number of the answering replica
	// Sum stands for the replica's rules, overrides and resets. It differs after each change, and may differ between
	// replicas.
	Sum      uint64
	Rules    uint64 // stands for its rules alone; 0: unknown
	Replicas int    // replicas of other regions that are connected to the answering replica
}

// MaxQueries is the largest number of queries in a call.
const MaxQueries = 1000

// MaxTakes is the largest number of takes, and of descriptors, in a query.
const MaxTakes = 1024

// Peers are the other regions.
type Peers interface {
	// Ask sends queries to a region, each no more than once. It first calls heard, and then answered for each query that
	// has an answer, one at a time. After an error, queries without an answer may or may not have been counted.
	Ask(ctx context.Context, region string, queries []Query, heard func(State), answered func(i int, a *Answer)) error
}

// Resolver finds limits in the rules of this region: package limiter does.
type Resolver interface {
	// Resolve finds one limit of a descriptor. tag is the limit's.
	Resolve(now time.Time, domain string, entries []descriptor.Entry, tag string) (backend.Resolved, bool)

	// Sums returns one number for everything that Resolve depends on, and one for the rules alone. They are equal on all
	// replicas with the same rules.
	Sums(now time.Time) (all, rules uint64)
}
