package limiter_test

import (
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// inFlight is a rule of a number of places, which are free again after a minute.
func inFlight(key string, places uint64, change ...func(*descriptor.Rule)) descriptor.NodeSpec {
	n := perMinute(key, "", places, change...)
	l := &n.Rule.Limits[0]
	l.Algorithm = descriptor.Concurrency
	if err := l.Compile(); err != nil {
		panic(err)
	}
	return n
}

// A request takes a place and gives it back. The answer describes places, not a rate.
func TestPlaces(t *testing.T) {
	f := newFixture(t, limiter.Settings{Headers: descriptor.HeadersIETF | descriptor.HeadersRetryAfter | descriptor.HeadersDraft03}, inFlight("k", 2))
	f.ask(1, "k=a")
	d := f.decide(&limiter.Request{Domain: "d", Descriptors: []limiter.Descriptor{amount(1, "k=a")}})
	f.want(d.Statuses[0], limiter.OK, 0)
	if l := d.Statuses[0].Limit; l.Requests != 2 || l.Unit != descriptor.UnitUnknown {
		t.Errorf("the limit in the answer: %+v", l)
	}
	for _, h := range []limiter.Header{
		{Key: "RateLimit-Policy", Value: `"in-flight";q=2;qu="concurrent-requests"`},
		{Key: "RateLimit", Value: `"in-flight";r=0;t=60`},
		{Key: "X-RateLimit-Limit", Value: "2, 2"},
	} {
		if !slices.Contains(d.Headers, h) {
			t.Errorf("no header %+v in %+v", h, d.Headers)
		}
	}
	denied := f.ask(1, "k=a")
	f.want(denied, limiter.OverLimit, 0)
	if denied.RetryAfter != time.Minute {
		t.Errorf("%+v", denied)
	}
	f.want(f.ask(-1, "k=a"), limiter.OK, 1)
	f.want(f.ask(1, "k=a"), limiter.OK, 0)
	f.now = f.now.Add(time.Minute)
	f.want(f.ask(1, "k=a"), limiter.OK, 1)
}

// A reservation of any amount takes one place, and its end gives that place back, however much it used. So one rule can
// bound both the tokens and the requests in flight.
func TestReservationTakesOnePlace(t *testing.T) {
	both := perMinute("k", "", 1000, reservable)
	places := inFlight("x", 2).Rule.Limits[0]
	both.Rule.Limits[0].Name, places.Name = "tokens", "places"
	both.Rule.Limits = append(both.Rule.Limits, places)
	f := newFixture(t, limiter.Settings{}, both)
	f.reserve(1, limiter.OK, amount(300, "k=a"))
	if d := f.reserve(2, limiter.OK, amount(300, "k=a")); d.Reservations[0].Reserved != 300 {
		t.Errorf("%+v", d.Reservations)
	}
	d := f.reserve(3, limiter.OverLimit, amount(1, "k=a"))
	if d.Statuses[0].Limit.Name != "places" {
		t.Errorf("denied by %+v", d.Statuses[0].Limit)
	}
	commit := func(id byte, hits uint64, want backend.ReservationResult) {
		t.Helper()
		if d, err := f.step(id, limiter.Reservation{Op: backend.OpCommit, Final: true}, amount(hits, "k=a")); err != nil || d.Reservations[0].Result != want {
			t.Errorf("commit of %d for %d: %+v %v", hits, id, d.Reservations, err)
		}
	}
	commit(1, 250, backend.ReservationDone)
	commit(1, 250, backend.ReservationUnknown) // repeated: it gives no other place back
	f.reserve(4, limiter.OK, amount(1, "k=a"))
	f.reserve(5, limiter.OverLimit, amount(1, "k=a"))
	commit(2, 0, backend.ReservationDone)
	f.reserve(6, limiter.OK, amount(700, "k=a")) // 250 and 1 are used of 1000
}

// With an id, a request that was denied gives nobody's place back, and a lost place is free when its time is over,
// however busy the counter is.
func TestPlacesByID(t *testing.T) {
	f := newFixture(t, limiter.Settings{}, inFlight("k", 2))
	take := func(id string, want limiter.Code) {
		t.Helper()
		if s := f.ask(1, "k=a", "reserve_id="+id); s.Code != want {
			t.Errorf("%s at %v: %v, want %v", id, f.now.Sub(noon), s.Code, want)
		}
	}
	end := func(id string) { f.ask(1, "k=a", "commit_id="+id) }
	take("lost", limiter.OK)
	for i := range 11 {
		f.now = noon.Add(time.Duration(i) * 5 * time.Second)
		take("busy", limiter.OK)
		take("denied", limiter.OverLimit)
		end("denied")
		take("denied again", limiter.OverLimit)
		end("busy")
		end("busy") // once more: nothing
	}
	f.now = noon.Add(time.Minute)
	take("a", limiter.OK)
	take("b", limiter.OK)
	take("c", limiter.OverLimit)
}
