package descriptor

import (
	"fmt"
	"math"
	"time"
)

// Arithmetic is a limit expressed in integers. All stores use these numbers, so that their decisions are the same.
type Arithmetic struct {
	// Length is the window's length in microseconds. For a sliding window it is the length of one sub-window.
	Length int64

	// Quantum is the time resolution of a sliding window or log, in microseconds. Length is a multiple of it.
	Quantum int64

	// A hit stays in a bucket for Step + StepNum/StepDen microseconds: exactly the window divided by the requests, in
	// lowest terms.
	Step, StepNum, StepDen int64
}

// Bounds within which limits can be counted exactly. Redis scripts compute in doubles, which are exact up to 2^53.
const (
	exactBits  = 52
	maxHorizon = 90 * 365 * day
	maxLogHits = 1 << 16
)

// MaxInFlight is the largest number of places of a concurrency limit.
const MaxInFlight = maxLogHits

// LimitError is the reason why a limit cannot be counted.
type LimitError struct {
	Key    string // the key of the rule language that the reason is about
	Reason string
}

func (e *LimitError) Error() string { return e.Key + ": " + e.Reason }

func limitErrorf(key, format string, args ...any) error {
	return &LimitError{key, fmt.Sprintf(format, args...)}
}

// Compile fills in the limit's arithmetic and its defaults. It returns a *LimitError if no store can count the limit
// exactly, or if the limit makes no sense.
func (l *Limit) Compile() error {
	if !l.Window.Unit.Valid() {
		return limitErrorf("unit", "it is missing")
	}
	if n := int64(max(l.Window.Multiplier, 1)); n > int64(maxHorizon/l.Window.Unit.Length()) {
		return limitErrorf("unit_multiplier", "a window of %d %ss is longer than 90 years", n, l.Window.Unit)
	}
	length := l.Window.Length().Microseconds()
	l.Arithmetic = Arithmetic{Length: length}
	if compile := algorithms[l.Algorithm].compile; compile != nil {
		return compile(l, length)
	}
	return nil
}

func (l *Limit) compileSlidingWindow(length int64) error {
	n := int64(max(l.Precision, 1))
	if length%n != 0 {
		return limitErrorf("precision", "a window of %s cannot be cut into %d equal parts of whole microseconds",
			time.Duration(length)*time.Microsecond, n)
	}
	sub := length / n
	// The estimate multiplies a count by a time. The quantum is the finest one in which that product is exact.
	q := quantum(sub, func(q int64) bool { return fits(int64(l.Requests), sub/q) })
	most := mostInSlidingWindow(sub)
	if n > 1 {
		most = min(most, math.MaxUint32) // their counts have 32 bits
	}
	if q == 0 || l.Requests > most {
		return limitErrorf("requests_per_unit",
			"%d in a sliding_window of %s%s cannot be counted exactly, %d is the most; use fixed_window for more",
			l.Requests, time.Duration(length)*time.Microsecond, precisionText(n), most)
	}
	l.Arithmetic.Length, l.Arithmetic.Quantum = sub, q
	return nil
}

// leastQuanta is how many quanta a sub-window has at least, unless it has fewer microseconds: otherwise it would not
// slide.
const leastQuanta = 1000

// mostInSlidingWindow returns the largest limit of a window of sub microseconds: with the coarsest quantum, its product
// with a time is exact.
func mostInSlidingWindow(sub int64) uint64 {
	q := int64(1)
	for sub%(q*10) == 0 && sub/(q*10) >= leastQuanta {
		q *= 10
	}
	return 1 << exactBits / uint64(sub/q+1)
}

func precisionText(n int64) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(" with precision %d", n)
}

func (l *Limit) compileSlidingLog(length int64) error {
	if l.Requests > maxLogHits {
		return limitErrorf("requests_per_unit",
			"a sliding_log keeps every hit, %d at most; use sliding_window with precision for more", maxLogHits)
	}
	if l.Arithmetic.Quantum = logQuantum(length); l.Arithmetic.Quantum == 0 {
		return limitErrorf("unit", "a window of %s is too long for a sliding_log", time.Duration(length)*time.Microsecond)
	}
	return nil
}

func (l *Limit) compileConcurrency(length int64) error {
	if l.Requests > MaxInFlight {
		return limitErrorf("max_in_flight", "a place is kept for each request in flight, %d at most", MaxInFlight)
	}
	if l.Arithmetic.Quantum = logQuantum(length); l.Arithmetic.Quantum == 0 {
		return limitErrorf("ttl", "%s is too long", time.Duration(length)*time.Microsecond)
	}
	return nil
}

func (l *Limit) compileTokenBucket(length int64) error {
	if l.Burst == 0 {
		l.Burst = l.Requests
	}
	if l.Requests == 0 {
		return limitErrorf("requests_per_unit",
			"a token_bucket that is never refilled; use fixed_window with 0 to deny everything")
	}
	if l.Interval {
		refills := (int64(l.Burst) + int64(l.Requests) - 1) / int64(l.Requests)
		if refills > maxHorizon.Microseconds()/length {
			return limitErrorf("burst", "the bucket would take more than 90 years to fill")
		}
		return nil
	}
	return l.compileBucket(length, int64(l.Burst))
}

func (l *Limit) compileLeakyBucket(length int64) error {
	if l.Requests == 0 {
		return limitErrorf("requests_per_unit",
			"a leaky_bucket that leaks nothing never empties; use fixed_window with 0 to deny everything")
	}
	return l.compileBucket(length, int64(l.Burst)+1)
}

func (l *Limit) compileBucket(length, capacity int64) error {
	rate := int64(l.Requests)
	g := gcd(rate, length)
	num, den := length/g, rate/g
	l.Arithmetic.Step, l.Arithmetic.StepNum, l.Arithmetic.StepDen = num/den, num%den, den
	if rate >= 1<<exactBits {
		return limitErrorf("requests_per_unit",
			"%d in a bucket cannot be counted exactly, %d is the most; use fixed_window for more", rate, int64(1<<exactBits-1))
	}
	if !fits(capacity, den) {
		return limitErrorf("burst",
			"%d at %d per %s cannot be counted exactly, %d is the most; use a requests_per_unit with more zeros at its end, "+
				"or fixed_window",
			l.Burst, l.Requests, l.Window.Words(), max(0, 1<<exactBits/(den+1)-(capacity-int64(l.Burst))))
	}
	if capacity > maxHorizon.Microseconds()/(l.Arithmetic.Step+1) {
		return limitErrorf("burst", "the bucket would take more than 90 years to fill or to drain")
	}
	return nil
}

// logQuantum returns the time resolution of a log. It returns 0 if no resolution is possible: the hits of two windows
// are kept, as 32-bit offsets.
func logQuantum(length int64) int64 {
	return quantum(length, func(q int64) bool { return 2*length/q < 1<<32 })
}

// quantum returns the smallest power of ten that divides length and for which enough is true. It returns 0 without such
// a power.
func quantum(length int64, enough func(q int64) bool) int64 {
	for q := int64(1); length%q == 0; q *= 10 {
		if enough(q) {
			return q
		}
	}
	return 0
}

// fits reports whether a*b stays exact in a double, with a factor of two to spare.
func fits(a, b int64) bool { return a == 0 || b < (1<<exactBits)/a }

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return max(a, 1)
}
