package accesslog_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/yamlform"
	"github.com/ratelimitd/ratelimitd/internal/yamlform/yamlformtest"
)

// Reading a hostile mapping costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileMappings(t *testing.T) {
	mappings := yamlformtest.Language{Top: "format: json\ntime: t\ndomain: d\n", List: "descriptors", Item: "entries: [{key: k, field: f}]", Key: "hits", Aliases: true}
	mappings.Test(t, func(data []byte) int {
		_, errs := accesslog.ParseMapping("m.yaml", data)
		return len(errs)
	})
}

// The same holds for a mapping with very many fields, which a log with very many columns has, or lacks.
func TestManyFields(t *testing.T) {
	const n = 20_000
	var columns, good, bad strings.Builder
	for i := range n {
		fmt.Fprintf(&columns, "c%d, ", i)
		fmt.Fprintf(&good, "{key: k, field: c%d}, ", i)
		fmt.Fprintf(&bad, "{key: k, field: other-%d}, ", i)
	}
	for entries, want := range map[string]int{good.String(): 0, bad.String(): yamlform.MaxErrors + 1} {
		text := "format: csv\ncolumns: [" + columns.String() + "]\ntime: c0\ndomain: d\ndescriptors: [[" + entries + "]]\n"
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
