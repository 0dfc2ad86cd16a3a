package ratelimit_test

import (
	"os/exec"
	"strings"
	"testing"
)

const (
	module  = "github.com/ratelimitd/ratelimitd/"
	redis   = "github.com/redis/"
	watcher = "github.com/fsnotify/"
)

// A program links only the packages that it uses: none that only the service needs, and no Redis or watcher of files if
// its limits need none.
func TestImports(t *testing.T) {
	for _, c := range []struct {
		packages string
		most     int      // packages of other modules; each is something to trust, and to update
		unwanted []string // more prefixes of packages that it must not link
	}{
		{".", 12, []string{"net/http", "crypto/tls", redis, watcher}},
		{"./rulefiles", 16, []string{"net/http", "crypto/tls", redis}},
		{"./redisstore", 40, []string{"net/http"}},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", c.packages).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var foreign []string
		ours := 0
		for line := range strings.Lines(string(out)) {
			path, standard, _ := strings.Cut(strings.TrimSpace(line), " ")
			for _, unwanted := range append(c.unwanted,
				"google.golang.org/grpc", "github.com/envoyproxy/", "github.com/alecthomas/kong", "go.opentelemetry.io/", "golang.org/x/net/", "connectrpc.com/",
				"github.com/cloudevents/", "github.com/prometheus/", "github.com/DataDog/", module+"proto", module+"client", module+"middleware",
				module+"internal/server", module+"internal/operator", module+"internal/platform/endpoint", module+"internal/config/xds",
				module+"internal/platform/tracing", module+"internal/platform/metric/prom", module+"internal/authoring", module+"internal/lending/quota",
			) {
				if strings.HasPrefix(path, unwanted) {
					t.Errorf("%s imports %s", c.packages, path)
				}
			}
			switch {
			case strings.HasPrefix(path, module):
				ours++
			case standard != "true":
				foreign = append(foreign, path)
			}
		}
		if len(foreign) > c.most {
			t.Errorf("%s imports %d packages of other modules, want at most %d: %q", c.packages, len(foreign), c.most, foreign)
		}
		if ours < 10 {
			t.Errorf("%s imports only %d packages of this module:\n%s", c.packages, ours, out)
		}
	}
}
