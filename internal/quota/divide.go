package quota

// divide divides total among wants. Nobody gets more than it wants as long as somebody else gets less than it wants; what all wants leave
// is shared equally.
func divide(total float64, wants []float64, parts []float64) {
	left, open := total, len(wants)
	for i := range parts {
		parts[i] = 0
	}
	if open == 0 || total <= 0 {
		return
	}
	for open > 0 { // each round satisfies somebody, or is the last
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

// smallest marks the part of somebody who wants nothing as divided.
const smallest = 1e-300
