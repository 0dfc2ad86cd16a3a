package outages

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

// patience is how long anything may take on a busy machine.
const patience = servicetest.Patience

var ratelimitd string // the service, built from the current sources

// TestMain builds the service.
func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "outages:", err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "outages")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if ratelimitd, err = build.Ratelimitd(dir); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// startProcess starts the service on free ports and waits until it listens. Its environment is env and nothing else. It
// stops at the end of the test.
func startProcess(t *testing.T, env map[string]string, args ...string) *servicetest.Process {
	t.Helper()
	cmd := exec.Command(ratelimitd, args...)
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	return servicetest.Start(t, "the service", cmd)
}

// header returns the value of a header of the answer.
func header(r *ratelimitv3.RateLimitResponse, key string) string {
	for _, h := range r.GetResponseHeadersToAdd() {
		if h.GetKey() == key {
			return h.GetValue()
		}
	}
	return "no header " + key
}
