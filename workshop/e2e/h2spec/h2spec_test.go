package h2spec

import (
	"net"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	"github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

const (
	// path is the method that the built-in HTTP/2 server answers itself.
	path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

	// cases is how many cases h2spec has. Without the number, a run that tests nothing would pass.
	cases = 146
)

// All cases of h2spec pass, and none is skipped.
func TestBuiltIn(t *testing.T) {
	program, err := build.Ratelimitd(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rules := servicetest.RulesOf(t, "domain: d\n")
	pair := tlstest.NewAuthority(t, "h2spec").Issue(t, "127.0.0.1")
	files := tlstest.NewVolume(t, map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key})
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"plain", nil},
		{"TLS", []string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + files.Path("tls.crt"), "GRPC_SERVER_TLS_KEY=" + files.Path("tls.key")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(program, "serve", "--rules", rules)
			cmd.Env = append([]string{"BACKEND_TYPE=memory"}, c.env...)
			service := servicetest.Start(t, "ratelimitd", cmd)
			host, port, err := net.SplitHostPort(service.GRPC)
			if err != nil {
				t.Fatal(err)
			}
			number, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			conf := &config.Config{
				Host: host, Port: number, Path: path, Strict: true, TLS: c.env != nil, Insecure: true,
				Timeout: 5 * time.Second, MaxHeaderLen: 4000,
			}
			ran := 0
			for _, group := range []*spec.TestGroup{generic.Spec(), http2.Spec(), hpack.Spec()} {
				group.Test(conf)
				ran += check(t, group)
			}
			if ran != cases {
				t.Errorf("%d cases ran, not %d", ran, cases)
			}
		})
	}
}

// check fails the test for each case of a group that did not pass, and returns how many cases ran.
func check(t *testing.T, group *spec.TestGroup) (ran int) {
	t.Helper()
	for _, c := range append(group.Tests, group.StrictTests...) {
		r := c.Result
		if r == nil {
			t.Errorf("%s: %q did not run", group.ID(), c.Desc)
			continue
		}
		ran++
		switch {
		case r.Skipped:
			t.Errorf("%s/%d: %q was skipped", group.ID(), r.Sequence, c.Desc)
		case r.Failed:
			t.Errorf("%s/%d: %q failed: %v", group.ID(), r.Sequence, c.Desc, r.Error)
		}
	}
	for _, inner := range group.Groups {
		ran += check(t, inner)
	}
	return ran
}
