package yamlform

import "strings"

// Closest returns the candidate that word was probably meant to be, or "". Letter case, dashes and underscores do not
// count (requestsPerUnit is requests_per_unit); beyond that one slip is forgiven for every three letters.
func Closest(word string, candidates []string) string {
	if len(word) > 64 {
		return ""
	}
	best, least := "", 1<<30
	for _, c := range candidates {
		d := distance(plain(word), plain(c))
		if d <= max(1, len(c)/3) && d < least && d < len(word) {
			best, least = c, d
		}
	}
	return best
}

// Slips is how many letters must be added, removed, changed or swapped with their neighbour to make one word into the
// other. Letter case, dashes and underscores do not count.
func Slips(a, b string) int { return distance(plain(a), plain(b)) }

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(s))
}

// distance is how many letters must be added, removed, changed or swapped with their neighbour to make a into b.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
