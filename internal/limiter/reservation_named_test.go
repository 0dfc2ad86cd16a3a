package limiter_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// Envoy reserves in the request phase and commits at the end of the stream: the last entry names the reservation.
func TestNamedReservations(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	f.want(f.ask(60, "k=a", "reserve_id=x"), limiter.OK, 40)
	f.want(f.ask(41, "k=a"), limiter.OverLimit, 0)
	f = newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	f.want(f.ask(60, "k=a", "reserve_id=x"), limiter.OK, 40)
	f.want(f.ask(41, "k=a", "reserve_id=y"), limiter.OverLimit, 40) // a denied reservation uses nothing
	f.want(f.ask(30, "k=a", "reserve_id=z"), limiter.OK, 10)
	f.want(f.ask(20, "k=a", "commit_id=x"), limiter.OK, 50)
	f.want(f.ask(45, "k=a", "commit_id=z"), limiter.OK, 35)
	f.want(f.ask(-5, "k=a", "commit_id=unknown"), limiter.OK, 35) // the end of a stream that used nothing
	f.want(f.ask(5, "k=a", "commit_id=unknown"), limiter.OK, 30)  // hits that nobody reserved are charged too
	f.ask(200, "k=a", "commit_id=unknown")
	f.want(f.ask(1, "k=a"), limiter.OverLimit, 0)
	f.want(f.ask(0, "k=b", "reserve_id=x"), limiter.OK, 100)
	f.want(f.ask(7, "k=b", "commit_id=x"), limiter.OK, 93)

	c := f.peek("k=a", "reserve_id=x")
	if len(c.List) != 1 || c.List[0].Key != f.peek("k=a").List[0].Key || len(c.Explanation.Levels) != 2 {
		t.Errorf("%+v", c)
	}
	f.reset("k=a", "commit_id=x")
	f.want(f.ask(0, "k=a"), limiter.OK, 100)
}

// Different names do not collide: each commit finds the reservation with its name, in every form of name.
func TestDifferentNamesDoNotMeet(t *testing.T) {
	const id = "123e4567-e89b-42d3-a456-426614174000"
	names := []string{
		"", "\x00", "\x00\x00", "a", "a\x00", "a\x01", "A", "\x01", "\x02", "123456789012345", "1234567890123456", "12345678901234567",
		id, strings.ToUpper(id), strings.Replace(id, "e", "E", 1), strings.Replace(id, "-", "_", 1), strings.Replace(id, "a", "g", 1),
		id[:35], id + "0", "\xff" + id[1:], strings.Repeat("x", 5000), strings.Repeat("x", 5001),
	}
	for i := range 36 { // every byte of a UUID counts
		names = append(names, id[:i]+"9"+id[i+1:])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 1_000_000, reservable))
	left := uint64(1_000_000)
	for i, name := range names {
		left -= uint64(1000 + i)
		f.want(f.ask(int64(1000+i), "k=a", "reserve_id="+name), limiter.OK, left)
	}
	for i, name := range names {
		left += uint64(1000 + i)
		f.want(f.ask(0, "k=a", "commit_id="+name), limiter.OK, left)
	}
}

// A commit after the reservation's window is over charges nothing: the hits belong to that window.
func TestNamedReservationOfAnEarlierWindow(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	f.ask(60, "k=a", "reserve_id=x")
	f.now = f.now.Add(time.Minute)
	f.want(f.ask(90, "k=a", "commit_id=x"), limiter.OK, 100)
}

// A client that always sends the same name is limited like all others.
func TestConstantNameBypassesNothing(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	for i := range 5 {
		f.want(f.ask(20, "k=a", "reserve_id=same"), limiter.OK, uint64(80-20*i))
	}
	f.want(f.ask(20, "k=a", "reserve_id=same"), limiter.OverLimit, 0)
	for i := range 5 {
		f.want(f.ask(0, "k=a", "commit_id=same"), limiter.OK, uint64(20+20*i))
	}
	for i := range 16 {
		f.want(f.ask(1, "k=a", "reserve_id=same"), limiter.OK, uint64(99-i))
	}
	if s := f.ask(1, "k=a", "reserve_id=same"); s.Code != limiter.OverLimit || s.RetryAfter <= 0 || s.RetryAfter > time.Minute {
		t.Errorf("the 17th reservation of one name: %+v", s)
	}
	f.want(f.ask(1, "k=a", "reserve_id=other"), limiter.OK, 83)
}

// Without reservations in the rule, and in any place but the last, the entries are like all others.
func TestNamesAreEntriesElsewhere(t *testing.T) {
	plain := perMinute("k", "", 100)
	below := perMinute("reserve_id", "", 10)
	plain.Children = []descriptor.NodeSpec{below}
	held := perMinute("held", "", 100, reservable)
	held.Children = []descriptor.NodeSpec{perMinute("other", "", 10)}
	f := newFixture(t, limiter.Settings{}, plain, held, perMinute("commit_id", "", 5))
	f.want(f.ask(1, "k=a", "reserve_id=x"), limiter.OK, 9)
	f.want(f.ask(1, "k=a", "reserve_id=y"), limiter.OK, 9)
	f.want(f.ask(1, "commit_id=x"), limiter.OK, 4)
	f.want(f.ask(1, "held=a", "other=x"), limiter.OK, 9)
	for _, pairs := range [][]string{{"k=a", "commit_id=x"}, {"held=a", "reserve_id=x", "other=x"}, {"held=a", "other=x", "reserve_id=x"}, {"unknown=a", "reserve_id=x"}} {
		if s := f.ask(1, pairs...); s.Limited || s.Rule != nil {
			t.Errorf("%v: %+v", pairs, s)
		}
	}
	f.want(f.ask(1, "held=a", "reserve_id=x"), limiter.OK, 99)
}

// Under all_or_nothing, descriptors with the same counter are one take. Those that name other reservations stay apart.
func TestNamedReservationsOfOneRequest(t *testing.T) {
	for _, admission := range []descriptor.Admission{descriptor.Independent, descriptor.AllOrNothing} {
		f := newFixture(t, limiter.Settings{Admission: admission}, perMinute("k", "", 100, reservable), perMinute("small", "", 5))
		ask := func(all ...limiter.Descriptor) *limiter.Decision {
			return f.decide(&limiter.Request{Domain: "d", Descriptors: all})
		}
		ask(amount(30, "k=a", "reserve_id=x"), amount(20, "k=a", "reserve_id=y"), amount(10, "k=a", "reserve_id=x"), amount(1, "k=a"), amount(2, "small=a"))
		f.want(f.ask(0, "k=a"), limiter.OK, 39)
		if d := ask(amount(30, "k=a", "reserve_id=z"), amount(9, "small=a")); d.Code != limiter.OverLimit {
			t.Errorf("%+v", d)
		}
		left := uint64(39)
		if admission == descriptor.Independent {
			left = 9
		}
		f.want(f.ask(0, "k=a"), limiter.OK, left)
		ask(amount(5, "k=a", "commit_id=x"), amount(1, "k=a", "commit_id=y"), amount(0, "k=a", "commit_id=x"))
		f.want(f.ask(0, "k=a"), limiter.OK, left+60-6)
	}
}

// A limit that the request carries can have reservations where the rule has them: its counter does not depend on the
// name.
func TestNamedReservationsUnderTheRequestsOwnLimit(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	ask := func(hits uint64, pairs ...string) limiter.Status {
		d := amount(hits, pairs...)
		d.HasLimit, d.Limit = true, limiter.RequestLimit{Requests: 10, Unit: int32(descriptor.Hour)}
		return f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{d}}).Statuses[0]
	}
	f.want(ask(6, "k=a", "reserve_id=x"), limiter.OK, 4)
	f.want(ask(6, "k=a", "reserve_id=y"), limiter.OverLimit, 4)
	f.want(ask(1, "k=a", "commit_id=x"), limiter.OK, 9)
	f.want(f.ask(0, "k=a"), limiter.OK, 100)
}

// A limit of a rule that holds nothing counts a request when it starts, and not again when it ends.
func TestNamedReservationBesideAPlainLimit(t *testing.T) {
	bounds := descriptor.DefaultReservations()
	two := perMinute("k", "", 100)
	hour := descriptor.Limit{Name: "hour", Requests: 50, Window: descriptor.Window{Unit: descriptor.Hour}, Reservations: &bounds}
	two.Rule.Limits = append(two.Rule.Limits, hour)
	f := newFixture(t, limiter.Settings{}, two)
	f.ask(20, "k=a", "reserve_id=x")
	f.ask(5, "k=a", "commit_id=x")
	c := f.peek("k=a")
	if c.List[0].Used != 20 || c.List[1].Used != 5 {
		t.Errorf("%+v", c.List)
	}
}

// Names are not part of metrics: they would make a series for each request.
func TestNamesAreNotInMetrics(t *testing.T) {
	m := newMeasured(t, 20, perMinute("k", "", 100, reservable, detailed))
	for i := range 3 {
		m.ask("d", 1, "k=a", fmt.Sprintf("reserve_id=%d", i))
	}
	if hits, series := m.value("ratelimitd_rule_hits_total"); hits != 3 || series != 1 {
		t.Errorf("%v hits in %d series", hits, series)
	}
}
