package ratelimit_test

import (
	"os/exec"
	"strings"
	"testing"
)

// What only the service needs is not imported: a program that uses the library does not become larger by it.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const module = "github.com/ratelimitd/ratelimitd/"
	seen := 0
	for path := range strings.FieldsSeq(string(out)) {
		for _, unwanted := range []string{
			"google.golang.org/grpc", "github.com/envoyproxy/", "github.com/alecthomas/kong", "go.opentelemetry.io/", "golang.org/x/net/", "connectrpc.com/",
			"github.com/cloudevents/", "github.com/prometheus/", "github.com/DataDog/", module + "proto", module + "client", module + "middleware",
			module + "internal/server", module + "internal/operator", module + "internal/server/transport", module + "internal/platform/endpoint",
			module + "internal/operator/console", module + "internal/config/xds", module + "internal/platform/tracing", module + "internal/platform/metric/prom", module + "internal/authoring/simulate", module + "internal/lending/quota",
		} {
			if strings.HasPrefix(path, unwanted) {
				t.Errorf("it imports %s", path)
			}
		}
		if strings.HasPrefix(path, module) {
			seen++
		}
	}
	if seen < 10 {
		t.Errorf("only %d packages of this module:\n%s", seen, out)
	}
}
