package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The bootstrap files that people are told to copy do what the text beside them says. Only their ports are others here.
func TestExamples(t *testing.T) {
	for _, c := range []struct {
		name, config, rules string
		header              string
		limit               int
	}{
		{"envoy", "../examples/envoy/envoy.yaml", "../examples/envoy/rules", "x-api-key", 3},
		{"compose", "../deploy/compose/envoy.yaml", "../deploy/compose/rules", "x-user-id", 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, "ratelimitd", c.rules)
			_, port, _ := strings.Cut(s.grpc, ":")
			upstream := freePort(t)
			text, err := os.ReadFile(c.config)
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.NewReplacer(
				"port_value: 10000}", "port_value: 0}",
				"port_value: 9901}", "port_value: 0}",
				"address: 0.0.0.0,", "address: 127.0.0.1,",
				"port_value: 10001}", "port_value: "+upstream+"}",
				"port_value: 8081}", "port_value: "+port+"}",
				"address: ratelimitd-1,", "address: 127.0.0.1,",
				"address: ratelimitd-2,", "address: 127.0.0.1,",
				"timeout: 0.02s", "timeout: 10s", // a busy machine may be slower
				"timeout: 0.05s", "timeout: 10s",
			).Replace(string(text))
			config := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(config, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			e := startEnvoyOn(t, "envoy", config)
			e.awaitHealthy(t, "ratelimitd", strings.Count(changed, "port_value: "+port+"}"))
			var codes []int
			for try := 0; ; try++ { // a minute that ends meanwhile is no mistake
				began := time.Now().Truncate(time.Minute)
				codes = e.codes(t, c.limit+1, "front", "/", c.header, "somebody "+strconv.Itoa(try))
				if time.Now().Truncate(time.Minute).Equal(began) {
					break
				}
			}
			want := append(slices.Repeat([]int{200}, c.limit), 429)
			if !slices.Equal(codes, want) {
				t.Errorf("the answers are %v, want %v", codes, want)
			}
			if other := e.codes(t, 1, "front", "/", c.header, "somebody else"); other[0] != 200 {
				t.Errorf("somebody else got %d", other[0])
			}
		})
	}
}
