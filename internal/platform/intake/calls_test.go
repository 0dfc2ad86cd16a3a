package intake

import (
	"testing"
	"time"
)

// conn returns a connection of a peer that was not accepted by a listener.
func conn(l *Listener, p *peer) *Conn { return &Conn{listener: l, peer: p} }

func TestShareOfCalls(t *testing.T) {
	m, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	const most = 900
	l := &Listener{}
	calls := NewCalls(most, m)
	flood := func(c *Conn) (all []InFlight) {
		for {
			call, ok := calls.Begin(c)
			if !ok {
				return all
			}
			all = append(all, call)
		}
	}
	p := &peer{}
	one := conn(l, p)
	all := flood(one)
	if n := len(all); n < most*8/17-2 || n > most*8/17+2 {
		t.Errorf("one connection has %d calls of %d", n, most)
	}
	for range 100 { // a new connection may always have some calls, until each share is less than one
		if c := conn(l, &peer{}); len(flood(c)) == 0 && calls.InFlight() < most {
			t.Fatalf("a new connection gets nothing with %d calls in flight", calls.InFlight())
		}
	}
	if n := calls.InFlight(); n > most {
		t.Errorf("%d calls in flight", n)
	}
	for _, call := range all {
		calls.End(call)
	}
	if n := one.calls.Load() + p.calls.Load() + one.await[0].Load(); n != 0 {
		t.Errorf("%d calls are left", n)
	}

	// A peer with very many connections leaves some calls to other peers.
	calls = NewCalls(most, m)
	for range 10 * most {
		_, _ = calls.Begin(conn(l, p))
	}
	if n := calls.InFlight(); n < most*8/9-8 || n > most*8/9+8 {
		t.Errorf("one peer has %d calls of %d", n, most)
	}

	// Eight connections with as many calls as possible leave some to a ninth, of the same peer or another.
	for _, other := range []*peer{p, {}} {
		p.calls.Store(0)
		calls = NewCalls(most, m)
		for range 8 {
			flood(conn(l, p))
		}
		if n := len(flood(conn(l, other))); n < 1 {
			t.Errorf("next to eight connections a ninth has no call of %d", most)
		}
	}
}

func TestMessagesThatAreMissing(t *testing.T) {
	m, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	calls := NewCalls(10, m)
	c := conn(&Listener{}, &peer{})
	begin := func() InFlight {
		call, ok := calls.Begin(c)
		if !ok {
			t.Fatal("rejected")
		}
		return call
	}
	slow := begin()
	if c.turn() {
		t.Error("a call that has just begun is late")
	}
	quick := begin()
	if !c.turn() {
		t.Error("a call without a message for a whole period is not late")
	}
	calls.Arrived(&slow, time.Now())
	if c.turn() {
		t.Error("late, though the message arrived")
	}
	calls.End(quick) // without a message: its client has given up
	calls.End(slow)
	for range 2 {
		if c.turn() {
			t.Error("late without a call")
		}
	}
}

// A call that counts as several uses their share of the bounds, and returns all of it.
func TestCallsThatCountAsMore(t *testing.T) {
	m, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	const most = 90
	p := &peer{}
	calls, one := NewCalls(most, m), conn(&Listener{}, p)
	begin := func(c *Conn) InFlight {
		call, ok := calls.Begin(c)
		if !ok {
			t.Fatal("rejected")
		}
		return call
	}
	first, second := begin(one), begin(conn(one.listener, &peer{}))
	if calls.More(&first, most/2) || calls.InFlight() != 2 || one.calls.Load() != 1 {
		t.Errorf("one connection gets more than half: %d calls in flight", calls.InFlight())
	}
	if !calls.More(&first, most/2-6) || !calls.More(&first, 0) || calls.InFlight() != most/2-4 {
		t.Errorf("%d calls in flight", calls.InFlight())
	}
	if calls.More(&second, most/2) || calls.InFlight() != most/2-4 {
		t.Errorf("more than there are: %d calls in flight", calls.InFlight())
	}
	calls.End(first)
	calls.End(second)
	if n := calls.InFlight() + one.calls.Load() + p.calls.Load(); n != 0 {
		t.Errorf("%d calls are left", n)
	}
}
