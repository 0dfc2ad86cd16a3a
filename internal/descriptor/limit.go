package descriptor

import (
	"math"
	"strconv"
)

// Algorithm is the way in which a limit is held.
type Algorithm uint8

// The algorithms; docs/algorithms.md says when to use which.
const (
	FixedWindow Algorithm = iota
	SlidingWindow
	SlidingLog
	TokenBucket
	LeakyBucket
)

// AlgorithmNames are the names in rule files, in the order of the constants.
var AlgorithmNames = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}

func (a Algorithm) String() string {
	if int(a) < len(AlgorithmNames) {
		return AlgorithmNames[a]
	}
	return "algorithm(" + strconv.Itoa(int(a)) + ")"
}

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
	switch l.Algorithm {
	case TokenBucket:
		return l.Burst
	case LeakyBucket:
		return uint32(min(uint64(l.Burst)+1, math.MaxUint32))
	default:
		return l.Requests
	}
}

// SharesCounter says whether two limits on the same entries would count in one counter.
func (l *Limit) SharesCounter(other *Limit) bool {
	var a, b [64]byte
	return string(l.appendTag(a[:0])) == string(other.appendTag(b[:0]))
}

// appendTag appends what distinguishes this limit's counter from another limit's on the same entries: the algorithm and
// the window, but not the number, so that raising a limit keeps what is used.
func (l *Limit) appendTag(b []byte) []byte {
	switch l.Algorithm {
	case SlidingWindow:
		b = append(b, 's')
		if l.Precision > 1 {
			b = strconv.AppendUint(b, uint64(l.Precision), 10)
			b = append(b, 'x')
		}
	case SlidingLog:
		b = append(b, 'l')
	case TokenBucket:
		if l.Interval {
			b = append(b, 'i')
		} else {
			b = append(b, 't')
		}
	case LeakyBucket:
		b = append(b, 'q')
	default:
		b = append(b, 'f')
	}
	if l.FirstHit {
		b = append(b, 'h')
	}
	b = strconv.AppendInt(b, int64(l.Window.Length().Seconds()), 10)
	if l.Window.Location != nil {
		b = append(b, '@')
		if !l.Window.Named { // the operator may switch that: such months are nobody else's
			b = appendEscaped(b, l.Window.Location.String())
		}
	}
	return b
}
