package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
	"github.com/ratelimitd/ratelimitd/workshop/e2e/build"
)

const rules = `
domain: interop
descriptors:
  - {key: open, rate_limit: {unit: day, requests_per_unit: 1000000}}
  - {key: load, rate_limit: {unit: day, requests_per_unit: 1000000000}}
  - {key: some, rate_limit: {unit: day, requests_per_unit: 600}}
`

// Reports of each client, line by line: while Redis works, when it hangs, and at the start of the load.
const (
	works = `unary: OK
invalid: INVALID_ARGUMENT rate limit domain must not be empty
unknown method: UNIMPLEMENTED
gzip: OK
metadata: OK
1 MiB in 256 descriptors: OK 256
health: SERVING
health of another service: NOT_FOUND
1,000 at once: OK 600, OVER_LIMIT 400
`
	hangs = `deadline: DEADLINE_EXCEEDED
cancel: CANCELLED
`
	begins = `watch: SERVING
`
)

// client is a client in one language.
type client struct {
	name    string
	program string                                         // a program that the language needs
	install func(t *testing.T, directory string)           // installs its libraries into a directory that is kept
	command func(directory string, args ...string) command // runs it
	always  bool                                           // whether it runs without workshop/scripts/test-interop too
}

type command struct {
	line []string
	env  []string
}

var clients = []client{
	{
		name: "grpcgo", program: "go", always: true,
		install: func(t *testing.T, directory string) { execute(t, ".", "go", "build", "-o", directory, "./grpcgo") },
		command: func(directory string, args ...string) command {
			return command{line: append([]string{filepath.Join(directory, "grpcgo")}, args...)}
		},
	},
	{
		name: "python", program: "python3",
		install: func(t *testing.T, directory string) {
			installPython(t, directory, filepath.Join("python", "requirements.txt"))
		},
		command: func(directory string, args ...string) command {
			return command{line: append([]string{filepath.Join(directory, "bin", "python"), filepath.Join("python", "client.py")}, args...)}
		},
	},
	{
		name: "node", program: "npm",
		install: func(t *testing.T, directory string) {
			installNode(t, directory) // the TypeScript example has all its libraries
		},
		command: func(directory string, args ...string) command {
			return command{
				line: append([]string{"node", filepath.Join("node", "client.js")}, args...),
				env:  []string{"NODE_PATH=" + filepath.Join(directory, "node_modules")},
			}
		},
	},
	{
		name: "java", program: "mvn",
		install: func(t *testing.T, directory string) {
			execute(t, "java", "mvn", "--quiet", "--batch-mode", "-Dout="+directory, "compile")
		},
		command: func(directory string, args ...string) command {
			path := filepath.Join(directory, "classes") + ":" + filepath.Join(directory, "libraries", "*")
			return command{line: append([]string{"java", "-cp", path, "Client"}, args...)}
		},
	},
	{
		name: "rust", program: "cargo",
		install: func(t *testing.T, directory string) {
			execute(t, "rust", "cargo", "build", "--quiet", "--locked", "--target-dir", directory)
		},
		command: func(directory string, args ...string) command {
			return command{line: append([]string{filepath.Join(directory, "debug", "interop")}, args...)}
		},
	},
}

// installPython creates a virtual environment with the packages of a file.
func installPython(t *testing.T, directory, requirements string) {
	t.Helper()
	execute(t, ".", "python3", "-m", "venv", directory)
	execute(t, ".", filepath.Join(directory, "bin", "pip"), "install", "--quiet", "-r", requirements)
}

// installNode copies the example in TypeScript into a directory and installs its packages there.
func installNode(t *testing.T, directory string) {
	t.Helper()
	for _, file := range []string{"package.json", "package-lock.json", "tsconfig.json", "ratelimit.proto", "src"} {
		execute(t, ".", "cp", "-R", filepath.Join(examples, "typescript", file), directory)
	}
	execute(t, directory, "npm", "ci", "--no-audit", "--no-fund", "--silent")
}

// Each client gets the same answers, and none of its calls is lost while the service is replaced.
func TestClients(t *testing.T) {
	program, err := build.Ratelimitd(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			if !c.always {
				wanted(t)
			}
			c.needsProgram(t)
			directory := directoryOf(t, c.name)
			c.install(t, directory)
			c.run(t, program, directory)
		})
	}
}

// needsProgram leaves out a client whose language is not installed.
func (c *client) needsProgram(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath(c.program); err != nil {
		t.Skip("NOT RUN without " + c.program)
	}
}

// wanted skips a test of clients that must be installed first, unless workshop/scripts/test-interop runs it.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("RATELIMITD_INTEROP") == "" {
		t.Skip("workshop/scripts/test-interop runs this client")
	}
}

// directoryOf returns a directory for the libraries of a client. It is kept between runs.
func directoryOf(t *testing.T, name string) string {
	t.Helper()
	directory, err := filepath.Abs(filepath.Join("..", "..", "..", ".tools", "interop", name))
	if err == nil {
		err = os.MkdirAll(directory, 0o750)
	}
	if err != nil {
		t.Fatal(err)
	}
	return directory
}

// start starts the service.
func start(t *testing.T, program, name, redis string, env ...string) *servicetest.Process {
	t.Helper()
	cmd := exec.Command(program, "serve", "--rules", servicetest.RulesOf(t, rules))
	cmd.Env = append([]string{
		"REDIS_URL=" + redis, "REDIS_OP_TIMEOUT=1m",
	}, env...)
	return servicetest.Start(t, name, cmd)
}

// run runs a client against a service that is replaced by another process under its load.
func (c *client) run(t *testing.T, program, directory string) {
	servicetest.NotAtMidnight()
	redis := redistest.Start(t)
	hanging := redistest.Start(t)
	stuck := start(t, program, "a service whose Redis hangs", hanging.Addr)
	first := start(t, program, "the first service", redis.Addr)

	relay := servicetest.StartRelay(t, first.GRPC)
	p := c.start(t, directory, relay.Addr, stuck.GRPC)
	p.expect(t, works)
	hanging.Pause(t)
	p.goOn(t)
	p.expect(t, hangs)
	p.expect(t, begins)

	// The process is replaced as in an update: a second process gets the new connections, then the first one stops.
	awaitMore(t, redis, c.name, 200)
	second := start(t, program, "the second service", redis.Addr)
	relay.To(second.GRPC)
	first.Signal(t, syscall.SIGTERM)
	p.expect(t, "watch: NOT_SERVING\n")
	select {
	case <-first.Ended:
	case <-time.After(servicetest.Patience):
		t.Fatal("the first service does not end")
	}
	if !second.Running() {
		t.Fatal("the second service has ended")
	}
	awaitMore(t, redis, c.name, 200)
	p.goOn(t)
	load := p.line(t)
	if counted := loaded(t, redis, c.name); load != fmt.Sprintf("load: OK %d\n", counted) {
		t.Errorf("calls over the restart: %q, and Redis has counted %d\n%s", load, counted, p.err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// running is a client that has been started.
type running struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
	err *servicetest.Log
}

func (c *client) start(t *testing.T, directory string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	of := c.command(directory, args...)
	p := &running{cmd: exec.CommandContext(ctx, of.line[0], of.line[1:]...), err: new(servicetest.Log)}
	p.cmd.Env = append(os.Environ(), of.env...)
	p.cmd.Stderr = p.err
	p.cmd.SysProcAttr = redistest.EndsWithTest()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// goOn tells the client to continue.
func (p *running) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		t.Fatal(err)
	}
}

// expect compares the client's next lines.
func (p *running) expect(t *testing.T, want string) {
	t.Helper()
	var got strings.Builder
	for range strings.Count(want, "\n") {
		got.WriteString(p.line(t))
	}
	if got.String() != want {
		t.Errorf("it got\n%swant\n%s", &got, want)
	}
}

// line reads a line of the client's output.
func (p *running) line(t *testing.T) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the client has ended: %v\n%s", errors.Join(err, p.cmd.Wait()), p.err)
	}
	return line
}

// loaded returns how many calls of a client's load Redis has counted.
func loaded(t *testing.T, redis *redistest.Server, name string) int64 {
	t.Helper()
	return servicetest.Counts(t, "interop|load", redis)[name]
}

// awaitMore waits until Redis has counted n more calls of a client's load.
func awaitMore(t *testing.T, redis *redistest.Server, name string, n int64) {
	t.Helper()
	before := loaded(t, redis, name)
	redistest.Eventually(t, "more calls of "+name, func(context.Context) error {
		if now := loaded(t, redis, name); now < before+n {
			return fmt.Errorf("%d, before %d", now, before)
		}
		return nil
	})
}

// execute runs a command that must succeed.
func execute(t *testing.T, directory, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = directory
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
