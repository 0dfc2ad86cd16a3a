package assigner

import (
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// BucketShares says who holds what of one bucket, for operators.
type BucketShares struct {
	Domain  string
	Entries []descriptor.Entry // of the bucket's id, in the order in which they are matched
	Rule    string             // empty: no rule matches
	Limit   string             // the limits in words; empty: there is none
	Rate    quota.Rate         // of the whole limit

	ProcessRate, ProcessBurst float64 // the part of this process
	Processes                 int     // that share the limit

	Held []HeldShare // by this process' clients: those that hold most first
}

// HeldShare is what one client holds.
type HeldShare struct {
	Client     string // its address
	Since      time.Time
	Demand     float64 // requests per second
	Assignment quota.Assignment
	Expires    time.Time
	Gone       bool // the client has disconnected; its share returns at Expires
}

// Shares returns who holds what in a domain: the buckets with most demand first, at most n of them, and how many there are.
func (a *Assigner) Shares(now time.Time, domain string, n int) (all []BucketShares, total int) {
	return nil, 0
}
