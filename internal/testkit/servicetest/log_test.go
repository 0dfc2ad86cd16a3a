package servicetest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// Lines come in pieces, as from a pipe.
func TestLog(t *testing.T) {
	const text = "no JSON\n" + `{"@message":"first","n":1}` + "\n" + `{"@message":"second","n":2}` + "\n" + `{"@message":"first","n":3}` + "\nthe end"
	for size := range len(text) {
		log := new(servicetest.Log)
		go func() {
			for piece := range slices.Chunk([]byte(text), size+1) {
				_, _ = log.Write(piece)
			}
			_ = log.Close()
		}()
		for message, n := range map[string]float64{"second": 2, "first": 1} {
			if line := log.Wait(t, message); line["n"] != n {
				t.Errorf("in pieces of %d bytes, %q is %v", size+1, message, line)
			}
		}
		var got []string
		for offset := 0; offset < len(text); {
			var line string
			line, offset = log.Find(t, "any line", offset, func(string) bool { return true })
			got = append(got, line)
		}
		if strings.Join(got, "\n") != text || log.String() != text {
			t.Errorf("in pieces of %d bytes, the lines are %q", size+1, got)
		}
		if lines, parsed := log.With("first"), log.All(t, "first", 2); len(lines) != 2 || len(parsed) != 2 || parsed[1]["n"] != 3.0 {
			t.Errorf("two lines have the word: %q, %v", lines, parsed)
		}
	}
}
