package descriptor

import (
	"regexp/syntax"
	"slices"
	"unicode"
	"unicode/utf8"
)

// alphabet divides all runes into classes. A program does not distinguish the runes of one class.
type alphabet struct {
	ascii   [utf8.RuneSelf]uint8 // the class of each character
	from    []rune               // the first rune of each interval; the intervals cover all runes
	class   []uint8              // the class of each interval
	classes int
}

func (a *alphabet) classOf(r rune) uint8 {
	i, found := slices.BinarySearch(a.from, r)
	if !found {
		i--
	}
	return a.class[i]
}

// classify makes the classes for a program and returns one rune of each.
// It returns nil if there are too many classes.
func (a *alphabet) classify(p *program) (samples []rune) {
	cuts := []rune{0}
	cut := func(low, high rune) { cuts = append(cuts, low, high+1) }
	if p.looks {
		for _, c := range []struct{ low, high rune }{{'\n', '\n'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}} {
			cut(c.low, c.high)
		}
	}
	var readers []*syntax.Inst
	for i := range p.insts {
		in := &p.insts[i]
		if !reads(in.Op) {
			continue
		}
		readers = append(readers, in)
		if len(in.Rune) == 1 {
			r := in.Rune[0]
			cut(r, r)
			if syntax.Flags(in.Arg)&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					cut(f, f)
				}
			}
			continue
		}
		for j := 0; j+1 < len(in.Rune); j += 2 {
			cut(in.Rune[j], in.Rune[j+1])
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	if last := len(cuts) - 1; cuts[last] > unicode.MaxRune {
		cuts = cuts[:last]
	}

	known := make(map[string]uint8)
	sight := make([]byte, 0, len(readers)/8+2)
	for _, r := range cuts {
		sight = sight[:0]
		if p.looks {
			sight = append(sight, byte((&simulation{program: p}).kind(r)))
		}
		for i, in := range readers {
			if i%8 == 0 {
				sight = append(sight, 0)
			}
			if in.MatchRune(r) {
				sight[len(sight)-1] |= 1 << (i % 8)
			}
		}
		class, seen := known[string(sight)]
		if !seen {
			if len(samples) == maxClasses {
				return nil
			}
			class = uint8(len(samples))
			known[string(sight)] = class
			samples = append(samples, r)
		}
		a.from = append(a.from, r)
		a.class = append(a.class, class)
	}
	a.classes = len(samples)
	for r := range a.ascii {
		a.ascii[r] = a.classOf(rune(r))
	}
	return samples
}
