package accesslog_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/authoring/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/config/yamlform/yamlformtest"
)

// Reading a hostile mapping costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileMappings(t *testing.T) {
	mappings := yamlformtest.Language{Top: "format: json\ntime: t\ndomain: d\n", List: "descriptors", Item: "entries: [{key: k, field: f}]", Key: "hits", Aliases: true}
	mappings.Test(t, func(data []byte) int {
		_, errs := accesslog.ParseMapping("m.yaml", data)
		return len(errs)
	})
}

// The same is true for a mapping with very many fields, which a log with a very long pattern has, or lacks.
func TestManyFields(t *testing.T) {
	const n = 20_000
	var pattern, good, bad strings.Builder
	for i := range n {
		fmt.Fprintf(&pattern, "%%c%d%%,", i)
		fmt.Fprintf(&good, "{key: k, field: c%d}, ", i)
		fmt.Fprintf(&bad, "{key: k, field: other-%d}, ", i)
	}
	for entries, want := range map[string]int{good.String(): 0, bad.String(): yamlform.MaxErrors + 1} {
		text := "format: text\npattern: '" + pattern.String() + "'\ntime: c0\ndomain: d\ndescriptors: [[" + entries + "]]\n"
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, errs := accesslog.ParseMapping("m.yaml", []byte(text))
		runtime.ReadMemStats(&after)
		if len(errs) != want {
			t.Errorf("%d errors, want %d", len(errs), want)
		}
		if len(errs) > 0 && (len(errs[0].Msg) > 2000 || !strings.HasSuffix(errs[0].Msg, "`c99`, and 19900 more")) {
			t.Errorf("the first error is %s", errs[0])
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > n*32<<10 {
			t.Errorf("reading %d bytes allocates %d bytes, want at most %d", len(text), allocated, n*32<<10)
		}
	}
}

// The longest log_format and pattern, with very many variables and with very long texts, and the longest lines, cost
// time in proportion to their length: the work of reading them is done in far less than the bound here, and its square
// in far more. Messages stay short.
func TestLongestFormatsAndLines(t *testing.T) {
	const longest = 1<<20 - 1000 // a mapping has at most 1 MiB, and so has a line
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	blanks := strings.Repeat(" ", longest/2)
	const descriptors = "domain: d\ndescriptors: [[{key: k, field: a}]]\n"
	for _, c := range []struct{ name, mapping, line, want string }{
		{"variables", "format: nginx\npattern: '$msec $a" + many(100_000, " $v%d") + "'\n" + descriptors, "1772366400 x" + many(100_000, " %d"), "1 2026-03-01T12:00:00Z d (k=x) by k=x"},
		{"variables that the line lacks", "format: nginx\npattern: '$msec $a" + many(100_000, " $v%d") + "'\n" + descriptors, "1772366400 x y", `bad line 1: column 14: there is no " " after v0, as the log_format says`},
		{"operators", "format: text\npattern: '%T% %A%" + many(80_000, " %%V%d%%") + "'\ntime: {field: T, layout: unix}\n" + descriptors, "1772366400 x" + many(80_000, " %d"), "1 2026-03-01T12:00:00Z d (k=x) by k=x"},
		{"variables that are all used", "format: nginx\npattern: '$msec $a" + many(20_000, " $v%d") + "'\ndomain: d\ncustomer: {field: a}\ndescriptors: [[" + many(20_000, "{key: k, field: v%d}, ") + "], [{key: k, header: x}, {key: a, field: a}]]\n", "", "m.yaml: the log_format has no $http_x: the log does not have this header"},
		{"headers that are all used", "format: text\npattern: '%T%" + many(10_000, " %%REQ(V%d)%%") + "'\ntime: {field: T, layout: unix}\ndomain: d\ndescriptors: [[" + many(10_000, "{key: k, header: v%d}, ") + "], [{key: k, header: x}]]\n", "", "m.yaml: the pattern has no %REQ(X)%: the log does not have this header"},
		{"a text that nearly repeats", "format: nginx\npattern: '$msec $a" + blanks + "x$b'\n" + descriptors, "1772366400 x" + strings.Repeat(" ", longest), "bad line 1: column 12: there is no \"" + strings.Repeat(" ", 60) + "...\" after a, as the log_format says"},
		{"a beginning", "format: nginx\npattern: '" + blanks + "x$msec $a'\n" + descriptors, strings.Repeat(" ", longest), "bad line 1: it does not start with \"" + strings.Repeat(" ", 60) + "...\", as the log_format says"},
		{"a name", "format: nginx\npattern: '$msec $a \"$" + strings.Repeat("v", longest/2) + "\" x'\n" + descriptors, `1772366400 x "` + strings.Repeat("y", longest), "bad line 1: column 15: there is no \"\\\" x\" after " + strings.Repeat("v", 60) + "..., as the log_format says"},
		{"quotes", "format: nginx\npattern: '$msec $a \"$b\"'\n" + descriptors, `1772366400 x "` + strings.Repeat(`"`, longest), `bad line 1: column 16: unexpected text after the end of the log_format: "` + strings.Repeat(`\"`, 60) + `..."`},
		{"backslashes", "format: apache\ndomain: d\ndescriptors: [[{key: k, field: http_referer, part: first, default: a}]]\n", `a - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1 "` + strings.Repeat(`\"\\`, longest/4) + `" "`, `bad line 1: column 1047639: there is no "\"" after http_user_agent, as the common or combined format says`},
	} {
		began := time.Now()
		m, errs := accesslog.ParseMapping("m.yaml", []byte(c.mapping))
		var got []string
		for _, e := range errs {
			got = append(got, "m.yaml: "+e.Msg)
		}
		if m != nil {
			got = requests(t, m, c.line+"\n")
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: a mapping of %d bytes and a line of %d bytes take %s", c.name, len(c.mapping), len(c.line), took)
		}
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%s: %.300q, want %q", c.name, got, c.want)
		}
	}
}
