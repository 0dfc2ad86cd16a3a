package rulecheck

// closest returns the candidate that a word was probably meant to be, or "": one slip is forgiven for every three
// letters.
func closest(word string, candidates []string) string {
	best, least := "", 1<<30
	for _, c := range candidates {
		if len(word) > 64 || len(c) > 64 {
			continue
		}
		if d := slips(word, c); d <= max(1, len(c)/3) && d < least && d < len(word) {
			best, least = c, d
		}
	}
	return best
}

// slips is how many letters must be added, removed or changed to make a into b.
func slips(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
