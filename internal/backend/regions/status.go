package regions

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/platform/metric"
)

// counts are totals of this process.
type counts struct {
	cold, starved       atomic.Int64 // takes that waited for the home; of them, those that had no answer in time
	asked, failed       atomic.Int64 // questions; calls that failed
	dropped, unreadable atomic.Int64
	clockErrors         atomic.Int64
}

func (s *Store) families() []metric.Family {
	c := &s.counts
	return []metric.Family{
		metric.Counter("ratelimitd_region_cold_asks_total", "Attempts that had to wait for the home of their counter.", c.cold.Load),
		metric.Counter("ratelimitd_region_starved_total", "Attempts without an answer because the region held no permit and the home gave none in time. on_error decided them; they are no denials by the limit.", c.starved.Load),
		metric.Counter("ratelimitd_region_questions_total", "Questions that were sent to the homes of counters.", c.asked.Load),
		metric.Counter("ratelimitd_region_failed_calls_total", "Calls to other regions that failed. Each may have had many questions.", c.failed.Load),
		metric.Counter("ratelimitd_region_unreadable_records_total", "Records of limits across regions that could not be read, and counted as lost.", c.unreadable.Load),
	}
}

// Status is what a process knows about limits across regions.
type Status struct {
	Region string
	Epoch  uint64

	Acts  bool          // this region may count for the others now
	For   time.Duration // for how long it may, if no other region confirms it again
	Peers []PeerStatus  // by name

	Accounts, Counters int   // that this process has used lately
	Cold, Starved      int64 // since the process began: see the metrics
}

// PeerStatus is what a process knows about another region. Times are zero if it never happened.
type PeerStatus struct {
	Region    string
	Heard     time.Time // it answered a question
	Asked     time.Time // it asked one
	Consented time.Time // it confirmed this region
	Epoch     uint64    // of its last question; 0: none
	Err       error     // of the last call; nil: it succeeded
}

// Status returns what this process knows.
func (s *Store) Status() Status {
	st := Status{
		Region: s.opts.Region, Epoch: s.opts.Epoch, Accounts: len(s.accounts.all()), Counters: len(s.homes.all()),
		Cold: s.counts.cold.Load(), Starved: s.counts.starved.Load(),
	}
	if d := s.duty.Load(); d != nil {
		if at, knows, _ := s.clocks.reading(s.opts.Records.Clock(s.role.key)); knows {
			st.Acts = d.From <= at.Now && at.Now < d.Until
			st.For = micros(max(d.Until-at.Now, 0))
		}
	}
	for name, p := range s.peers {
		p.mu.Lock()
		st.Peers = append(st.Peers, PeerStatus{Region: name, Heard: p.lastHeard, Asked: p.lastAsked, Consented: p.lastYes, Epoch: p.epoch, Err: p.err})
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
func (p *peer) consented(yes bool, err error) {
	p.heard(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if yes && err == nil {
		p.lastYes = time.Now()
	}
}
