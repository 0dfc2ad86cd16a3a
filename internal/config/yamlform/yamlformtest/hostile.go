// Package yamlformtest tests that a language that is read with package yamlform stays cheap for any file. A short text
// can expand to very much through aliases and merges, and a long one can have a mistake in every line. A reader must
// bound both: the errors that it reports, and the work.
//
// The work is measured in bytes allocated, not in time, so that a busy machine does not matter. Use Test in tests that
// do not run in parallel.
package yamlformtest

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
)

// Language describes the parts of a language that the texts contain.
type Language struct {
	Top  string // the lines of a good file that come before its list
	List string // the key of that list
	Item string // a good item without Key, in one line, without braces
	Key  string // a key that makes items distinct: its value is a text

	// Aliases adds the files whose aliases expand to millions of values. They take seconds, and yamlform bounds them for
	// all languages: a language needs them if it makes further passes over values.
	Aliases bool
}

// text is one hostile file.
type text struct {
	body string
	good bool // it has no mistake
	// squared is set if aliases expand to n times n values. Readers stop at yamlform.MaxExpanded of them.
	squared bool
}

// texts returns hostile files, each under a name that describes it. Their length grows in proportion to n.
func (l Language) texts(n int) map[string]text {
	many := func(format string) string { // n times, with %d as the index and %+ as the next one
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.NewReplacer("%d", strconv.Itoa(i), "%+", strconv.Itoa(i+1)).Replace(format))
		}
		return b.String()
	}
	file := func(items string) string { return l.Top + l.List + ": [" + items + "]\n" }
	item := l.Item + ", " + l.Key + ": v"
	unknown := many("k%d: 1, ")
	return map[string]text{
		"items that merge one": {body: file("&a {" + item + "}, " + many("{"+l.Key+": v%d, <<: *a}, ")),
			good: true},
		"one map merged many times":       {body: file("{<<: [&a {" + item + "}, " + many("*a, ") + "]}"), good: true},
		"unknown keys":                    {body: l.Top + many("k%d: 1\n")},
		"an unknown key in every item":    {body: file(many("{k%d: 1}, "))},
		"one mistake behind many aliases": {body: file("&a {nope: 1}, " + many("*a, "))},
		"a key twice, many times":         {body: file("{" + unknown + many(l.Key+": {x: 1}, ") + "}")},
		"the list's key, many times":      {body: many("k%d: 1\n") + many(l.List+": {x: 1}\n")},
		"many merge keys":                 {body: file("{" + many("<<: {}, ") + "}")},
		"merges in merges":                {body: file("&a0 {}, " + many("&a%+ {<<: *a%d}, "))},
		"lists in lists": {body: l.Top + l.List + ": " + strings.Repeat("[", n) + strings.Repeat("]", n) +
			"\n"},
		"lists in lists without an end": {body: l.Top + l.List + ": " + strings.Repeat("[", n)},
		"maps in maps": {body: l.Top + l.List + ": " +
			strings.Repeat("{"+l.List+": ", n) + strings.Repeat("}", n) + "\n"},
		"many documents": {body: many("--- {k%d: 1}\n")},

		"unknown keys behind many aliases": {body: file("&a {" + unknown + "}, " + many("*a, ")), squared: true},
		"unknown keys merged many times":   {body: file("{<<: [&a {" + unknown + "}, " + many("*a, ") + "]}"), squared: true},
		"merge keys behind many aliases":   {body: file("&a {" + many("<<: {}, ") + "}, " + many("*a, ")), squared: true},
		"a list behind many aliases":       {body: file("&a [" + many("{}, ") + "], " + many("*a, ")), squared: true},
	}
}

// Test reads hostile files. read returns how many errors a file has.
func (l Language) Test(t *testing.T, read func(data []byte) int) {
	n := 4_000 // enough to reach yamlform.MaxExpanded where the cost is n squared
	if testing.Short() {
		n = 2_000
	}
	for name, text := range l.texts(n) {
		if text.squared && !l.Aliases {
			continue
		}
		most := uint64(n) * 8192
		if text.squared {
			most += 1024 * uint64(yamlform.MaxExpanded(len(text.body)))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		errs := read([]byte(text.body))
		runtime.ReadMemStats(&after)
		if errs > yamlform.MaxErrors+1 {
			t.Errorf("%s: %d errors, want at most %d", name, errs, yamlform.MaxErrors+1)
		}
		if (errs == 0) != text.good {
			t.Errorf("%s: %d errors, a good file: %v", name, errs, text.good)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > most {
			t.Errorf("%s: reading %d bytes allocates %d bytes, want at most %d", name, len(text.body), allocated, most)
		}
	}
}
