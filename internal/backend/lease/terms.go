package lease

import (
	"math/bits"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

// kind says what becomes of a permit that is not used at once.
type kind uint8

const (
	strict  kind = iota // nothing is leased
	windows             // it is as good as new until its window, sub-window or interval ends, and worth nothing after
	bucket              // the bucket refills whether it is used or not: it counts against a smaller bucket, and wears off
	log                 // it counts for longer than a window, and is lost when it is not used in time
)

const (
	share   = 20 // of a limit's capacity, all leases of all replicas together hold at most one part in so many
	burst   = 10 // of a bucket, leases cost at most one part in so many
	longest = 500 * time.Millisecond
	nearest = 5 * time.Millisecond // leases that live shorter would not outlive a trip
)

// terms are what a limit allows of leases. They depend on nothing but the limit and the take's CountDenied, so that all
// replicas agree on them; only most depends on how many replicas there are.
type terms struct {
	kind kind
	tau  time.Duration // a permit is used at most so much later than it was taken
	most int64         // permits in a lease

	gap     uint32 // a bucket counts with a capacity lower by so much: what it refills within tau
	stretch int64  // a log's entries stay longer by so much, in microseconds
}

// termsOf finds the terms of a take's limit.
func termsOf(t *backend.Take, replicas int) terms {
	l := t.Limit
	length, capacity := l.Window.Length(), int64(l.Capacity())
	if !l.Lease || l.Arithmetic.Length <= 0 || capacity < 2*share {
		return terms{}
	}
	m := terms{tau: min(length/10, longest), most: capacity / share / int64(replicas)}
	switch l.Algorithm {
	case descriptor.FixedWindow:
		m.kind = windows
	case descriptor.SlidingWindow:
		m.kind = windows
		m.tau = min(m.tau, time.Duration(l.Arithmetic.Length)*time.Microsecond)
	case descriptor.SlidingLog:
		if t.CountDenied {
			return terms{} // every refusal moves the end of the others
		}
		a := &l.Arithmetic
		m.kind = log
		m.stretch = (m.tau.Microseconds() + a.Quantum - 1) / a.Quantum * a.Quantum
		if 2*(a.Length+m.stretch)/a.Quantum >= 1<<32 {
			return terms{}
		}
	case descriptor.TokenBucket:
		m.kind = bucket
		if l.Interval {
			m.kind = windows
		}
	case descriptor.LeakyBucket:
		if l.NoDelay != descriptor.NoDelayAll {
			return terms{} // each place in the queue has its own delay, which only the store knows
		}
		m.kind = bucket
	default:
		return terms{}
	}
	if m.kind == bucket {
		refill := float64(length) * float64(capacity) / float64(l.Requests) // of the whole bucket
		m.tau = min(m.tau, time.Duration(refill/burst)).Truncate(time.Microsecond)
		m.gap = uint32(refilled(l, m.tau))
	}
	if m.tau < nearest {
		return terms{}
	}
	return m
}

// tightens says whether takes have to be counted under another limit than their own.
func (m *terms) tightens() bool { return m.gap > 0 || m.stretch > 0 }

// tighten returns the limit under which a counter that is leased from is kept, by all replicas and for all takes:
// permits of one rule that were taken under two limits could together exceed both. The counter's key is the same.
func (m *terms) tighten(l *descriptor.Limit) descriptor.Limit {
	t := *l
	t.Burst -= m.gap
	t.Arithmetic.Length += m.stretch
	return t
}

// refilled is how many permits of a bucket come back within d, rounded up.
func refilled(l *descriptor.Limit, d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	length := uint64(l.Window.Length().Microseconds())
	hi, lo := bits.Mul64(uint64((d+time.Microsecond-1)/time.Microsecond), uint64(l.Requests))
	lo, carry := bits.Add64(lo, length-1, 0)
	if hi += carry; hi >= length {
		return backend.MaxCount
	}
	n, _ := bits.Div64(hi, lo, length)
	return int64(min(n, backend.MaxCount))
}

// boundary is how long, after the moment an outcome speaks of, a permit that was taken then stays in the window it was
// charged to; never too long. Other limits than those of windows have no boundary.
func boundary(l *descriptor.Limit, o *backend.Outcome) time.Duration {
	a := &l.Arithmetic
	length := time.Duration(a.Length) * time.Microsecond
	switch l.Algorithm {
	case descriptor.SlidingWindow:
		// What is in the current sub-window counts until it has been the oldest for a while: all of that sub-window but
		// the last part, in which less than one hit is left of it. That part is longest when little is in it.
		quanta := a.Length / a.Quantum
		rest := int64(0)
		if o.Used > 0 {
			rest = ((quanta+o.Used-1)/o.Used - 1) * a.Quantum
		}
		return o.ResetAfter - time.Duration(max(l.Precision, 1))*length + time.Duration(max(rest, 0))*time.Microsecond
	case descriptor.TokenBucket: // at intervals
		refills := (o.Used + int64(l.Requests) - 1) / int64(l.Requests)
		return o.ResetAfter - time.Duration(max(refills-1, 0))*length
	default:
		return o.ResetAfter
	}
}
