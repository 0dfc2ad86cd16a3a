package yamlform

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
)

// repeated is a text n times, with %d as the index.
func repeated(text string, n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(text, "%d", strconv.Itoa(i)))
	}
	return b.String()
}

// The values that aliases expand to are counted, and reading ends at a bound: keys that are skipped or unknown count
// too.
func TestExpandedIsBounded(t *testing.T) {
	racetest.Sequential(t)
	const n = 4000
	keys := repeated("k%d: 1, ", n)
	aliases := repeated("*a, ", n)
	for name, text := range map[string]string{
		"unknown keys":        "boxes: [&a {" + keys + "}, " + aliases + "]",
		"unknown keys merged": "<<: [&a {" + keys + "}, " + aliases + "]",
		"free-form, merged":   "any: {a: &a {" + keys + "}, <<: [" + aliases + "]}",
		"lists":               "any: {a: &a [" + repeated("1, ", n) + "], b: [" + aliases + "]}",
		"merge keys":          "boxes: [&a {" + repeated("<<: {}, ", n) + "}, " + aliases + "]",
		"a key many times":    "boxes: [&a {" + repeated("text: ~, ", n) + "}, " + aliases + "]",
	} {
		for _, lenient := range []bool{false, true} {
			_, r := readBox(text, Options{Lenient: lenient})
			if r.Found() == 0 {
				t.Errorf("%s: no error", name)
			}
			// Beyond the bound no more aliases are followed.
			if got := r.expanded; got < r.most || got > r.most+2*n {
				t.Errorf("%s, lenient %v: %d values read through aliases, want about %d", name, lenient, got, r.most)
			}
		}
	}
}

// A mistake costs little if it is not reported: because several aliases lead to it, or because the file has too many
// mistakes.
func TestUnreportedMistakesAreCheap(t *testing.T) {
	racetest.Sequential(t)
	const n = 20_000
	for name, text := range map[string]string{
		"unknown keys":                   repeated("k%d: 1\n", n),
		"an unknown key behind aliases":  "boxes: [&a {txt: 1}, " + repeated("*a, ", n) + "]",
		"an unknown word behind aliases": "boxes: [&a {choice: tow}, " + repeated("*a, ", n) + "]",
		"an unknown zone behind aliases": "boxes: [&a {zone: Mars/Base}, " + repeated("*a, ", n) + "]",
		"unknown words":                  "boxes: [" + repeated("{choice: c%d}, ", n) + "]",
		"unknown zones":                  "boxes: [" + repeated("{zone: Mars/Base%d}, ", n) + "]",
		"a map twice":                    repeated("any: {a: 1}\n", n),
		"a text twice":                   repeated("k%d: 1\n", n) + repeated("text: a\n", n),
	} {
		for _, lenient := range []bool{false, true} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, r := readBox(text, Options{Lenient: lenient})
			runtime.ReadMemStats(&after)
			found := len(r.Errors()) + len(r.Warnings())
			if found == 0 || found > 2*(MaxErrors+1) {
				t.Errorf("%s, lenient %v: %d errors and warnings", name, lenient, found)
			}
			if strings.HasSuffix(name, "behind aliases") && found > 2 {
				t.Errorf("%s, lenient %v: %d errors for one mistake", name, lenient, found)
			}
			if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 4096 {
				t.Errorf("%s, lenient %v: %d bytes are allocated for each of %d mistakes, want at most 4096", name, lenient, each, n)
			}
		}
	}
}

// A lenient reader merges a map that occurs many times under one key into one map with the keys of all, the last of
// each.
func TestMapManyTimes(t *testing.T) {
	b, r := readBox("boxes: {text: a}\nboxes: {version: b}\nboxes: {text: c}\nboxes: {flag: yes}\n", Options{Lenient: true})
	if errs := r.Errors(); len(errs) > 0 || len(b.boxes) != 1 || b.boxes[0].text != "c" || b.boxes[0].version != "b" || !b.boxes[0].flag {
		t.Errorf("%+v %v", b, errs)
	}
	var lines []int
	for _, w := range r.Warnings() {
		lines = append(lines, w.Line)
	}
	if want := []int{2, 3, 3, 4}; !slices.Equal(lines, want) {
		t.Errorf("warnings in lines %v, want %v: %v", lines, want, r.Warnings())
	}
}
