package accesslog_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/accesslog"
	"github.com/ratelimitd/ratelimitd/internal/yamlform/yamlformtest"
)

// Reading a hostile mapping costs work in proportion to its size, and gives a bounded number of errors.
func TestHostileMappings(t *testing.T) {
	mappings := yamlformtest.Language{Top: "format: json\ntime: t\ndomain: d\n", List: "descriptors", Item: "entries: [{key: k, field: f}]", Key: "hits"}
	mappings.Test(t, func(data []byte) int {
		_, errs := accesslog.ParseMapping("m.yaml", data)
		return len(errs)
	})
}
