package descriptor

import (
	"math"
	"strconv"
	"time"
)

// NoDelayAll is the NoDelay of a leaky bucket in which nothing waits: a pure policer.
const NoDelayAll = math.MaxUint32

// MaxRequests is the largest number of requests of a limit, and its largest burst. Redis scripts compute in doubles,
// which represent every number up to this one, and the next one, exactly.
const MaxRequests = 1<<53 - 1

// Limit is a number of requests per window, and the algorithm that enforces it. Small fields stand together, because
// there are many limits: a larger one would take the next larger piece of memory.
type Limit struct {
	Name     string // the rule's name, or this limit's if the rule has several; may be empty
	Requests uint64 // per Window, at most MaxRequests; concurrency: places
	// token bucket: capacity, at least 1; leaky bucket: how many hits may wait; at most MaxRequests. Other algorithms
	// ignore it
	Burst uint64

	Algorithm Algorithm

	Interval bool // token bucket: refilled by Requests at each window's boundary instead of continuously
	FirstHit bool // fixed window, interval refill: windows start at a counter's first hit instead of on the clock

	// CountDenied sets whether denied hits count too. With DeniedDefault the algorithm and the domain's admission decide.
	CountDenied Denied

	// Lease allows this replica to take permits from Redis in batches and to hand them out locally.
	Lease bool

	// it applies only at some times: Rule.Schedule. It then does not share the counter of a limit that always applies
	Scheduled bool

	Enforcement    Enforcement
	EnforcePercent uint8 // EnforcedForSome: for how many percent of the counters

	Window Window // concurrency: how long a place stays taken if it is not given back

	Precision uint32 // sliding window: how many sub-windows the estimate is built from; 0 means 1
	NoDelay   uint32 // leaky bucket: how many of the waiting hits pass immediately, or NoDelayAll

	// FromRequest is true for a limit that a request carries in addition to the limits of its rule. It shares no counter
	// with them, which would count twice.
	FromRequest bool

	WarnAt uint8 // usage from which on answers warn, in percent of Capacity; 0 means never

	Classes ClassParts // classes that share the limit, and the class of one customer; only for SharedWindow

	Reservations *Reservations // nil if hits cannot be reserved

	Regions *Regions // nil if each region counts on its own

	// Penalty is active for some time after a customer exceeded this limit, and denies the customer's requests:
	// NewPenalty. Nil without a penalty.
	Penalty *Limit

	Arithmetic Arithmetic // filled in by Compile
}

// Denied is what to do with denied hits.
type Denied uint8

// The choices of count_denied.
const (
	DeniedDefault Denied = iota // a fixed window under independent admission counts them; otherwise they are dropped
	DeniedCount
	DeniedDrop
)

// Capacity returns the most hits that can be in use at one instant. The remaining hits count down from it.
func (l *Limit) Capacity() uint64 {
	a := &algorithms[l.Algorithm]
	if a.settings&SettingBurst == 0 {
		return l.Requests
	}
	return l.Burst + a.more
}

// Quota returns the limit as headers show it: a number of hits, and the seconds that renew them, rounded up. It is
// Requests and the window at now. Of a bucket it is the size and the time that fills it, because the hits that remain
// belong to its size. 0 seconds stands for no window.
func (l *Limit) Quota(now time.Time) (hits uint64, seconds int64) {
	length := l.Window.LengthAt(now)
	switch {
	case l.Algorithm == Concurrency:
		return l.Requests, 0
	case !l.Has(SettingBurst) || l.Requests == 0:
	case l.Interval:
		length *= time.Duration((l.Burst + l.Requests - 1) / l.Requests)
	default: // exact in a float64 unless the time is far longer than a year
		fill := float64(length.Milliseconds()) * float64(l.Capacity()) / (float64(l.Requests) * 1000)
		return l.Capacity(), int64(math.Ceil(fill))
	}
	return l.Capacity(), int64((length + time.Second - 1) / time.Second)
}

// NoDelayText returns how many of the waiting hits pass immediately, as rule files write it.
func (l *Limit) NoDelayText() string {
	if l.NoDelay == NoDelayAll {
		return "all"
	}
	return decimal(l.NoDelay)
}

// OnWire returns the unit and the multiplier of the protocol's current_limit. The places of a concurrency limit are in
// no window.
func (l *Limit) OnWire() (unit Unit, multiplier uint32) {
	if l.Algorithm == Concurrency {
		return UnitUnknown, 0
	}
	return l.Window.OnWire()
}

// SharesCounter reports whether two limits on the same entries use the same counter.
func (l *Limit) SharesCounter(other *Limit) bool {
	var a, b [64]byte
	return string(l.appendTag(a[:0])) == string(other.appendTag(b[:0]))
}

// Tag is the end of the keys of the counters of a limit that no rule has. A rule tells its limits apart: Rule.Tag.
func (l *Limit) Tag() string { return (*Rule)(nil).Tag(l) }

// appendTag appends the identity of this limit among counters of the same entries: the algorithm and the window. It
// leaves out the number of requests, so that a raised limit keeps the hits counted so far.
func (l *Limit) appendTag(b []byte) []byte {
	a := &algorithms[l.Algorithm]
	if l.Interval && a.interval != 0 {
		b = append(b, a.interval)
	} else {
		b = append(b, a.letter)
	}
	if l.Precision > 1 && a.settings&SettingPrecision != 0 {
		b = strconv.AppendUint(b, uint64(l.Precision), 10)
		b = append(b, 'x')
	}
	if l.FirstHit {
		b = append(b, 'h')
	}
	if l.Scheduled {
		b = append(b, 'a')
	}
	if l.FromRequest {
		b = append(b, 'r')
	}
	length := l.Window.Length()
	b = strconv.AppendInt(b, int64(length/time.Second), 10)
	if part := length % time.Second; part != 0 { // only windows in milliseconds have one
		b = append(b, '.')
		b = strconv.AppendInt(b, part.Milliseconds(), 10)
	}
	if l.Window.Location != nil {
		if l.Window.Multiplier > 1 { // 7 days and a week have different windows
			b = strconv.AppendUint(append(b, 'u'), uint64(l.Window.Unit), 10)
		}
		if l.Window.WeekStart > 0 {
			b = strconv.AppendUint(append(b, 'w'), uint64(l.Window.WeekStart), 10)
		}
		b = append(b, '@')
		if !l.Window.Named { // the operator may switch Named, so it names no location; no other limit has such months
			b = appendEscaped(b, l.Window.Location.String())
		}
	}
	return b
}
