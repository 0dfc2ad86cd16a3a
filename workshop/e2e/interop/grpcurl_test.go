package interop

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tlstest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

const (
	grpcurl    = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
	rlsService = "envoy.service.ratelimit.v3.RateLimitService"
)

// grpcurl finds the services and their messages over reflection, and calls them, in plain text and over TLS.
func TestGrpcurl(t *testing.T) {
	wanted(t)
	directory := directoryOf(t, "grpcurl")
	install := exec.CommandContext(t.Context(), "go", "install", grpcurl)
	install.Env = append(os.Environ(), "GOBIN="+directory, "GOFLAGS=-mod=mod")
	install.Dir = t.TempDir() // outside of this module
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	program, err := build.Ratelimitd(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	authority := tlstest.NewAuthority(t, "grpcurl")
	pair := authority.Issue(t, "127.0.0.1")
	files := tlstest.NewVolume(t, map[string][]byte{"ca": authority.PEM, "cert": pair.Cert, "key": pair.Key})
	for _, c := range []struct {
		name string
		env  []string
		args []string
	}{
		{"plain", nil, []string{"-plaintext"}},
		{
			"TLS", []string{"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + files.Path("cert"), "GRPC_SERVER_TLS_KEY=" + files.Path("key")},
			[]string{"-cacert", files.Path("ca")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			servicetest.NotAtMidnight()
			service := start(t, program, "ratelimitd", redis.Addr, append(c.env, "RATELIMITD_GRPC_REFLECTION=true")...)
			call := func(options, verb []string) (string, error) {
				line := slices.Concat(c.args, options, []string{service.GRPC}, verb)
				out, err := exec.CommandContext(t.Context(), filepath.Join(directory, "grpcurl"), line...).CombinedOutput()
				return strings.Join(strings.Fields(string(out)), " "), err
			}
			const method = rlsService + "/ShouldRateLimit"
			request := `{"domain": "interop", "descriptors": [{"entries": [{"key": "some", "value": "grpcurl ` + c.name + `"}]}], "hits_addend": 600}`
			for _, step := range []struct {
				options, verb []string
				want          string // a part of the output
				fail          bool
			}{
				{nil, []string{"list"}, rlsService, false},
				{nil, []string{"describe", rlsService}, "rpc ShouldRateLimit ( .envoy.service.ratelimit.v3.RateLimitRequest )", false},
				{[]string{"-d", request}, []string{method}, `"overallCode": "OK"`, false},
				{[]string{"-d", request}, []string{method}, `"overallCode": "OVER_LIMIT"`, false},
				{[]string{"-d", "{}"}, []string{method}, "Code: InvalidArgument Message: rate limit domain must not be empty", true},
				{nil, []string{"grpc.health.v1.Health/Check"}, `"status": "SERVING"`, false},
				{[]string{"-max-time", "1"}, []string{"grpc.health.v1.Health/Watch"}, `"status": "SERVING"`, true},
			} {
				if got, err := call(step.options, step.verb); !strings.Contains(got, step.want) || (err != nil) != step.fail {
					t.Errorf("%q %q: %v\n%s\nwant %s", step.options, step.verb, err, got, step.want)
				}
			}
		})
	}
}
