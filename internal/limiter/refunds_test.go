package limiter_test

import (
	"errors"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// A refund that gives nothing back is counted, once for each limit and with the reason.
func TestDroppedRefundsAreCounted(t *testing.T) {
	m := newMeasured(t, 100, perMinute("k", "", 5))
	give := func(domain string, hits uint64) limiter.Status {
		t.Helper()
		d := &limiter.Decision{}
		req := &limiter.Request{Domain: domain, Descriptors: []limiter.Descriptor{{Entries: entries("k=a"), HasHits: true, Hits: hits, Refund: true}}}
		if err := m.Decide(t.Context(), noon, req, d); err != nil {
			t.Fatal(err)
		}
		return d.Statuses[0]
	}
	dropped := func(tooLarge, denied float64) {
		t.Helper()
		m.want(tooLarge, "ratelimitd_dropped_refunds_total", "reason=too_large")
		m.want(denied, "ratelimitd_dropped_refunds_total", "reason=denied")
	}
	m.ask("d", 4, "k=a")
	if s := give("d", 3); s.Code != limiter.OK || s.Remaining != 4 {
		t.Errorf("got %+v", s)
	}
	dropped(0, 0)
	if s := give("d", 2); s.Code != limiter.OK || s.Remaining != 4 {
		t.Errorf("a refund of more than is used: %+v", s)
	}
	dropped(1, 0)
	m.want(4, "ratelimitd_rule_hits_total") // refunds are no requests

	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{Refunds: descriptor.RefundsDeny}, Children: []descriptor.NodeSpec{perMinute("k", "", 5)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.Swap(tree, limiter.Settings{})
	if s := give("d", 1); s.Code != limiter.OK || s.Remaining != 4 {
		t.Errorf("a refund in a domain that denies refunds: %+v", s)
	}
	dropped(1, 1)
}

// A refund of more hits than are used gives nothing back in windows and under concurrency, and fills a bucket.
func TestRefundOfMoreThanIsUsed(t *testing.T) {
	for a := descriptor.FixedWindow; a <= descriptor.Concurrency; a++ {
		limit := descriptor.Limit{Requests: 5, Window: descriptor.Window{Unit: descriptor.Minute}, Algorithm: a}
		bucket := a == descriptor.TokenBucket || a == descriptor.LeakyBucket
		if bucket {
			limit.Burst = 5
		}
		full := limit.Capacity()
		f := newFixture(t, limiter.Settings{}, perMinute("k", "", 5, limitOf(limit)))
		f.want(f.ask(2, "k=a"), limiter.OK, full-2)
		left := full - 2
		if bucket {
			left = full
		}
		f.want(f.ask(-3, "k=a"), limiter.OK, left)
		f.want(f.ask(0, "k=a"), limiter.OK, left)
		if t.Failed() {
			t.Fatalf("with %s", a)
		}
	}
}

// The counts of a request that fails belong to that request. They are not left to the next one.
func TestCountsOfARequestThatFails(t *testing.T) {
	m := newMeasured(t, 100, perMinute("k", "", 5))
	tree, err := descriptor.Compile([]descriptor.DomainSpec{{Name: "d", DomainSettings: descriptor.DomainSettings{Refunds: descriptor.RefundsDeny}, Children: []descriptor.NodeSpec{perMinute("k", "", 5)}}}, descriptor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.Swap(tree, limiter.Settings{})
	req := &limiter.Request{
		Domain: "d", Reservation: &limiter.Reservation{Op: limiter.Reserve},
		Descriptors: []limiter.Descriptor{{Entries: entries("k=a"), HasHits: true, Hits: 1, Refund: true}},
	}
	if _, failed := errors.AsType[*limiter.NotReservableError](m.Decide(t.Context(), noon, req, &limiter.Decision{})); !failed {
		t.Fatal("a reservation under a rule without reservations was decided")
	}
	m.want(1, "ratelimitd_dropped_refunds_total", "reason=denied")
}
