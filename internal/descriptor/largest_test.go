package descriptor

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// TestLargestNumbersAreDocumented compares the tables of algorithms.md with what Compile accepts.
func TestLargestNumbersAreDocumented(t *testing.T) {
	window := func(l Limit) string {
		return grouped(largest(func(n uint64) Limit { l.Requests = n; return l }))
	}
	var b strings.Builder
	b.WriteString("| window | `sliding_window` | with `precision: 10` |\n|---|---|---|\n")
	for _, unit := range []Unit{Millisecond, Second, Minute, Hour, Day, Week, Month, Year} {
		w := Window{Unit: unit}
		fmt.Fprintf(&b, "| 1 %s | %s | %s |\n", unit, window(Limit{Algorithm: SlidingWindow, Window: w}), window(Limit{Algorithm: SlidingWindow, Window: w, Precision: 10}))
	}
	b.WriteString("\n| rate | largest `burst` of a `token_bucket` |\n|---|---|\n")
	for _, l := range []Limit{
		{Requests: 10, Window: Window{Unit: Second}}, {Requests: 1_000_000, Window: Window{Unit: Second}}, {Requests: 200_000, Window: Window{Unit: Minute}},
		{Requests: 5_000_000_000, Window: Window{Unit: Month}}, {Requests: 5_000_000_001, Window: Window{Unit: Month}},
	} {
		l.Algorithm = TokenBucket
		most := grouped(largest(func(n uint64) Limit { l.Burst = n; return l }))
		fmt.Fprintf(&b, "| %s a %s | %s |\n", grouped(l.Requests), l.Window.Unit, most)
	}

	const page, begin, end = "../../docs/understand/algorithms.md", "<!-- generated: the largest numbers -->\n", "<!-- end -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	have, after, closed := strings.Cut(rest, end)
	switch {
	case !ok || !closed:
		t.Fatalf("%s has no %q", page, begin)
	case have == b.String():
	case *update:
		if err := os.WriteFile(page, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the code accepts: go test ./internal/descriptor -update\n%s", page, b.String())
	}
}

// largest returns the largest number with which a limit compiles.
func largest(with func(uint64) Limit) uint64 {
	return uint64(sort.Search(MaxRequests, func(n int) bool {
		l := with(uint64(n) + 1)
		return l.Compile() != nil
	}))
}

// grouped writes a number with a comma after each three digits.
func grouped(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
