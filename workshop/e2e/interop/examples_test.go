package interop

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

// examples is the directory of the examples, seen from the directory of a client.
var examples = filepath.Join("..", "..", "..", "examples")

const exampleRules = `
domain: interop
descriptors:
  - {key: customer, rate_limit: {unit: day, requests_per_unit: 1, align: first_hit}}
  - {key: mail, rate_limit: {unit: second, unit_multiplier: 4, requests_per_unit: 1, algorithm: leaky_bucket}}
`

// exampleRulesWithHeader have a Retry-After that is not the time until the limit is reset.
const exampleRulesWithHeader = `
domain: header
headers: [{name: Retry-After, value: "77"}]
descriptors:
  - {key: customer, rate_limit: {unit: day, requests_per_unit: 1}}
`

// exampleClients are the programs in examples/ that call the service, each built as its README says.
var exampleClients = []client{
	{
		name: "python", program: "python3",
		install: func(t *testing.T, directory string) {
			installPython(t, directory, filepath.Join(examples, "python", "requirements.txt"))
		},
		command: func(directory string, args ...string) command {
			return command{line: append([]string{filepath.Join(directory, "bin", "python"), filepath.Join(examples, "python", "limit.py")}, args...)}
		},
	},
	{
		name: "typescript", program: "npm",
		install: func(t *testing.T, directory string) {
			installNode(t, directory)
			execute(t, directory, "npm", "run", "--silent", "build")
		},
		command: func(directory string, args ...string) command {
			return command{line: append([]string{"node", filepath.Join(directory, "dist", "limit.js")}, args...)}
		},
	},
	{
		name: "java", program: "mvn",
		install: func(t *testing.T, directory string) {
			execute(t, filepath.Join(examples, "java"), "mvn", "--quiet", "--batch-mode", "-Dout="+directory, "compile")
		},
		command: func(directory string, args ...string) command {
			path := filepath.Join(directory, "classes") + ":" + filepath.Join(directory, "libraries", "*")
			return command{line: append([]string{"java", "-cp", path, "Limit"}, args...)}
		},
	},
	{
		name: "rust", program: "cargo",
		install: func(t *testing.T, directory string) {
			execute(t, filepath.Join(examples, "rust"), "cargo", "build", "--quiet", "--locked", "--target-dir", directory)
		},
		command: func(directory string, args ...string) command {
			return command{line: append([]string{filepath.Join(directory, "debug", "limit")}, args...)}
		},
	},
}

// Each example obeys the answers, and lets requests pass when it gets no answer.
func TestExamples(t *testing.T) {
	wanted(t)
	program, err := build.Ratelimitd(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	rules := servicetest.RulesOf(t, exampleRules)
	if err := os.WriteFile(filepath.Join(rules, "header.yaml"), []byte(exampleRulesWithHeader), 0o600); err != nil {
		t.Fatal(err)
	}
	working := servicetest.Start(t, "a service that counts in memory", exec.Command(program, "serve", "--rules", rules)).GRPC
	hanging := redistest.Start(t)
	stuck := start(t, program, "a service whose Redis hangs", hanging.Addr).GRPC
	hanging.Pause(t)
	stopped := servicetest.Start(t, "a service that hangs", exec.Command(program, "serve", "--rules", rules))
	stopped.Signal(t, syscall.SIGSTOP)
	t.Cleanup(func() { stopped.Signal(t, syscall.SIGCONT) })
	for _, c := range exampleClients {
		t.Run(c.name, func(t *testing.T) {
			c.needsProgram(t)
			directory := directoryOf(t, "examples-"+c.name)
			c.install(t, directory)
			e := example{client: c, directory: directory}
			servicetest.NotAtMidnight() // it could be between two calls of the domain header
			e.patiently(t, working)
			e.withoutAnswer(t, stopped.GRPC, stuck)
		})
	}
}

// example is an example that is installed.
type example struct {
	client

	directory string
}

// run runs the example once with the service's address. It returns the output, the log and the exit code of the
// example.
func (e example) run(t *testing.T, address string, env []string, args ...string) (out, log string, code int) {
	t.Helper()
	if e.name == "rust" {
		address = "http://" + address
	}
	of := e.command(e.directory, args...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, of.line[0], of.line[1:]...)
	cmd.Env = append(append(os.Environ(), "LIMIT_ADDRESS="+address), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	printed, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(printed), "\n"), errs.String(), cmd.ProcessState.ExitCode()
}

// patiently gives the example enough time for an answer on a busy machine.
func (e example) patiently(t *testing.T, address string) {
	t.Helper()
	ask := func(args ...string) (string, int) {
		out, log, code := e.run(t, address, []string{"LIMIT_DEADLINE_MS=30000"}, args...)
		if code > 1 || strings.Contains(log, "not limited") {
			t.Errorf("%q: exit code %d, and it logs\n%s", args, code, log)
		}
		return out, code
	}
	customer := "customer=" + e.name
	if out, code := ask("interop", customer); out != "allowed" || code != 0 {
		t.Errorf("the first request: %q, exit code %d", out, code)
	}
	out, code := ask("interop", customer)
	wait := regexp.MustCompile(`^denied, retry after (\d+) s$`).FindStringSubmatch(out)
	if wait == nil || code != 1 {
		t.Errorf("the second request: %q, exit code %d", out, code)
	} else if seconds, err := strconv.Atoi(wait[1]); err != nil || seconds > 24*60*60 || seconds < 23*60*60 {
		t.Errorf("%q, where the day has just begun", out)
	}
	if out, code := ask("interop", customer, "region=other"); out != "allowed" || code != 0 {
		t.Errorf("two entries, which no rule has: %q, exit code %d", out, code)
	}

	ask("header", customer)
	if out, code := ask("header", customer); out != "denied, retry after 77 s" || code != 1 {
		t.Errorf("with a header of 77 s: %q, exit code %d", out, code)
	}

	began := time.Now()
	service := ratelimitv3.NewRateLimitServiceClient(servicetest.Dial(t, address))
	if _, err := service.ShouldRateLimit(servicetest.Within(t), servicetest.Ask("interop", "mail", e.name)); err != nil {
		t.Fatal(err)
	}
	out, code = ask("interop", "mail="+e.name)
	const delay = 4*time.Second - 10*time.Millisecond // timers may be a little early
	if took := time.Since(began); out != "allowed" || code != 0 || took < delay {
		t.Errorf("a request that has to wait: %q, exit code %d, after %v", out, code, took)
	}
}

// noAnswer matches the output of an example that got no answer. The libraries word the reason differently. Where the
// service hangs, the reason must be the deadline: without one, keepalive ends the call much later.
const (
	noAnswer = `(?i)^not limited: (unavailable|deadline_?exceeded|cancelled|unknown): .`
	tooLate  = `(?i)^not limited: (deadline_?exceeded: .|cancelled: timeout expired)`
)

// withoutAnswer runs the example, with its default deadlines, where it gets no answer.
func (e example) withoutAnswer(t *testing.T, hangs, redisHangs string) {
	t.Helper()
	for _, c := range []struct{ what, address, want string }{
		{"nobody listens", redistest.FreeAddr(t), noAnswer},
		{"the service hangs", hangs, tooLate},
		{"Redis hangs", redisHangs, noAnswer},
	} {
		out, log, code := e.run(t, c.address, nil, "interop", "open="+e.name)
		if !regexp.MustCompile(c.want).MatchString(out) || code != 0 {
			t.Errorf("%s: %q, exit code %d", c.what, out, code)
		}
		if !strings.Contains(log, "not limited") {
			t.Errorf("%s: it logs %q", c.what, log)
		}
	}
}
