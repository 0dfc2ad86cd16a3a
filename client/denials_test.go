package client

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/ratelimitd/ratelimitd/internal/rapidtest"
	"github.com/ratelimitd/ratelimitd/limits"
)

// A denial holds until its end, and one request a second is sent all the same.
func TestDenials(t *testing.T) {
	d := newDenials(100)
	now := time.Unix(1_800_000_000, 0)
	key := appendKey(nil, limits.New("api", "customer", "a"))
	refused := limits.Decision{
		RetryAfter: 2500 * time.Millisecond,
		Statuses:   []limits.Status{{Limit: 5, ResetAfter: 3 * time.Second, RetryAfter: 2500 * time.Millisecond}},
	}
	find := func(after time.Duration) (limits.Decision, bool) { return d.find(key, now.Add(after)) }
	if _, denied := find(0); denied {
		t.Error("it is refused before the service was asked")
	}
	d.learn(string(key), now, &refused)
	got, denied := find(400 * time.Millisecond)
	if want := 2100 * time.Millisecond; !denied || got.Source != limits.DenialCache || got.RetryAfter != want || got.Statuses[0].RetryAfter != want ||
		got.Statuses[0].ResetAfter != 2600*time.Millisecond || got.Statuses[0].Limit != 5 {
		t.Errorf("%+v %v", got, denied)
	}
	if refused.Statuses[0].ResetAfter != 3*time.Second {
		t.Error("the answer was changed")
	}
	if _, denied = find(time.Second); denied {
		t.Error("nobody asks again after a second")
	}
	if _, denied = find(time.Second); !denied {
		t.Error("a second one asks too")
	}
	d.learn(string(key), now.Add(1100*time.Millisecond), &limits.Decision{Allowed: true})
	if _, denied = find(1200 * time.Millisecond); denied {
		t.Error("it is refused after it was allowed")
	}
	d.learn(string(key), now, &refused)
	if _, denied = find(2500 * time.Millisecond); denied {
		t.Error("it is refused after its time")
	}
	for _, no := range []limits.Decision{
		{Source: limits.OnError, RetryAfter: time.Hour}, {Source: limits.FailClosed, RetryAfter: time.Hour}, {},
	} {
		d.learn(string(key), now, &no)
		if _, denied = find(time.Millisecond); denied {
			t.Errorf("%+v is remembered", no)
		}
	}
	d.learn(string(key), now, &limits.Decision{RetryAfter: limits.Never})
	if got, denied = find(time.Millisecond); !denied || got.RetryAfter != limits.Never {
		t.Errorf("%+v %v", got, denied)
	}
	if _, denied = find(time.Second); denied {
		t.Error("what never passes is not asked again after a second")
	}
}

// There are never more denials than the bound, and those that have ended go first.
func TestDenialsAreBounded(t *testing.T) {
	d := newDenials(160)
	now := time.Unix(1_800_000_000, 0)
	for i := range 10_000 {
		d.learn(fmt.Sprint("key", i), now, &limits.Decision{RetryAfter: time.Hour})
	}
	n := 0
	for i := range d.shard {
		n += len(d.shard[i].denied)
	}
	if n > 160 || n < 150 {
		t.Errorf("%d denials", n)
	}
	for i := range 10_000 {
		d.learn(fmt.Sprint("new", i), now.Add(2*time.Hour), &limits.Decision{RetryAfter: time.Hour})
	}
	for i := range d.shard {
		for key, known := range d.shard[i].denied {
			if known.since.Equal(now) {
				t.Errorf("%s has ended, and is remembered", key)
			}
		}
	}
}

// Different requests have different keys, whatever bytes they consist of.
func TestKeysOfRequests(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "a", "ab", "b", "\x00", "\x01a", "a\x01"})
	amount := rapid.Custom(func(t *rapid.T) limits.Amount {
		a := limits.Amount{Hits: rapid.Uint64Range(0, 2).Draw(t, "hits")}
		if rapid.Bool().Draw(t, "units") {
			a.Units = rapid.MapOf(text, rapid.Uint64Range(0, 2)).Draw(t, "map")
		}
		return a
	})
	request := rapid.Custom(func(t *rapid.T) *limits.Request {
		r := &limits.Request{Domain: text.Draw(t, "domain"), Amount: amount.Draw(t, "amount")}
		for range rapid.IntRange(0, 2).Draw(t, "descriptors") {
			d := limits.Descriptor{}
			for range rapid.IntRange(0, 2).Draw(t, "entries") {
				d.Entries = append(d.Entries, limits.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
			}
			if rapid.Bool().Draw(t, "own") {
				a := amount.Draw(t, "its amount")
				d.Amount = &a
			}
			r.Descriptors = append(r.Descriptors, d)
		}
		return r
	})
	describe := func(r *limits.Request) string {
		s := fmt.Sprintf("%q %d %v %d", r.Domain, r.Amount.Hits, r.Amount.Units, len(r.Descriptors))
		for _, d := range r.Descriptors {
			s += fmt.Sprintf(" %q", d.Entries)
			if d.Amount != nil {
				s += fmt.Sprintf(" %d %q", d.Amount.Hits, fmt.Sprint(d.Amount.Units))
			}
		}
		return s
	}
	rapid.Check(t, func(t *rapid.T) {
		x, y := request.Draw(t, "x"), request.Draw(t, "y")
		same := string(appendKey(nil, x)) == string(appendKey(nil, y))
		if same && describe(x) != describe(y) {
			t.Fatalf("%s and %s share a key", describe(x), describe(y))
		}
		if !same && describe(x) == describe(y) {
			t.Fatalf("%s has two keys", describe(x))
		}
	})
}
