package assigner

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/quota"
)

// Usage is what a client reports of one bucket.
type Usage struct {
	ID      []descriptor.Entry // the pairs of the bucket's id, sorted by key
	Elapsed time.Duration      // since its report before, as the client measured it
	Allowed uint64
	Denied  uint64
}

// Action is what a client must be told about a bucket.
type Action struct {
	ID         []descriptor.Entry
	Abandon    bool // the client must forget the bucket; else Assignment holds
	Assignment quota.Assignment
}

// Stream is the stream of one client.
type Stream struct{}

// Report takes in what a client reports. The first report of a bucket subscribes to it.
func (s *Stream) Report(now time.Time, domain string, all []Usage) {}

// Next waits until there is something to tell, and appends it to all: at most a thousand actions. Its error is that of ctx.
func (s *Stream) Next(ctx context.Context, all []Action) ([]Action, error) { return all, nil }

// Sent tells that what Next returned before has been written. The time to live of these assignments begins no later than now.
func (s *Stream) Sent(now time.Time) {}

// Close ends the subscriptions of the stream.
func (s *Stream) Close(now time.Time) {}
