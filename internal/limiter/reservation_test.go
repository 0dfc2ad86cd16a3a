package limiter_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/backend/memory"
	"github.com/ratelimitd/ratelimitd/internal/backend/overlimit"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// reservable makes a rule allow reservations.
func reservable(r *descriptor.Rule) {
	b := descriptor.DefaultReservations()
	for i := range r.Limits {
		r.Limits[i].Reservations = &b
	}
}

// step decides an operation on the reservation with a number, and returns the error.
func (f *fixture) step(id byte, h limiter.Reservation, amounts ...limiter.Descriptor) (*limiter.Decision, error) {
	f.t.Helper()
	h.ID[0] = id
	d := &limiter.Decision{}
	err := f.Decide(f.t.Context(), f.now, &limiter.Request{Domain: "d", Descriptors: amounts, Reservation: &h}, d)
	return d, err
}

// reserve reserves amounts and expects a verdict.
func (f *fixture) reserve(id byte, want limiter.Code, amounts ...limiter.Descriptor) *limiter.Decision {
	f.t.Helper()
	d, err := f.step(id, limiter.Reservation{Op: backend.OpReserve}, amounts...)
	if err != nil || d.Code != want {
		f.t.Errorf("reserve %v: %v, %v; want %v", amounts, d.Code, err, want)
	}
	return d
}

// amount is a descriptor with hits.
func amount(hits uint64, pairs ...string) limiter.Descriptor {
	return limiter.Descriptor{Entries: entries(pairs...), HasHits: true, Hits: hits}
}

func TestReservationsAreAllOrNothing(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("wide", "", 100, reservable), perMinute("narrow", "", 10, reservable))
	d := f.reserve(1, limiter.OK, amount(50, "wide=a"), amount(1, "narrow=a"))
	if d.Reservations[0].Reserved != 50 || d.Reservations[1].Reserved != 1 || !d.Reservations[0].Expires.Equal(f.now.Add(time.Minute)) {
		t.Errorf("%+v", d.Reservations)
	}
	d = f.reserve(2, limiter.OverLimit, amount(40, "wide=a"), amount(10, "narrow=a"))
	if d.Reservations[0].Reserved != 0 || d.Statuses[1].RetryAfter <= 0 {
		t.Errorf("%+v %+v", d.Reservations, d.Statuses)
	}
	f.want(f.ask(0, "wide=a"), limiter.OK, 50)
	f.want(f.ask(0, "narrow=a"), limiter.OK, 9)
	// denied hits count in a fixed window, just like without reservations
	f.want(f.ask(10, "narrow=a"), limiter.OverLimit, 0)
}

func TestCommitCancelAndExtend(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	for _, c := range []struct {
		reservation limiter.Reservation
		hits        uint64
		left        uint64
		result      backend.ReservationResult
	}{
		{limiter.Reservation{Op: backend.OpReserve}, 60, 40, backend.ReservationDone},
		{limiter.Reservation{Op: backend.OpCommit}, 20, 40, backend.ReservationDone},
		{limiter.Reservation{Op: backend.OpExtend, TTL: 2 * time.Minute}, 0, 40, backend.ReservationDone},
		{limiter.Reservation{Op: backend.OpCommit, Final: true}, 30, 70, backend.ReservationDone},
		{limiter.Reservation{Op: backend.OpCommit, Final: true}, 30, 70, backend.ReservationUnknown},
		{limiter.Reservation{Op: backend.OpExtend}, 0, 70, backend.ReservationUnknown},
		{limiter.Reservation{Op: backend.OpReserve}, 70, 0, backend.ReservationDone},
		{limiter.Reservation{Op: backend.OpCommit, Final: true}, 0, 70, backend.ReservationDone},
		{limiter.Reservation{Op: backend.OpCommit, Final: true, ChargeUnknown: true}, 10, 60, backend.ReservationUnknown},
	} {
		d, err := f.step(1, c.reservation, amount(c.hits, "k=a"))
		if err != nil || d.Code != limiter.OK || d.Reservations[0].Result != c.result || d.Statuses[0].Remaining != c.left {
			t.Errorf("%+v of %d: %v, %+v %+v; want %d left and %d", c.reservation, c.hits, err, d.Reservations, d.Statuses[0], c.left, c.result)
		}
	}
}

// Descriptors of one counter are one reservation, however little one of them uses.
func TestDescriptorsOfOneCounterAreReservedTogether(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable))
	f.reserve(1, limiter.OverLimit, amount(60, "k=a"), amount(50, "k=a"))
	f.reserve(1, limiter.OK, amount(60, "k=a"), amount(40, "k=a"))
	f.want(f.ask(0, "k=a"), limiter.OK, 0)
	if d, err := f.step(1, limiter.Reservation{Op: backend.OpCommit, Final: true}, amount(0, "k=a"), amount(7, "k=a")); err != nil || d.Reservations[1].Result != backend.ReservationDone {
		t.Errorf("%+v %v", d.Reservations, err)
	}
	f.want(f.ask(0, "k=a"), limiter.OK, 93)
}

func TestSmallerGrants(t *testing.T) {
	inFlight := perMinute("slots", "", 5, func(r *descriptor.Rule) { r.Limits[0].Algorithm = descriptor.Concurrency })
	f := newFixture(t, limiter.Settings{}, perMinute("tokens", "", 100, reservable), perMinute("wide", "", 1000, reservable), inFlight)
	f.ask(30, "tokens=a")
	least := func(n uint64) limiter.Reservation { return limiter.Reservation{Op: backend.OpReserve, Least: n} }
	d, err := f.step(1, least(50), amount(90, "tokens=a"), amount(90, "wide=a"), amount(1, "slots=a"))
	if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 70 || d.Reservations[1].Reserved != 70 || d.Reservations[2].Reserved != 1 {
		t.Fatalf("%v %v %+v", err, d.Code, d.Reservations)
	}
	if d, err = f.step(2, least(1), amount(90, "tokens=a")); err != nil || d.Code != limiter.OverLimit {
		t.Errorf("%v %v %+v", err, d.Code, d.Reservations)
	}
	_, err = f.step(3, least(1), amount(90, "unknown=a"), amount(90, "wide=b"), amount(80, "tokens=b"))
	if invalid, ok := errors.AsType[*limiter.InvalidError](err); !ok || invalid.Field != "min_hits" || !strings.Contains(invalid.Message, "descriptors[1] is worth 90 hits, and descriptors[2] is worth 80") {
		t.Errorf("%v", err)
	}
	f.want(f.ask(0, "wide=b"), limiter.OK, 1000)
}

// Descriptors of one counter get equal parts of the remaining hits, and together not more.
func TestSmallerGrantsOfOneCounter(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 200, reservable), perMinute("other", "", 150, reservable))
	f.ask(49, "k=a")
	two := []limiter.Descriptor{amount(100, "k=a"), amount(100, "k=a")}
	least := func(n uint64) limiter.Reservation { return limiter.Reservation{Op: backend.OpReserve, Least: n} }
	if d, err := f.step(1, least(80), two...); err != nil || d.Code != limiter.OverLimit {
		t.Errorf("at least 80 each of 151: %v %v %+v", err, d.Code, d.Reservations)
	}
	d, err := f.step(2, least(60), two...)
	if err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 75 || d.Reservations[1].Reserved != 75 {
		t.Fatalf("at least 60 each of 151: %v %v %+v", err, d.Code, d.Reservations)
	}
	if _, err = f.step(2, limiter.Reservation{Op: backend.OpCommit, Final: true}, amount(75, "k=a"), amount(75, "k=a")); err != nil {
		t.Error(err)
	}
	f.want(f.ask(0, "k=a"), limiter.OK, 1)
	// Next to a counter that only one of them has, they get all or nothing.
	three := []limiter.Descriptor{amount(70, "k=b"), amount(70, "k=b"), amount(70, "other=b")}
	if d, err = f.step(3, least(10), three...); err != nil || d.Code != limiter.OK || d.Reservations[0].Reserved != 70 || d.Reservations[1].Reserved != 70 || d.Reservations[2].Reserved != 70 {
		t.Errorf("%v %v %+v", err, d.Code, d.Reservations)
	}
	if d, err = f.step(4, least(10), three...); err != nil || d.Code != limiter.OverLimit {
		t.Errorf("%v %v %+v", err, d.Code, d.Reservations)
	}
	f.want(f.ask(0, "k=b"), limiter.OK, 60)
}

// Amounts of several kinds become hits by the rule's cost. The descriptor's hits are added.
func TestCostOfReservations(t *testing.T) {
	racetest.Sequential(t)
	weights := func(r *descriptor.Rule) {
		r.Limits[0].Reservations.Cost = descriptor.Cost{{Name: "input", Millionths: descriptor.WeightOne}, {Name: "output", Millionths: 4 * descriptor.WeightOne}}
	}
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable, weights), perMinute("plain", "", 100, reservable))
	units := func(pair string, amounts ...descriptor.Amount) limiter.Descriptor {
		return limiter.Descriptor{Entries: entries(pair), HasHits: true, Amounts: amounts}
	}
	f.reserve(1, limiter.OK, units("k=a", descriptor.Amount{Name: "input", Units: 20}, descriptor.Amount{Name: "output", Units: 5}))
	f.want(f.ask(0, "k=a"), limiter.OK, 60)
	f.reserve(2, limiter.OK, units("plain=a", descriptor.Amount{Name: "anything", Units: 20}), units("unknown=a", descriptor.Amount{Name: "x", Units: 1}))
	f.want(f.ask(0, "plain=a"), limiter.OK, 80)
	_, err := f.step(3, limiter.Reservation{Op: backend.OpReserve}, units("k=a", descriptor.Amount{Name: "outptu", Units: 5}))
	invalid, ok := errors.AsType[*limiter.InvalidError](err)
	if !ok || !strings.Contains(invalid.Message, `no weight for "outptu"; it has weights for input, output`) {
		t.Errorf("%v", err)
	}
	f.reserve(4, limiter.OverLimit, units("k=a", descriptor.Amount{Name: "output", Units: 1 << 63}))
}

// A rule without reservations is named; nothing is reserved under the others.
func TestRulesWithoutReservations(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", 100, reservable), perMinute("plain", "", 100))
	_, err := f.step(1, limiter.Reservation{Op: backend.OpReserve}, amount(1, "k=a"), amount(1, "plain=a"))
	if e, ok := errors.AsType[*limiter.NotReservableError](err); !ok || e.Descriptor != 1 || e.Rule != "d.plain" {
		t.Errorf("%v", err)
	}
	f.want(f.ask(0, "k=a"), limiter.OK, 100)
	own := amount(1, "k=a")
	own.HasLimit, own.Limit = true, limiter.RequestLimit{Requests: 5, Unit: 2}
	if _, err = f.step(1, limiter.Reservation{Op: backend.OpReserve}, own); err == nil || !strings.Contains(err.Error(), "brings along") {
		t.Errorf("%v", err)
	}
	d := f.reserve(1, limiter.OK, amount(1, "unknown=a"))
	if d.Reservations[0].Some {
		t.Errorf("%+v", d.Reservations)
	}
}

// A look changes nothing and tells whether one more hit would pass. A charge counts hits that have already passed, also
// over the limit.
func TestLookAndCharge(t *testing.T) {
	by := func(a descriptor.Algorithm) func(*descriptor.Rule) {
		return func(r *descriptor.Rule) { r.Limits[0].Algorithm, r.Limits[0].Burst = a, 3 }
	}
	nodes := []descriptor.NodeSpec{
		perMinute("k", "", 3), perMinute("held", "", 3, reservable), perMinute("sliding", "", 3, by(descriptor.SlidingWindow)),
		perMinute("log", "", 3, by(descriptor.SlidingLog)), perMinute("token", "", 3, by(descriptor.TokenBucket)),
		perMinute("leaky", "", 3, by(descriptor.LeakyBucket), func(r *descriptor.Rule) { r.Limits[0].Burst = 2 }),
		perMinute("two", "", 3, func(r *descriptor.Rule) {
			r.Limits = append(r.Limits, descriptor.Limit{Name: "hour", Requests: 9, Window: descriptor.Window{Unit: descriptor.Hour}})
		}),
	}
	f := newFixtureOn(t, overlimit.New(overlimit.Options{Store: memory.New(memory.Options{})}), limiter.Settings{}, nodes...)
	ask := func(p limiter.Purpose, hits uint32, pair string) *limiter.Decision {
		req := request(hits, pair)
		if req.Purpose = p; p == limiter.Settled {
			req.Reservation = &limiter.Reservation{Op: backend.OpCommit, Final: true, ChargeUnknown: true}
		}
		return f.decide(req)
	}
	for _, node := range nodes {
		pair := node.Key + "=a"
		for range 3 {
			if d := ask(limiter.Look, 1, pair); d.Code != limiter.OK || d.Statuses[0].Remaining != 3 {
				t.Errorf("%s: %+v", pair, d)
			}
		}
		ask(limiter.Settled, 2, pair)
		f.want(f.ask(0, pair), limiter.OK, 1)
		ask(limiter.Settled, 5, pair)
		if d := ask(limiter.Look, 1, pair); d.Code != limiter.OverLimit {
			t.Errorf("%s: %+v", pair, d)
		}
	}
	f.now = f.now.Add(time.Minute)
	f.want(f.ask(0, "two=a"), limiter.OK, 2) // the limit of the minute denied hits, and that of the hour counted all seven
}

// If the store could not make a reservation, on_error decides whether the request passes. Nothing is reserved then, and
// later operations get the error.
func TestReservationsWithoutTheStore(t *testing.T) {
	f := newFallback(t, all, limiter.Settings{OnError: descriptor.OnErrorAllow}, descriptor.DomainSpec{Children: []descriptor.NodeSpec{perMinute("k", "", 3, reservable)}})
	d := f.reserve(1, limiter.OK, amount(2, "k=a"))
	if d.Reservations[0].Some || d.Statuses[0].Degraded != descriptor.OnErrorAllow {
		t.Errorf("%+v", d)
	}
	for _, op := range []backend.ReservationOp{backend.OpCommit, backend.OpExtend} {
		if _, err := f.step(1, limiter.Reservation{Op: op, Final: true}, amount(2, "k=a")); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("%v", err)
		}
	}
}

// A late commit is counted once, however many limits it concerns; a late cancel or progress, or one in time, is not.
func TestLateCommitsAreCounted(t *testing.T) {
	twice := func(r *descriptor.Rule) {
		r.Limits = append(r.Limits, descriptor.Limit{Name: "hour", Requests: 100, Window: descriptor.Window{Unit: descriptor.Hour}})
	}
	m := newMeasured(t, 10, perMinute("k", "", 100, twice, reservable))
	step := func(id byte, at time.Duration, h limiter.Reservation, hits uint64) {
		t.Helper()
		h.ID[0] = id
		var d limiter.Decision
		req := &limiter.Request{Domain: "d", Reservation: &h, Descriptors: []limiter.Descriptor{amount(hits, "k=a"), amount(hits, "k=b")}}
		if err := m.Decide(t.Context(), noon.Add(at), req, &d); err != nil || d.Reservations[0].Result != limiter.ReservationDone || d.Code != limiter.OK {
			t.Fatalf("%v %+v", err, d)
		}
	}
	for id := range byte(3) {
		step(id, 0, limiter.Reservation{Op: limiter.Reserve, TTL: 10 * time.Second}, 10)
	}
	step(0, 9*time.Second, limiter.Reservation{Op: limiter.Commit, Final: true}, 5)
	step(1, 10*time.Second, limiter.Reservation{Op: limiter.Commit}, 6)
	step(1, 10*time.Second, limiter.Reservation{Op: limiter.Commit, Final: true}, 7)
	step(2, 11*time.Second, limiter.Reservation{Op: limiter.Commit, Final: true}, 0)
	for result, want := range map[string]float64{"reserved": 3, "committed": 2, "late": 1, "progress": 1, "cancelled": 1} {
		if n, _ := m.value("ratelimitd_reservations_total", "result="+result); n != want {
			t.Errorf("%s: %v, want %v", result, n, want)
		}
	}
}

// Descriptors of one counter reserve together. The sum of their smallest acceptable numbers exceeds 64 bits here.
func TestLeastOfManyDescriptorsDoesNotOverflow(t *testing.T) {
	const most = descriptor.MaxRequests
	f := newFixture(t, limiter.Settings{}, perMinute("k", "", most, reservable))
	all := make([]limiter.Descriptor, 2049)
	for i := range all {
		all[i] = amount(most+1, "k=a")
	}
	d, err := f.step(1, limiter.Reservation{Op: backend.OpReserve, Least: most}, all...)
	if err != nil || d.Code != limiter.OverLimit {
		t.Errorf("%v, %v: %d hits each are reserved, which accept no less than %d", d.Code, err, d.Reservations[0].Reserved, uint64(most))
	}
}
