package ruletest

import "strings"

// closest returns the candidate that word was probably meant to be, or "". One slip is forgiven for every three
// letters; letter case, dashes and underscores do not count.
func closest(word string, candidates []string) string {
	best, least := "", 1<<30
	if len(word) > 200 {
		return best
	}
	for _, c := range candidates {
		if slips := distance(bare(word), bare(c)); slips <= max(1, len(c)/3) && slips < min(least, len(word)) {
			best, least = c, slips
		}
	}
	return best
}

func bare(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// distance is how many letters must be added, removed or changed to make a into b.
func distance(a, b string) int {
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

// list writes names for a message: `a`, `b` or `c`.
func list(names []string, and string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = "`" + n + "`"
	}
	if len(quoted) < 2 {
		return strings.Join(quoted, "")
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " " + and + " " + quoted[last]
}
