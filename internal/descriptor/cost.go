package descriptor

import (
	"math"
	"math/bits"
	"slices"
	"strings"
)

// Cost is the price of amounts of several kinds, in hits: a weight for each kind, in the order of their names. A rule
// without weights counts every amount once.
type Cost []Weight

// Weight is the price of one unit of a kind, in millionths of a hit.
type Weight struct {
	Name       string
	Millionths uint64 // price, at most MaxWeight
}

// Bounds of weights. With them no sum of amounts overflows.
const (
	WeightOne  = 1_000_000             // the Millionths of a weight of one hit
	MaxWeight  = 1_000_000 * WeightOne // largest Millionths of one weight
	MaxWeights = 64                    // most weights of one rule
)

// Amount is a number of units of one kind, such as tokens of a model's output.
type Amount struct {
	Name  string
	Units uint64
}

// Weight returns the weight of a kind.
func (c Cost) Weight(name string) (millionths uint64, ok bool) {
	if len(c) == 0 {
		return WeightOne, true
	}
	i, ok := slices.BinarySearchFunc(c, name, func(w Weight, name string) int { return strings.Compare(w.Name, name) })
	if !ok {
		return 0, false
	}
	return c[i].Millionths, true
}

// Hits returns the price of all amounts in hits. The sum is exact and is rounded up once, to whole hits. More than 64
// bits of hits are math.MaxUint64. It returns false and the name of the kind if the cost has no weight for it. Example:
// with weights of 0.5 and 0.25, one unit of each costs 0.75 hits, and Hits returns 1.
func (c Cost) Hits(amounts []Amount) (hits uint64, unknown string, ok bool) {
	var high, low uint64 // sum in millionths
	for i := range amounts {
		w, known := c.Weight(amounts[i].Name)
		if !known {
			return 0, amounts[i].Name, false
		}
		h, l := bits.Mul64(amounts[i].Units, w)
		var carry uint64
		low, carry = bits.Add64(low, l, 0)
		high, carry = bits.Add64(high, h, carry)
		if carry != 0 {
			high = math.MaxUint64
		}
	}
	if low, high = addUp(low, high); high >= WeightOne {
		return math.MaxUint64, "", true // the quotient has more than 64 bits
	}
	hits, _ = bits.Div64(high, low, WeightOne)
	return hits, "", true
}

// addUp adds WeightOne-1, so that a division by WeightOne rounds up.
func addUp(low, high uint64) (uint64, uint64) {
	low, carry := bits.Add64(low, WeightOne-1, 0)
	if high == math.MaxUint64 {
		return low, high
	}
	return low, high + carry
}

// Names returns the kinds that the cost has weights for, with commas between them.
func (c Cost) Names() string {
	var b strings.Builder
	for i := range c {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(c[i].Name)
	}
	return b.String()
}
