package intake

import (
	"net"
	"sync"
	"testing"
)

// A class may use its reserve and the common free bytes. No other class can use up its reserve.
func TestBudget(t *testing.T) {
	b := NewBudget(100)
	one, other := b.Class("one", 30), b.Class("other", 20)
	fixed := b.Counted("fixed", 10, func() int64 { return 7 })
	check := func(step string, held, free, othersFree int64) {
		t.Helper()
		if one.Held() != held || one.Free() != free || other.Free() != othersFree {
			t.Errorf("%s: %d held, %d free, %d free for the other; want %d, %d, %d", step, one.Held(), one.Free(), other.Free(), held, free, othersFree)
		}
	}
	check("at first", 0, 70, 60)
	if !one.Take(50) {
		t.Error("50 of 70 are rejected")
	}
	check("with a part of the common bytes", 50, 20, 40)
	if one.Take(21) {
		t.Error("21 of 20 are taken")
	}
	check("after a rejection", 50, 20, 40)
	if !one.Take(20) || one.Take(1) {
		t.Error("what is left is not 20")
	}
	check("with all common bytes", 70, 0, 20)
	if !other.Take(20) || other.Take(1) {
		t.Error("the other class has not its reserve")
	}
	one.Add(10) // is there already
	check("with too much", 80, -10, 0)
	one.Add(-60)
	check("with less than its reserve", 20, 40+10, 40)
	if got := b.Held(); got != 20+20+7 || fixed.Held() != 7 {
		t.Errorf("%d bytes are held in all", got)
	}
}

func TestBudgetIsNotExceededConcurrently(t *testing.T) {
	b := NewBudget(1_000)
	classes := []*Class{b.Class("a", 100), b.Class("b", 300)}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			c := classes[i%2]
			for n := range int64(2_000) {
				if c.Take(n % 90) {
					if held := b.Held(); held > 1_000+8*90 { // others may still hold bytes whose Take is being rejected
						t.Errorf("%d bytes are held", held)
					}
					c.Add(-(n % 90))
				}
			}
		})
	}
	all.Wait()
	if b.Held() != 0 || classes[0].Free() != 700 || classes[1].Free() != 900 {
		t.Errorf("%d held; %d and %d free", b.Held(), classes[0].Free(), classes[1].Free())
	}
}

// When the class is full, a connection with much memory is closed, and never one with little. Its memory counts until
// the transport returns it.
func TestConnectionThatHoldsMostIsClosed(t *testing.T) {
	m, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	class := NewBudget(1<<20).Class("test", 0)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(raw, Options{Bytes: NewBytes(1<<30, class), Metrics: m})
	defer func() { _ = l.Close() }()
	conn := func() *Conn {
		raw, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		c, _ := l.admit(raw)
		return c
	}
	small, large, larger := conn(), conn(), conn()
	if !small.Hold(1_000) || !large.Hold(300_000) || !larger.Hold(700_000) {
		t.Fatal("there was room")
	}
	if !small.Hold(60_000) {
		t.Error("the connection with few bytes is closed")
	}
	if !larger.IsCut() || large.IsCut() || small.IsCut() {
		t.Errorf("closed: %v, %v, %v; want only the last", small.IsCut(), large.IsCut(), larger.IsCut())
	}
	if got := class.Held(); got != 1_061_000 {
		t.Errorf("%d bytes are held", got)
	}
	larger.Hold(-700_000)
	if got := class.Held(); got != 361_000 {
		t.Errorf("%d bytes are held when it has given back what it held", got)
	}
	if large.HasRoom(1<<20-361_000+1) || !large.HasRoom(1<<20-361_000) {
		t.Error("there is room for more or less than is free")
	}
	for _, c := range []*Conn{small, large} {
		_ = c.Close()
	}
	small.Hold(-61_000)
	large.Hold(-300_000)
	if got := class.Held(); got != 0 {
		t.Errorf("%d bytes are held in the end", got)
	}
}
