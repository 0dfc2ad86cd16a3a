package simkit

import "slices"

// Reduce returns a part of a history that still fails, and of which no single step and few groups of steps can be left
// out. It tries at most tries parts.
func Reduce[S any](steps []S, tries int, fails func([]S) bool) []S {
	for size := (len(steps) + 1) / 2; size >= 1 && tries > 0; {
		removed := false
		for from := 0; from < len(steps) && tries > 0; {
			tries--
			part := slices.Delete(slices.Clone(steps), from, min(from+size, len(steps)))
			if fails(part) {
				steps, removed = part, true
			} else {
				from += size
			}
		}
		if size == 1 && !removed {
			break
		}
		if size = max(size/2, 1); size > len(steps) {
			size = max(len(steps)/2, 1)
		}
	}
	return steps
}
