package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// released records the lines that an order releases, with the fields that they were added with.
type released struct {
	at    []int64
	texts []string
}

func (r *released) take(recs []record, text []byte) error {
	fields, hits := make([]string, 2), make([]uint64, 1)
	s := string(text)
	for _, rec := range recs {
		readFields(s[rec.from:], fields, hits)
		r.at = append(r.at, rec.at)
		r.texts = append(r.texts, fmt.Sprintf("%d %s%s%d", rec.line, fields[0], fields[1], hits[0]))
	}
	return nil
}

func add(t *testing.T, o *order, line int, at time.Duration) {
	t.Helper()
	const epoch = 1_700_000_000_000_000
	r := record{at: epoch + at.Microseconds(), seq: int64(line), line: line}
	if err := o.add(r, [][]byte{fmt.Append(nil, "a", line), nil}, []uint64{uint64(line) << 20}); err != nil {
		t.Fatal(err)
	}
}

// Lines that are displaced by less than the window come out in the order of time. Lines with the same time come out in
// the order of the log. No line is lost.
func TestOrderWithinWindow(t *testing.T) {
	for _, spread := range []time.Duration{0, time.Millisecond, time.Second, 5 * time.Second} {
		var got released
		o := newOrder((5 * time.Second).Microseconds(), got.take)
		random := rand.New(rand.NewPCG(1, 2))
		const lines = 20_000
		type line struct {
			number int
			at     time.Duration
		}
		var want []line
		for i := range lines {
			at := time.Duration(i)*time.Millisecond/2 + time.Minute - time.Duration(random.Int64N(int64(spread)+1)).Truncate(100*time.Microsecond)
			if i > lines/2 {
				at += time.Hour // a gap that is longer than the window
			}
			want = append(want, line{i, at})
			add(t, o, i, at)
		}
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
		slices.SortStableFunc(want, func(a, b line) int { return int(a.at - b.at) })
		if len(got.texts) != lines || o.late.Lines != 0 || (o.reordered > 0) != (spread > 0) {
			t.Fatalf("spread by %s: %d lines, %d reordered, %d late", spread, len(got.texts), o.reordered, o.late.Lines)
		}
		for i, w := range want {
			if got.texts[i] != fmt.Sprintf("%d a%d%d", w.number, w.number, w.number<<20) {
				t.Fatalf("spread by %s: place %d has %s, want line %d", spread, i, got.texts[i], w.number)
			}
		}
	}
}

// Lines older than the window are counted, and time does not go back for them.
func TestOrderLate(t *testing.T) {
	for _, window := range []time.Duration{0, time.Second} {
		var got released
		o := newOrder(window.Microseconds(), got.take)
		for i, at := range []time.Duration{time.Minute, 0, time.Minute, 30 * time.Second, 2 * time.Minute, time.Minute} {
			add(t, o, i+1, at)
		}
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
		if len(got.at) != 6 || !slices.IsSorted(got.at) {
			t.Errorf("window %s: %v", window, got.at)
		}
		most := time.Duration(o.late.Most) * time.Microsecond
		if o.late.Lines != 3 || o.late.Number != 2 || most > time.Minute || most < time.Minute-window-window/32 {
			t.Errorf("window %s: %+v, by %s", window, o.late, most)
		}
	}
}

// A burst that cannot be held is released early, in order as far as it is there.
func TestOrderIsBounded(t *testing.T) {
	for _, c := range []struct {
		lines, text int
		step        time.Duration
	}{{1000, 1 << 30, time.Microsecond}, {1 << 20, 4000, time.Microsecond}, {1000, 1 << 30, time.Millisecond}, {1000, 1 << 30, 0}} {
		var got released
		o := newOrder(time.Hour.Microseconds(), got.take)
		o.maxHeld, o.maxText = c.lines, c.text
		for i := range 20_000 {
			add(t, o, i, time.Duration(i)*c.step)
			if o.held > c.lines || o.text > c.text {
				t.Fatalf("%d lines and %d bytes are held", o.held, o.text)
			}
		}
		add(t, o, 20_000, 0)
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
		late := int64(1)
		if c.step == 0 {
			late = 0
		}
		if len(got.at) != 20_001 || !slices.IsSorted(got.at) || o.shortened == 0 || o.late.Lines != late || o.held != 0 || o.text != 0 {
			t.Errorf("%+v: %d lines, shortened %d times, %+v, %d lines and %d bytes left", c, len(got.at), o.shortened, o.late, o.held, o.text)
		}
	}
}

func TestCustomersAreBounded(t *testing.T) {
	c := newCustomers(100)
	random := rand.New(rand.NewPCG(5, 6))
	truth := make(map[string]int64)
	requests := int64(0)
	ask := func(name string, denied bool) {
		r := c.row([]byte(name))
		r.requests++
		requests++
		truth[name]++
		if denied {
			r.denied++
		}
		if len(c.rows) > 100 {
			t.Fatalf("%d rows", len(c.rows))
		}
	}
	for i := range 50_000 {
		ask(fmt.Sprint("once", i), false)
		if i%10 == 0 {
			ask(fmt.Sprint("often", random.IntN(5)), false)
		}
		if i%1000 == 0 {
			ask("denied", true)
		}
	}
	sum := c.others.requests
	for _, r := range c.rows {
		sum += r.requests
		if got, want := r.requests, truth[r.name]; got > want || got+r.missed < want {
			t.Errorf("%s has %d requests, of which %d may be missing; it asked %d times", r.name, got, r.missed, want)
		}
	}
	if sum != requests || c.dropped == 0 {
		t.Errorf("%d of %d requests are in the rows, %d rows were dropped", sum, requests, c.dropped)
	}
	// Who was denied is never dropped as long as there are fewer of them than half of the rows.
	top := c.sorted()
	if top[0].name != "denied" || top[0].denied != 50 || top[0].requests != 50 {
		t.Errorf("%+v", top[0])
	}
	for i := 1; i <= 5; i++ {
		if top[i].requests < 900 {
			t.Errorf("place %d: %+v", i, top[i])
		}
	}
}

func TestLongCustomersStayDistinct(t *testing.T) {
	long := func(end byte) []byte { return append(slices.Repeat([]byte("é"), 500), end) }
	a, b := shortName(long('a')), shortName(long('b'))
	if a == b || len(a) > maxCustomer+30 || a != shortName(long('a')) {
		t.Errorf("%s and %s", a, b)
	}
}

// Counts are exact for as many limits as are kept. Beyond that, every limit that denied more than one in maxBlamed is
// there, and no count that is reported is too large.
func TestBlame(t *testing.T) {
	for _, limits := range []int{maxBlamed, 10 * maxBlamed} {
		var b blame
		counts := make(map[denial]int64)
		random := rand.New(rand.NewPCG(3, 4))
		deny := func(r denial) {
			b.add([]denial{r})
			counts[r]++
		}
		const heavy = 1 << 20
		for range 10_000 {
			deny(denial{rule: int32(random.IntN(limits - 1))})
			if random.IntN(4) == 0 {
				deny(denial{rule: heavy, limit: 1})
			}
		}
		if len(b) > maxBlamed {
			t.Errorf("%d limits are kept", len(b))
		}
		found := false
		for _, x := range b {
			found = found || x.denial == denial{rule: heavy, limit: 1}
			if certain := x.count - x.inherited; certain > counts[x.denial] || x.count < counts[x.denial] || limits == maxBlamed && x.inherited > 0 {
				t.Errorf("%+v: counted %d to %d times, denied %d times", x.denial, certain, x.count, counts[x.denial])
			}
		}
		if !found {
			t.Errorf("of %d limits the one that denies most is lost", limits)
		}
	}
}
