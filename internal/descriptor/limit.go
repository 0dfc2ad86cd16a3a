package descriptor

import (
	"math"
	"strconv"
)

// NoDelayAll is the NoDelay of a leaky bucket in which nothing waits: a pure policer.
const NoDelayAll = math.MaxUint32

// Limit is so many requests per window, and the algorithm that holds it.
type Limit struct {
	Name      string // of the rule, or of this limit among several; may be empty
	Requests  uint32 // per Window
	Window    Window
	Algorithm Algorithm

	Burst     uint32 // capacity of a token bucket (at least 1); of a leaky bucket, how many may wait. Other algorithms ignore it
	Interval  bool   // token bucket: Requests at once on each window's boundary instead of continuously
	FirstHit  bool   // fixed window, interval refill: windows start at a counter's first hit instead of on the clock
	Precision uint32 // sliding window: how many sub-windows the estimate is built from; 0 means 1
	NoDelay   uint32 // leaky bucket: how many of those that wait pass at once, or NoDelayAll

	// CountDenied says whether refused hits count too; DeniedDefault leaves it to the domain's admission.
	CountDenied Denied

	// Lease allows permits to be taken from Redis in batches and decided on locally.
	Lease bool

	Arithmetic Arithmetic // filled in by Compile
}

// Denied says what becomes of refused hits.
type Denied uint8

// The choices of count_denied.
const (
	DeniedDefault Denied = iota // counted by a fixed window under independent admission, dropped elsewhere
	DeniedCount
	DeniedDrop
)

// Capacity is the most that can be used at one instant: what remaining counts down from.
func (l *Limit) Capacity() uint32 {
	a := &algorithms[l.Algorithm]
	if a.settings&SettingBurst == 0 {
		return l.Requests
	}
	return uint32(min(uint64(l.Burst)+a.more, math.MaxUint32))
}

// SharesCounter says whether two limits on the same entries would count in one counter.
func (l *Limit) SharesCounter(other *Limit) bool {
	var a, b [64]byte
	return string(l.appendTag(a[:0])) == string(other.appendTag(b[:0]))
}

// appendTag appends what distinguishes this limit's counter from another limit's on the same entries: the algorithm and
// the window, but not the number, so that raising a limit keeps what is used.
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
	b = strconv.AppendInt(b, int64(l.Window.Length().Seconds()), 10)
	if l.Window.Location != nil {
		b = append(b, '@')
		if !l.Window.Named { // the operator may switch that: no other limit has such months
			b = appendEscaped(b, l.Window.Location.String())
		}
	}
	return b
}
