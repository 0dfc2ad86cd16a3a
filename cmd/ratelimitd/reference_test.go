package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// Called by envoyproxy/ratelimit's name, the program serves, even with arguments that serve does not have. Arguments
// that serve has apply.
func TestServesUnderTheReferencesName(t *testing.T) {
	root, directory := filepath.Split(rulesOf(t, fiveADay))
	for _, c := range []struct {
		program string
		args    string
		ignored string
	}{
		{"", "/bin/ratelimit", ""},
		{"", "/bin/ratelimit --quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit.envoy-gateway-system", "--quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit.envoy-gateway-system"},
		{"", "ratelimit -x rules --near-limit-ratio 0.5 --shadow-mode --port=0 more", "-x rules more"},
		{"/bin/ratelimit", "", ""},
		{"/bin/ratelimit", "--quotaRateLimitServiceAddr a.b -- c", "--quotaRateLimitServiceAddr a.b -- c"},
		{"/bin/ratelimit", "serve", ""},
	} {
		t.Run(c.program+" "+c.args, func(t *testing.T) {
			cmd := command(t, map[string]string{"RUNTIME_ROOT": root, "RUNTIME_APPDIRECTORY": directory}, strings.Fields(c.args)...)
			if c.program != "" {
				cmd.Args[0] = c.program
			}
			p := servicetest.Start(t, "the service", cmd)
			var ignored []string
			for _, line := range p.Log.All(t, "unknown arguments are ignored, as envoyproxy/ratelimit ignores its arguments", 0) {
				for _, a := range line["arguments"].([]any) { //nolint:forcetypeassert // it is one
					ignored = append(ignored, a.(string)) //nolint:forcetypeassert // it is one
				}
			}
			if want := strings.Fields(c.ignored); !slices.Equal(ignored, want) {
				t.Errorf("ignored %q, want %q", ignored, want)
			}
		})
	}
	if code, stdout, _ := asks(t, "/bin/ratelimit", "version"); code != 0 || !strings.Contains(stdout, "go1.") {
		t.Errorf("version under the reference's name: %d %s", code, stdout)
	}
	if code, _, stderr := asks(t, "/bin/ratelimiter"); code != 2 || !strings.Contains(stderr, "unknown command") {
		t.Errorf("another program's path: %d %s", code, stderr)
	}
}
