package quota

// divide divides total among wants. No part is larger than its want while another part is smaller than its want. The
// rest after all wants is shared equally. For example, a total of 90 for wants of 10, 50 and 60 gives 10, 40 and 40.
//
// It works in rounds, like water that fills vessels of different heights. Each round computes the level that an equal
// division of the rest would reach. Every want below the level is met in full, which leaves more for the others and
// raises the level of the next round. If a round meets no want, all remaining wants are above the level, and each gets
// the level.
func divide(total float64, wants []float64, parts []float64) {
	left, open := total, len(wants)
	for i := range parts {
		parts[i] = 0
	}
	for open > 0 { // each round meets at least one want, or is the last
		level, before := left/float64(open), open
		for i, w := range wants {
			if parts[i] == 0 && w <= level {
				parts[i] = max(w, smallest)
				left -= w
				open--
			}
		}
		if open == before {
			for i := range parts {
				if parts[i] == 0 {
					parts[i] = level
				}
			}
			return
		}
	}
	for i := range parts {
		parts[i] += left / float64(len(parts))
	}
}

// smallest is the part for a want of 0. A part of exactly 0 means that its want was not met yet.
const smallest = 1e-300
