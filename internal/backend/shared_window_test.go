package backend_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// sharedModel is a shared window as the documentation defines it. For each class it keeps the hits still owed to it,
// which fall with time and with its hits; the code keeps gone instead. It finds times by trying them.
type sharedModel struct {
	limit   int64
	percent []int64
	length  int64

	window int64
	used   int64
	owed   []int64
}

func (m *sharedModel) clone() *sharedModel {
	c := *m
	c.owed = append([]int64(nil), m.owed...)
	return &c
}

// at lets time pass.
func (m *sharedModel) at(now int64) {
	if w := now / m.length; w != m.window || m.owed == nil {
		m.window, m.used, m.owed = w, 0, make([]int64, len(m.percent))
		for i, p := range m.percent {
			m.owed[i] = p * m.limit / 100
		}
	}
	step := (m.length + 8191) / 8192
	steps := (m.length - 1) / step
	left := steps - (now-m.window*m.length)/step
	for i, p := range m.percent {
		m.owed[i] = min(m.owed[i], p*m.limit*left/(100*steps))
	}
}

func (m *sharedModel) kept(class int) (sum int64) {
	for i, owed := range m.owed {
		if i+1 != class {
			sum += owed
		}
	}
	return sum
}

func (m *sharedModel) fits(class int, hits int64) bool { return m.used+hits+m.kept(class) <= m.limit }

// take adds hits of a class if they fit.
func (m *sharedModel) take(class int, hits int64) bool {
	if !m.fits(class, hits) {
		return false
	}
	m.used += hits
	if class > 0 {
		m.owed[class-1] = max(0, m.owed[class-1]-hits)
	}
	return true
}

// wait is how long it takes until denied hits pass.
func (m *sharedModel) wait(now int64, class int, hits int64) time.Duration {
	if hits > m.limit {
		return backend.Never
	}
	return m.until(now, func(c *sharedModel) bool { return c.fits(class, hits) })
}

// more is how long it takes until more hits fit than now.
func (m *sharedModel) more(now int64, class int) time.Duration {
	most := m.used + m.kept(class)
	return m.until(now, func(c *sharedModel) bool { return c.used+c.kept(class) < most })
}

// until is how long it takes until something is true of the model, without other hits.
func (m *sharedModel) until(now int64, is func(*sharedModel) bool) time.Duration {
	passes := func(after int64) bool {
		c := m.clone()
		c.at(now + after)
		return is(c)
	}
	end := (m.window+1)*m.length - now
	low, high := int64(0), end // it is true in the last step of this window, or of the next one
	if !passes(end - 1) {
		if low, high = end-1, end; !passes(end) {
			low, high = end, end+m.length-1
		}
	}
	for high-low > 1 {
		if middle := (low + high) / 2; passes(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return time.Duration(high) * time.Microsecond
}

// A million random takes of up to six classes have the outcomes of the model, and never more than the limit is used.
func TestSharedWindowIsTheModel(t *testing.T) {
	racetest.Sequential(t)
	r := rand.New(rand.NewPCG(39, 2))
	denied, kept, steps := 0, 0, 1_000_000
	for done := 0; done < steps; {
		l := &descriptor.Limit{
			Algorithm: descriptor.SharedWindow, Requests: []uint64{1, 3, 10, 97, 1000, 123_456, 1<<32 - 1}[r.IntN(7)],
			Window: descriptor.Window{Unit: []descriptor.Unit{descriptor.Millisecond, descriptor.Second, descriptor.Minute, descriptor.Day, descriptor.Year}[r.IntN(5)]},
		}
		m := &sharedModel{limit: int64(l.Requests), length: l.Window.Length().Microseconds()}
		for left, n := 100, 1+r.IntN(descriptor.MaxClasses); n > 0 && left > 0; n-- {
			p := 1 + r.IntN(left)
			l.Classes.Percent[len(m.percent)] = uint8(p)
			m.percent, left = append(m.percent, int64(p)), left-p
		}
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		var s backend.State
		now := 1_800_000_000_000_000 + r.Int64N(m.length)
		for range 500 {
			done++
			now += []int64{0, 1, r.Int64N(m.length/20 + 1), r.Int64N(m.length/3 + 1)}[r.IntN(4)]
			m.at(now)
			class := r.IntN(len(m.percent) + 1)
			hits := []int64{1, 1 + r.Int64N(m.limit), 1 + r.Int64N(m.limit/10+1), m.limit - m.used - m.kept(class), m.limit - m.used - m.kept(class) + 1}[r.IntN(5)]
			if hits <= 0 {
				continue
			}
			of := *l
			of.Classes.Class = uint8(class)
			o := settleShared(&of, &s, now, hits)
			before := m.kept(class)
			if allowed := m.take(class, hits); o.Allowed != allowed || o.Used != m.used || o.Kept != before || m.used > m.limit {
				t.Fatalf("%d hits of class %d at %d under %+v: %+v, the model: %v, %d used, %d kept", hits, class, now, of, o, allowed, m.used, before)
			}
			if before > 0 {
				kept++
			}
			if done%10 == 0 && m.used+m.kept(class) > 0 {
				if more := m.more(now, class); o.MoreAfter != more {
					t.Fatalf("%d hits of class %d at %d under %+v: more fit in %v, the model: %v", hits, class, now, of, o.MoreAfter, more)
				}
			}
			if !o.Allowed {
				denied++
				if wait := m.wait(now, class, hits); o.RetryAfter != wait {
					t.Fatalf("%d hits of class %d at %d under %+v: they wait %v, the model: %v", hits, class, now, of, o.RetryAfter, wait)
				}
			}
		}
	}
	if denied < steps/10 || kept < steps/10 {
		t.Errorf("of %d takes %d are denied, and hits are kept at %d: too few", steps, denied, kept)
	}
}

func settleShared(l *descriptor.Limit, s *backend.State, now, hits int64) backend.Outcome {
	var out [1]backend.Outcome
	backend.Settle([]backend.Take{{Limit: l, Hits: hits}}, []*backend.State{s}, out[:], backend.At(now))
	return out[0]
}

// A class that asks evenly gets its guarantee, regardless of how much the other classes ask for, and when. A simpler
// formula would not achieve this: G x rest of the window, minus the hits that the class has used, keeps nothing from
// the middle of the window on.
func TestSharedWindowGuaranteesAnEvenDemand(t *testing.T) {
	racetest.Sequential(t)
	r := rand.New(rand.NewPCG(39, 3))
	for range 300 {
		l := descriptor.Limit{Algorithm: descriptor.SharedWindow, Requests: uint64(50 + r.IntN(2000)), Window: descriptor.Window{Unit: descriptor.Minute}}
		n := 2 + r.IntN(descriptor.MaxClasses-1)
		for i := range n {
			l.Classes.Percent[i] = uint8(100 / n)
		}
		if err := l.Compile(); err != nil {
			t.Fatal(err)
		}
		var s backend.State
		const start, length, slots = 1_800_000_000_000_000, 60_000_000, 4000
		guaranteed := int64(l.Requests) * int64(l.Classes.Percent[0]) / 100
		greedy := r.IntN(slots) // slot from which on the other classes ask for everything
		even, used := int64(0), int64(0)
		for slot := range int64(slots) {
			now := start + slot*length/slots
			// Ask for the hits that are due until the end of the next slot, which is two steps of the window: time passes in
			// steps.
			for due := min(guaranteed, (guaranteed*(slot+2)+slots-1)/slots); even < due; even++ {
				of := l
				of.Classes.Class = 1
				if o := settleShared(&of, &s, now, 1); !o.Allowed {
					t.Fatalf("%+v: denied at %d of %d although it has %d of %d: %+v", l, slot, slots, even, guaranteed, o)
				}
			}
			for range 3 {
				of := l
				of.Classes.Class = uint8([]int{0, 2 + r.IntN(n-1)}[r.IntN(2)])
				if slot >= int64(greedy) || r.IntN(8) == 0 {
					settleShared(&of, &s, now, 1+r.Int64N(int64(l.Requests)/4))
					settleShared(&of, &s, now, 1)
				}
			}
			used = s.Count
		}
		if even != guaranteed || used > int64(l.Requests) {
			t.Fatalf("%+v: %d of %d, %d used", l, even, guaranteed, used)
		}
	}
}

// Everyone can use hits that no other class asks for: at the end of the window all of them, and in the middle those
// that are not due any more.
func TestSharedWindowLends(t *testing.T) {
	l := descriptor.Limit{Algorithm: descriptor.SharedWindow, Requests: 1000, Window: descriptor.Window{Unit: descriptor.Minute}}
	l.Classes.Percent = [descriptor.MaxClasses]uint8{20, 30}
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	const start = 1_800_000_000_000_000
	var s backend.State
	took := func(now int64) (n int) {
		for settleShared(&l, &s, now, 1).Allowed {
			n++
		}
		return n
	}
	if n := took(start); n != 500 {
		t.Errorf("at the beginning %d of 1000, want the half that is guaranteed to nobody", n)
	}
	if n := took(start + 30_000_000); n < 249 || n > 251 {
		t.Errorf("in the middle %d more, want half of the other half", n)
	}
	if took(start + 59_999_999); s.Count != 1000 {
		t.Errorf("%d of 1000 at the end", s.Count)
	}
}

// A higher limit in the middle of a window raises the guarantees. Classes with other names start with their whole
// guarantee.
func TestSharedWindowChanges(t *testing.T) {
	l := descriptor.Limit{Algorithm: descriptor.SharedWindow, Requests: 100, Window: descriptor.Window{Unit: descriptor.Minute}}
	l.Classes.Percent, l.Classes.Class = [descriptor.MaxClasses]uint8{20}, 1
	if err := l.Compile(); err != nil {
		t.Fatal(err)
	}
	const start = 1_800_000_000_000_000
	var s backend.State
	settleShared(&l, &s, start, 20)
	other := l
	other.Classes.Class = 0
	kept := func(l descriptor.Limit, now int64) int64 {
		return backend.Peek(&backend.Take{Limit: &l, Hits: 1}, &s, now).Kept
	}
	if n := kept(other, start); n != 0 {
		t.Errorf("%d are kept for a class that has its guarantee", n)
	}
	raised := other
	raised.Requests = 300
	if n := kept(raised, start); n != 40 {
		t.Errorf("of three times the limit %d are kept, want 60 less the 20 that are used", n)
	}
	renamed := other
	renamed.Classes.Names = 9
	if n := kept(renamed, start); n != 20 {
		t.Errorf("%d are kept for a class of another name, want all 20", n)
	}
}
