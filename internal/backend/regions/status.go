package regions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend/region"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// counts are totals of this replica.
type counts struct {
	cold, starved       atomic.Int64 // takes that waited for the home; of them, those that had no answer in time
	asked, failed       atomic.Int64 // questions; calls that failed
	dropped, unreadable atomic.Int64
	clockErrors         atomic.Int64
}

func (s *Store) families() []metric.Family {
	c := &s.counts
	return []metric.Family{
		metric.Counter("ratelimitd_region_cold_asks_total", "Attempts that waited for the home of their counter.", c.cold.Load),
		metric.Counter("ratelimitd_region_starved_total", "Attempts that on_error decided, because the region held no permit and the home gave none in time.", c.starved.Load),
		metric.Counter("ratelimitd_region_questions_total", "Questions sent to the homes of counters.", c.asked.Load),
		metric.Counter("ratelimitd_region_failed_calls_total", "Failed calls to other regions. One call carries many questions.", c.failed.Load),
		metric.Gauge("ratelimitd_region_kept_homes", "Rules whose new home does not count, because the epoch was not raised, or without RATELIMITD_REGIONS_BEFORE.", func() int64 { return int64(len(s.homesOf.keptHomes())) }),
		metric.Gauge("ratelimitd_region_unseen_hits", "The most hits of one counter in mode eventual that another region admitted between two of its answers, in the last 1 to 2 minutes.", s.unseen.load),
		metric.Counter("ratelimitd_region_unreadable_records_total", "Records of limits across regions that are unreadable and count as lost.", c.unreadable.Load),
	}
}

// Status is what a replica knows about limits across regions.
type Status struct {
	Region string
	Epoch  uint64
	Before []string // Options.Before

	Acts  bool          // this region may count for the others now
	For   time.Duration // for how long it may, if no other region confirms it again
	Why   string        // why it may not
	Peers []PeerStatus  // by name
	Kept  []KeptHome    // by rule: rules that name another home than the one that counts

	Rules         []RuleStatus // those with most permits first
	Cold, Starved int64        // since the replica began: see the metrics
}

// RuleStatus is what a replica has seen lately of the counters of a rule that have one home.
type RuleStatus struct {
	Rule string // its path
	Mode descriptor.RegionMode
	Home string

	Counters int   // that the replica has used lately
	Permits  int64 // that this region holds, or if it is the home: that the others hold
	Other    int   // accounts whose home has another number for the limit: by its rules, or an override
}

// PeerStatus is what a replica knows about another region. Times are zero if it never happened.
type PeerStatus struct {
	Region    string
	Heard     time.Time     // it answered a question
	Asked     time.Time     // it asked one
	Consented time.Time     // it confirmed this region
	Epoch     uint64        // of its last question; 0: none
	Err       error         // of the last call; nil: it succeeded
	RTT       time.Duration // of the last question for consent that was answered
	Refusal   PeerRefusal
}

// PeerRefusal is the last question that a region did not answer because its rules, or its list of regions, differ. The zero PeerRefusal: none.
type PeerRefusal struct {
	At     time.Time
	Why    Refusal
	Domain string
	Keys   []string // of the entries: their values are customers'
}

// Status returns what this replica knows.
func (s *Store) Status() Status {
	st := Status{
		Region: s.opts.Region, Epoch: s.opts.Epoch, Before: s.opts.Before, Rules: s.ruleStatus(), Cold: s.counts.cold.Load(), Starved: s.counts.starved.Load(),
		Kept: s.homesOf.keptHomes(),
	}
	at, knows, _ := s.clocks.reading(s.opts.Records.Clock(s.role.key))
	switch d, known := s.duty.Load(), s.known.Load(); {
	case d == nil || !knows:
		st.Why = "the clock of Redis was not read yet, or was set back"
	case known > s.opts.Epoch:
		st.Why = fmt.Sprintf("the region has heard of epoch %d: this replica has an older list of regions", known)
	case d.From == never:
		st.Why = "it became a home with this epoch: it waits until more than half of the regions before and after have consented"
	case at.Now < d.From:
		st.Why = fmt.Sprintf("it became a home with this epoch: it begins in %s", micros(d.From-at.Now).Round(time.Second))
	case at.Now >= d.Until:
		st.Why = "too few regions have consented in the last 30s"
	default:
		st.Acts, st.For = true, micros(d.Until-at.Now)
	}
	for name, p := range s.peers {
		p.mu.Lock()
		st.Peers = append(st.Peers, PeerStatus{Region: name, Heard: p.lastHeard, Asked: p.lastAsked, Consented: p.lastYes, Epoch: p.epoch, Err: p.err, RTT: p.rtt, Refusal: p.refusal})
		p.mu.Unlock()
	}
	slices.SortFunc(st.Peers, func(a, b PeerStatus) int { return strings.Compare(a.Region, b.Region) })
	return st
}

// heard notes the end of a call to the region.
func (p *peer) heard(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err = err; err == nil {
		p.lastHeard = time.Now()
	}
}

// asks notes a call of the region.
func (p *peer) asks(epoch uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastAsked, p.epoch = time.Now(), epoch
}

// consented notes the answer to a question for consent.
func (p *peer) consented(yes bool, rtt time.Duration, err error) {
	p.heard(err)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rtt = rtt; yes {
		p.lastYes = time.Now()
	}
}

// refuses notes that the region does not answer a question.
func (p *peer) refuses(why Refusal, query *Query) {
	r := PeerRefusal{At: time.Now(), Why: why, Domain: query.Domain}
	for _, e := range query.Entries {
		r.Keys = append(r.Keys, e.Key)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusal = r
}

// holding is what is known of the permits of one counter, for Status.
type holding struct {
	rule           string // its path
	mode           atomic.Uint32
	permits, until atomic.Int64
	other          atomic.Bool // the home has another number for the limit
}

// counts notes under which mode the counter was used. Rules may change it.
func (h *holding) counts(l *descriptor.Limit) {
	if m := uint32(l.Regions.Mode); h.mode.Load() != m {
		h.mode.Store(m)
	}
}

func pathOf(r *descriptor.Rule) string {
	if r == nil {
		return ""
	}
	return r.Path
}

// held notes what the region holds.
func (h *holding) held(now int64, grants []region.Grant) {
	permits, until := valid(now, grants)
	h.permits.Store(permits)
	h.until.Store(until)
}

// granted notes what other regions hold.
func (h *holding) granted(now int64, peers []region.Peer) {
	permits, until := int64(0), int64(0)
	for i := range peers {
		n, last := valid(now, peers[i].Grants)
		permits, until = permits+n, max(until, last)
	}
	h.permits.Store(permits)
	h.until.Store(until)
}

// valid is how many permits of grants may still be used, and the end of the last.
func valid(now int64, grants []region.Grant) (permits, until int64) {
	for i := range grants {
		if g := &grants[i]; now < g.Expires {
			permits, until = permits+g.Permits-g.Used-g.Returned, max(until, g.Expires)
		}
	}
	return permits, until
}

// ruleStatus sums up what is known of the counters, for each rule and home.
func (s *Store) ruleStatus() []RuleStatus {
	type place struct {
		rule, home string
		mode       descriptor.RegionMode
	}
	sums := make(map[place]*RuleStatus)
	add := func(h *holding, home string, key []byte) {
		p := place{h.rule, home, descriptor.RegionMode(h.mode.Load())}
		r := sums[p]
		if r == nil {
			r = &RuleStatus{Rule: p.rule, Mode: p.mode, Home: home}
			sums[p] = r
		}
		r.Counters++
		if at, knows, _ := s.clocks.reading(s.opts.Records.Clock(key)); knows && at.Now < h.until.Load() {
			r.Permits += h.permits.Load()
		}
		if h.other.Load() {
			r.Other++
		}
	}
	for _, a := range s.accounts.all() {
		add(&a.seen, a.home.region, a.key)
	}
	for _, p := range s.parts.all() {
		if p.home != s.opts.Region { // otherwise its counter is here, too
			add(&p.seen, p.home, p.key)
		}
	}
	for _, h := range s.homes.all() {
		add(&h.seen, s.opts.Region, h.key)
	}
	all := make([]RuleStatus, 0, len(sums))
	for _, r := range sums {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b RuleStatus) int {
		return cmp.Or(cmp.Compare(b.Permits, a.Permits), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Home, b.Home), cmp.Compare(a.Mode, b.Mode))
	})
	return all
}
