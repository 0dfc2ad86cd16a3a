package regions

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// Query is what a replica asks the home of a counter. The home matches the entries with its own rules and overrides, so the limit there
// counts, and a counter that no rule names cannot be asked for.
type Query struct {
	Domain  string
	Entries []descriptor.Entry // as the caller sent them
	Limit   string             // which of the rule's limits: descriptor.Limit.Tag

	// One of these is asked for: permits, a share, or else one take of so many hits. 0 hits look, and a negative number gives back.
	Permits *region.Question
	Share   *region.ShareQuestion
	Hits    int64
}

// Reply is what the home answers. Its field for what was asked is set, or Refused is.
type Reply struct {
	Permits *region.Answer
	Share   *region.ShareAnswer
	Outcome *backend.Outcome

	// Refused is why the home does not answer: no rule of it names the counter, it is not the home, or it cannot count now.
	Refused Refusal
}

// Refusal is why a home does not answer a question. It is for people and metrics.
type Refusal string

// The refusals.
const (
	NotRefused  Refusal = ""
	NoRule      Refusal = "no rule"     // no rule or no limit of the rule matches
	OtherMode   Refusal = "other mode"  // the limit is divided in another way, or not at all
	OtherHome   Refusal = "other home"  // another region is the home of this counter
	NotActing   Refusal = "not acting"  // too few regions confirm the home, or its list of regions is another one
	Unavailable Refusal = "unavailable" // its Redis does not answer
	Invalid     Refusal = "invalid"     // the question has numbers that no account can have
)

// MaxQueries is the most questions of one call of Exchange.
const MaxQueries = 1000

// Peers are the other regions.
type Peers interface {
	// Exchange asks the home about counters. There are as many answers as questions, in the same order. An error means that nothing
	// is known about any of them: they may have been answered.
	Exchange(ctx context.Context, home string, epoch uint64, queries []Query) ([]Reply, error)

	// Consent asks a region whether it consents to the home e.Home.
	Consent(ctx context.Context, region string, e *region.Epoch) (bool, error)
}
