package regions

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// counts are totals of this replica.
type counts struct {
	waited, unanswered   atomic.Int64
	otherHome, forgotten atomic.Int64
}

func (s *Store) families() []metric.Family {
	c := &s.counts
	return []metric.Family{
		{
			Name: "ratelimitd_region_attempts_total", Labels: []string{"result"},
			Help: "Attempts under limits whose home is another region.",
			Counts: func(emit metric.Emit) {
				emit(float64(s.leased()), "leased")
				emit(float64(c.waited.Load()), "waited")
				emit(float64(c.unanswered.Load()), "unanswered")
			},
		},
		metric.Counter("ratelimitd_region_other_home_total",
			"Limits counted here for another region, although the rules name another home.", c.otherHome.Load),
		metric.Gauge("ratelimitd_region_unseen_hits",
			"Most hits of an eventual counter that another region admitted unseen in the last 1 to 2 minutes.",
			s.unseen.load),
		metric.Counter("ratelimitd_region_forgotten_tallies_total",
			"Attempts in mode eventual counted as regional, for lack of room.", c.forgotten.Load),
	}
}

// leased returns the number of attempts answered from permits of other regions.
func (s *Store) leased() (n int64) {
	for _, f := range s.far {
		n += f.leases.Local()
	}
	return n
}

// Status is the state of limits across regions on one replica.
type Status struct {
	Region             string
	Waited, Unanswered int64        // counted since the replica started, see the metrics
	Leased             int64        // counted since the replica started
	Peers              []PeerStatus // sorted by name
}

// PeerStatus is the state of another region, as one replica sees it. A zero time means never.
type PeerStatus struct {
	Region    string
	Heard     time.Time     // its last answer
	Asked     time.Time     // its last query
	Err       error         // error of the last call, or nil if it succeeded
	RTT       time.Duration // round trip of the last answered call
	Rules     RulesMatch
	Rejection PeerRejection
}

// RulesMatch tells whether a region has the same rules as this one, overrides aside.
type RulesMatch uint8

// The results of the comparison.
const (
	RulesUnknown RulesMatch = iota
	RulesSame
	RulesDiffer
)

// PeerRejection is the last query that a region did not carry out, because its rules differ or its store did not
// answer. It is zero if there was none.
type PeerRejection struct {
	At     time.Time
	Why    Rejection
	Domain string
	Keys   []string // keys of the entries; the values may identify customers
}

// Status returns the state of limits across regions on this replica.
func (s *Store) Status() Status {
	st := Status{Region: s.opts.Region, Waited: s.counts.waited.Load(), Unanswered: s.counts.unanswered.Load(),
		Leased: s.leased()}
	own := s.State().Rules
	for name, p := range s.peers {
		p.mu.Lock()
		one := PeerStatus{Region: name, Heard: p.lastHeard, Asked: p.lastAsked, Err: p.err, RTT: p.rtt,
			Rejection: p.rejection}
		switch {
		case own == 0 || p.rules == 0:
		case own == p.rules:
			one.Rules = RulesSame
		default:
			one.Rules = RulesDiffer
		}
		p.mu.Unlock()
		st.Peers = append(st.Peers, one)
	}
	slices.SortFunc(st.Peers, func(a, b PeerStatus) int { return strings.Compare(a.Region, b.Region) })
	return st
}

// peer is the state of another region, for Status.
type peer struct {
	mu        sync.Mutex
	lastHeard time.Time
	lastAsked time.Time
	err       error
	rtt       time.Duration
	rules     uint64
	rejection PeerRejection
}

// answers records an answer of the region.
func (p *peer) answers(rtt time.Duration, rules uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastHeard, p.rtt, p.rules = time.Now(), rtt, rules
}

// ended records the result of a call to the region.
func (p *peer) ended(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// asks records a query of the region.
func (p *peer) asks() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastAsked = time.Now()
}

// rejects records that the region did not carry out a query.
func (p *peer) rejects(why Rejection, query *Query) {
	r := PeerRejection{At: time.Now(), Why: why, Domain: query.Domain}
	if len(query.Descriptors) > 0 {
		for _, e := range query.Descriptors[0] {
			r.Keys = append(r.Keys, e.Key)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rejection = r
}
