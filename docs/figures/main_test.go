package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
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

// Pages that repeat ratios from the table in docs/reference/performance.md repeat them correctly.
func TestRatiosAreThoseOfTheTable(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const performance = "../reference/performance.md"
	page := read(performance)
	ratio := ratios(page)
	for _, name := range []string{performance, "../understand/comparison.md"} {
		text, _, _ := strings.Cut(read(name), "\n| | target |")
		for _, target := range []string{"b", "c"} {
			if want := fmt.Sprintf("%.2fx", ratio[target]); ratio[target] == 0 || !strings.Contains(text, want) {
				t.Errorf("%s does not have %s, the ratio of %s", name, want, target)
			}
		}
	}

	// The README gives ranges over the machines measured.
	span := regexp.MustCompile(`\*\*([0-9.]+)x to ([0-9.]+)x\*\*`).FindAllStringSubmatch(read("../../README.md"), -1)
	if len(span) != 2 {
		t.Fatalf("README.md has %d ranges of ratios, want one for memory and one for Redis", len(span))
	}
	for i, target := range []string{"b", "c"} {
		least, _ := strconv.ParseFloat(span[i][1], 64)
		most, _ := strconv.ParseFloat(span[i][2], 64)
		if r := ratio[target]; r < least || r > most {
			t.Errorf("README.md says %s for %s, and the table %.2fx", span[i][0], target, r)
		}
	}
}
