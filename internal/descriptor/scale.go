package descriptor

import (
	"fmt"
	"math/bits"
)

// Scale multiplies the numbers of a limit by the number in an entry of the request.
type Scale struct {
	Key      string   // key of the entry
	Level    int      // level of the entry in the rule's path
	Max      uint64   // larger numbers count as this one; at least 1
	Position Position // position in its rule file
}

// Scales are the scales of a rule's limits.
type Scales struct {
	Of []*Scale // scale of each limit; nil for a limit that keeps its numbers
}

// ScaleOf returns the scale of a limit of the rule, or nil without one.
func (r *Rule) ScaleOf(limit int) *Scale {
	if r.Scales() == nil {
		return nil
	}
	return r.Scales().Of[limit]
}

// ScaleResult is the result of reading an entry for a scale.
type ScaleResult uint8

// The results.
const (
	ScaleGood     ScaleResult = iota
	ScaleNoNumber             // not a whole number above 0: the limit keeps its numbers
	ScaleAboveMax
	ScaleResults // number of results
)

// Number returns the number that multiplies the limit, from 1 to Max. The number is written with decimal digits only.
func (s *Scale) Number(entries []Entry) (n uint64, result ScaleResult) {
	text := entries[s.Level].Value
	for i := range len(text) {
		digit := uint64(text[i] - '0')
		if digit > 9 {
			return 1, ScaleNoNumber
		}
		n = min(n*10+digit, MaxRequests) // so that no sum overflows, however many digits there are
	}
	switch {
	case n == 0:
		return 1, ScaleNoNumber
	case n > s.Max:
		return s.Max, ScaleAboveMax
	default:
		return n, ScaleGood
	}
}

// String returns the scale as a rule file writes it, or "" for nil.
func (s *Scale) String() string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("{by: %q, max: %d}", s.Key, s.Max)
}

// Words describes the scale for people.
func (s *Scale) Words() string { return fmt.Sprintf("times %q, at most %d", s.Key, s.Max) }

// Multiply multiplies the numbers of a limit. If the result cannot be counted, it returns a *LimitError and leaves
// the limit as it was.
func (l *Limit) Multiply(n uint64) error {
	was := *l
	for _, number := range []*uint64{&l.Requests, &l.Burst} {
		high, low := bits.Mul64(*number, n)
		if high != 0 || low > MaxRequests {
			*l = was
			return limitErrorf("scale", "%d times %d is more than %d", *number, n, MaxRequests)
		}
		*number = low
	}
	if err := l.Compile(); err != nil {
		*l = was
		return err
	}
	return nil
}

// Scalable returns a *LimitError unless the limit can be counted with its numbers times every number from 1 to most.
// The limit is compiled.
func (l *Limit) Scalable(most uint64) error {
	top := *l
	if err := top.Multiply(most); err != nil {
		return err
	}
	a := &l.Arithmetic
	if a.StepDen == 0 {
		return nil // a limit that is exact for a number is exact for all smaller ones
	}
	// The exact time between two hits of a bucket is a fraction, whose denominator is largest for numbers without common
	// factors.
	high, den := bits.Mul64(uint64(a.StepDen), most)
	far, full := bits.Mul64(l.Burst+1, uint64(a.Step)+1+most)
	horizon := uint64(maxHorizon.Microseconds())
	if capacity := top.Capacity(); high != 0 || den > 1<<exactBits || !fits(int64(capacity), int64(den)) || far != 0 ||
		full > horizon {
		return limitErrorf("scale",
			"a bucket of %d with %d times this rate cannot be counted exactly for each number up to %d; write a smaller "+
				"`max`, a smaller `burst`, or fixed_window",
			l.Burst, most, most)
	}
	return nil
}
