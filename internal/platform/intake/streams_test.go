package intake

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

func TestShareOfStreams(t *testing.T) {
	const most = 900
	l := &Listener{}
	streams := NewStreams(most)
	open := func(c *Conn) (n int, why Rejection) {
		for ; ; n++ {
			if why = streams.Begin(c); why != "" {
				return n, why
			}
		}
	}
	p := &peer{}
	one := conn(l, p)
	n, why := open(one)
	if n < most*8/17-2 || n > most*8/17+2 || why == OverAll {
		t.Errorf("one connection has %d streams of %d, and is over the bound %q", n, most, why)
	}
	for range n {
		streams.End(one)
	}
	if n := streams.Open() + one.streams.Load() + p.streams.Load(); n != 0 {
		t.Errorf("%d streams are left", n)
	}

	// A peer with very many connections leaves some streams to other peers.
	for range 10 * most {
		why = streams.Begin(conn(l, p))
	}
	if n := streams.Open(); n < most*8/9-8 || n > most*8/9+8 || why != OverPeer {
		t.Errorf("one peer has %d streams of %d, and is over the bound %q", n, most, why)
	}
	if why := streams.Begin(conn(l, &peer{})); why != "" {
		t.Errorf("another peer is over the bound %q", why)
	}
	for streams.Begin(nil) == "" { // without a connection, only the bound of all holds
	}
	if n := streams.Open(); n != most {
		t.Errorf("%d streams of %d", n, most)
	}
}

// A connection with a stream is in use.
func TestConnectionWithAStream(t *testing.T) {
	l := &Listener{options: Options{FirstCall: time.Second}}
	c := conn(l, &peer{})
	streams := NewStreams(1)
	streams.Begin(c)
	now := clock() + int64(time.Hour)
	if c.idle(now) || c.late(now, &l.options) != inTime {
		t.Error("it counts as not in use")
	}
	streams.End(c)
	if !c.idle(now) {
		t.Error("it is in use after its last stream")
	}
}

// A connection that exceeds its bound is closed and counted once, however much it returns later.
func TestConnectionOverItsBytesIsCountedOnce(t *testing.T) {
	r := listen(t, Options{Bytes: NewBytes(100, NewBudget(1<<20).Class("test", 0))})
	client, c := r.in(t, "127.0.0.1")
	for _, n := range []int64{200, 200, -50, -350} {
		c.Hold(n)
	}
	closed(t, client)
	var m dto.Metric
	if err := r.metrics.closed[tooManyBytes].Write(&m); err != nil || m.GetCounter().GetValue() != 1 {
		t.Errorf("it is counted %v times, %v", m.GetCounter().GetValue(), err)
	}
}
