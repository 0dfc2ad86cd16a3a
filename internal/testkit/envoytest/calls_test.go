package envoytest_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
)

const (
	path      = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
	authority = "ratelimitd"
)

// The repeated blocks mean calls with the same fields each time, except for the trace context.
func TestRepeatedBlocks(t *testing.T) {
	for _, tracing := range envoytest.Tracings {
		first, repeated := envoytest.Calls(tracing, path, authority)
		t.Logf("%s: %d blocks, then %d again and again", tracing, len(first), len(repeated))
		d := hpack.NewDecoder(4096, nil)
		want := envoytest.Fields(tracing, path, authority)
		for _, block := range slices.Concat(first, repeated, repeated, repeated) {
			got, err := d.DecodeFull(block)
			if err != nil {
				t.Fatal(err)
			}
			for i, f := range got {
				traced := strings.HasPrefix(f.Name, "trace") || strings.HasPrefix(f.Name, "x-b3-")
				if f.Name != want[i].Name || !traced && f != want[i] || len(f.Value) != len(want[i].Value) {
					t.Fatalf("%s: field %d is %v, want %v", tracing, i, f, want[i])
				}
			}
		}
	}
}
