package descriptor

import (
	"strings"
	"testing"
)

// matchModel defines the meaning of a wildcard, by backtracking: too slow to serve, too simple to be wrong.
func matchModel(pattern, value string) bool {
	// reached[i] is true if the pattern so far can use up the first i bytes of the value.
	reached := make([]bool, len(value)+1)
	reached[0] = true
	for _, p := range []byte(pattern) {
		next := make([]bool, len(reached))
		for i := range reached {
			switch {
			case p == '*':
				next[i] = reached[i] || i > 0 && next[i-1]
			case i > 0:
				next[i] = reached[i-1] && value[i-1] == p
			}
		}
		reached = next
	}
	return reached[len(value)]
}

func TestMatchModel(t *testing.T) {
	for _, c := range []struct {
		pattern, value string
		want           bool
	}{
		{"*", "", true}, {"a*", "a", true}, {"a*", "b", false}, {"*a*b*", "xaxbx", true}, {"*a*b*", "ba", false}, {"ab*ba", "aba", false},
	} {
		if got := matchModel(c.pattern, c.value); got != c.want {
			t.Errorf("the model says %v of %q and %q", got, c.pattern, c.value)
		}
	}
}

func FuzzWildcard(f *testing.F) {
	for _, pattern := range []string{"*", "**", "a*", "*a", "ab*ba", "*a*b*", "aba*aba", "a*b*c*d", "*ab*ab", "*ab*ab*", "*a*a*a*", "*\xff*", "é*è"} {
		for _, value := range []string{"", "a", "aba", "abba", "ababa", "abaaba", "xaxbx", "a1b2c3d", "abababab", "\xff", "éè", "*"} {
			f.Add(pattern, value)
		}
	}
	f.Fuzz(func(t *testing.T, pattern, value string) {
		if !HasWildcard(pattern) || len(pattern)*len(value) > 1<<16 {
			return
		}
		w := compileWildcard(pattern)
		if got, want := w.match(value), matchModel(pattern, value); got != want {
			t.Errorf("%q matches %q: %v, want %v", pattern, value, got, want)
		}
		// A value with any text in the place of a pattern's stars matches it.
		if filled := strings.ReplaceAll(pattern, "*", value); !w.match(filled) {
			t.Errorf("%q does not match %q", pattern, filled)
		}
	})
}
