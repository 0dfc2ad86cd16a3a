package lease

import (
	"math/bits"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/backend"
	"github.com/ratelimitd/ratelimitd/internal/descriptor"
)

const (
	share   = 20 // all replicas together lease at most 1/share of a limit's capacity
	burst   = 10 // leases cost a bucket at most 1/burst of its capacity
	longest = 500 * time.Millisecond
	nearest = 5 * time.Millisecond // shortest tau: a lease with a shorter life would not outlive a trip
)

// terms describe how a limit may be leased. They depend only on the limit and the take's CountDenied, so that all
// replicas agree on them. Only most depends on the number of replicas.
type terms struct {
	backend.Permits
	tau  time.Duration // maximum time between taking and using a permit
	most int64         // maximum number of permits in a lease

	gap     uint64 // reduction of a bucket's capacity: its refill within tau
	stretch int64  // extra life of a log's entries, in microseconds
}

// terms returns the terms of a take's limit.
func (l *Leases) terms(t *backend.Take) terms {
	if l.opts.Far != nil {
		return farTerms(t)
	}
	return termsOf(t, int(l.replicas.Load()))
}

// termsOf returns the terms of a take's limit.
func termsOf(t *backend.Take, replicas int) terms {
	l := t.Limit
	length, capacity := l.Window.Length(), int64(l.Capacity())
	if !l.Lease || l.Arithmetic.Length <= 0 || capacity < 2*share {
		return terms{}
	}
	m := terms{Permits: backend.PermitsOf(t), tau: min(length/10, longest), most: capacity / share / int64(replicas)}
	if m.Within > 0 {
		m.tau = min(m.tau, m.Within)
	}
	switch m.Kind {
	case backend.NoPermits:
		return terms{}
	case backend.PermitsOfLog:
		a := &l.Arithmetic
		m.stretch = (m.tau.Microseconds() + a.Quantum - 1) / a.Quantum * a.Quantum
		if 2*(a.Length+m.stretch)/a.Quantum >= 1<<32 {
			return terms{}
		}
	case backend.PermitsOfBucket:
		refill := float64(length) * float64(capacity) / float64(l.Requests) // time to refill the whole bucket
		m.tau = min(m.tau, time.Duration(refill/burst)).Truncate(time.Microsecond)
		m.gap = uint64(refilled(l, m.tau))
	}
	if m.tau < nearest {
		return terms{}
	}
	return m
}

// tightens reports whether takes must be counted under a tightened limit.
func (m *terms) tightens() bool { return m.gap > 0 || m.stretch > 0 }

// tighten returns the limit under which all replicas count a leased counter, for all takes. If permits of one rule were
// taken under two limits, together they could exceed both. The counter's key is the same.
func (m *terms) tighten(l *descriptor.Limit) descriptor.Limit {
	t := *l
	t.Burst -= m.gap
	t.Arithmetic.Length += m.stretch
	return t
}

// refilled returns the number of permits that a bucket refills within d, rounded up.
func refilled(l *descriptor.Limit, d time.Duration) int64 {
	length := uint64(l.Window.Length().Microseconds())
	hi, lo := bits.Mul64(uint64((max(d, 0)+time.Microsecond-1)/time.Microsecond), l.Requests)
	lo, carry := bits.Add64(lo, length-1, 0)
	if hi += carry; hi >= length {
		return backend.MaxCount
	}
	n, _ := bits.Div64(hi, lo, length)
	return int64(min(n, backend.MaxCount))
}
