package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The committed pictures are the ones that today's arithmetic and tables draw.
func TestPicturesAreUpToDate(t *testing.T) {
	for name, draw := range figures {
		have, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != draw("..") {
			t.Errorf("%s is not what the code draws: go run ./docs/figures", name)
		}
	}
}

// The table of comparison.md is that of measuring.md, and the README quotes their sums.
func TestOneTableOfCosts(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	shown := compared("..")
	measured := costs(read("../contributing/measuring.md"), "| | 1 connection, 1 call in flight | 1,000 calls a second | busy |")
	for at, column := range map[string]string{busy: "busy", "1,000 calls a second": "1,000 calls a second", single: "1 connection, 1 call in flight"} {
		for _, service := range []string{rival, ours} {
			if got, want := shown[[2]string{at, service}], measured[[2]string{service, column}]; got != want || got == (spent{}) {
				t.Errorf("%s, %s: %v in comparison.md, %v in measuring.md", service, at, got, want)
			}
		}
	}
	readme := read("../../README.md")
	for at, row := range map[string]string{busy: "CPU of server and Redis", single: "the same, one"} {
		sum := func(service string) float64 {
			us := shown[[2]string{at, service}]
			return us.server + us.redis
		}
		want := fmt.Sprintf(" | %.0f µs | %.0f µs |", sum(rival), sum(ours))
		if _, line, _ := strings.Cut(readme, "\n| "+row); !strings.HasSuffix(strings.SplitN(line, "\n", 2)[0], want) {
			t.Errorf("the row of README.md that begins with %q does not end with%s", row, want)
		}
	}
}
