package limiter

import (
	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/config/override"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter/events"
	"github.com/ratelimitd/ratelimitd/internal/limiter/hotkeys"
	"github.com/ratelimitd/ratelimitd/internal/limiter/usage"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// Options are the settings of a Limiter.
type Options struct {
	Store backend.Store         // required
	Local backend.Store         // counts for on_error: local; if nil, requests with such descriptors get the error
	Keys  descriptor.KeyBuilder // builds every counter's key

	// reports whether another region counts a limit; nil without regions
	Elsewhere func(key []byte, l *descriptor.Limit) bool

	// maximum number of metric names from requests; names from rules have a separate bound; default 10,000
	MaxSeries int
	Metrics   metric.Registry // if nil, metrics are counted but not registered
	NoDots    bool            // names of Statistics: dots within domains, keys and values become underscores
	NoMetrics bool            // decisions are not counted in metrics; for measuring the cost of metrics

	HotKeys *hotkeys.Tracker // records every use of a counter; nil disables hot keys
	Usage   *usage.Index     // records the counters of rules with usage; nil disables usage
	Events  *events.Sink     // gets events about denials, warnings and penalties; nil disables events
}

// Settings apply to all domains. The zero value enforces every rule and adds no headers.
type Settings struct {
	Shadow bool // every request passes; statuses still show which limits were exceeded
	Quota  bool // every rule is in quota mode

	// Admission is for domains that do not set their own. The zero value means descriptor.Independent.
	Admission descriptor.Admission

	// StopWhenOver applies to domains with independent admission. If any limit denies a request, the request is counted
	// only in the limits that deny it. It is envoyproxy/ratelimit's STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT, but reading
	// and counting are one atomic step here.
	StopWhenOver bool

	// OnError is for domains and rules that do not set their own. The zero value means descriptor.OnErrorError. With
	// local, this replica gets its share of a limit that is divided by the number of Limiter.SetReplicas.
	OnError descriptor.OnError
	Regions int // how many regions share the limits that have a home, each with the same number of replicas; 0 means 1

	Headers     descriptor.HeaderFamilies // headers for clients, in domains that do not set their own; 0 means none
	HeaderNames HeaderNames               // the names for descriptor.HeadersReference

	// CalendarMonths makes windows of one month in requests' own limits follow the calendar in UTC. For rules' months
	// descriptor.Compile has the same option.
	CalendarMonths bool

	Metadata bool // answers carry dynamic metadata
	Explain  bool // dynamic metadata shows which rule decided; implies Metadata

	// NearLimitRatio is the share of a limit above which hits count as near it; 0 means 0.8.
	NearLimitRatio float32
}

// HeaderNames are the names of the client headers for a limit, its remaining hits, and the seconds until it resets. The
// zero value means RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset.
type HeaderNames struct {
	Limit     string
	Remaining string
	Reset     string
}

// snapshot is everything that a decision reads except the counters. It is immutable and replaced as a whole, so that no
// decision sees half of a change.
type snapshot struct {
	tree      *descriptor.Tree
	settings  Settings
	series    []*series            // indexed by Rule.Index; nil for rules whose metric name depends on the request
	limits    [][]*limitSeries     // indexed by Rule.Index and limit; nil for rules whose limits do not vary
	classes   [][][]*classSeries   // indexed by Rule.Index, limit and class; nil for rules and limits without classes
	replicas  int                  // number of replicas that share the limits; 0 if unknown, treated as 1
	shares    [][]descriptor.Limit // this replica's share of each limit, indexed by Rule.Index; nil with one replica
	hot       *hotRules            // nil if hot keys are off
	overrides *override.Set        // nil without overrides
	reports   []report             // functions to run on every decision, in order
	plain     []bool               // whether decisions are plain, indexed by Rule.Index; nil if none is
}

// report counts a decision, or sends its events.
type report func(*work, *Decision)

// Needs of a decision in addition to its rules' needs. Only the request or the stages can tell them.
const (
	needOverride    descriptor.Needs = 1 << (iota + 8) // the rule may have overrides, and there are some
	needNamed                                          // an entry names a reservation
	needAmounts                                        // a descriptor has amounts of several kinds
	needReservation                                    // a descriptor is an operation on a reservation
	needGuard                                          // a take is on a penalty
)

// allOrNothing reports whether a domain has all_or_nothing admission.
func (s *Settings) allOrNothing(d *descriptor.Domain) bool {
	if d.Admission != descriptor.AdmissionDefault {
		return d.Admission == descriptor.AllOrNothing
	}
	return s.Admission == descriptor.AllOrNothing
}

// headers returns the headers for a domain's clients.
func (s *Settings) headers(d *descriptor.Domain) (descriptor.HeaderFamilies, []descriptor.OwnHeader) {
	if d != nil && d.Headers != nil {
		return d.Headers.Families, d.Headers.Own
	}
	return s.Headers, nil
}
