package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/racetest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/servicetest"
)

// tutorialBlock matches the blocks of a page. A comment before a block may define its meaning.
//
//	<!-- file: NAME -->    the block is the content of this file
//	<!-- append: NAME -->  so is it, below the text of the file
//	<!-- steps -->         each run: in it is a command that must succeed
//	<!-- envoy: DOMAIN --> Envoy's rate_limits for rules of the page
//
// Two comments replace steps that a reader of the page has done before:
//
//	<!-- run: COMMAND -->  runs a command, which must succeed
//	<!-- serve: ARGS -->   starts the service
//
// The arguments of the service may start with settings: NAME=value.
//
// A block of console holds commands after "$ " and their output. A block without a language holds the service's log,
// once the page has started a service. A block of shellsession is not run: its commands need a cluster. A command in
// the text is run if the tests have its program, and must succeed.
var (
	tutorialBlock = regexp.MustCompile("(?s)````.*?````\n|(?:<!-- (file|append|steps|envoy)(?:: (\\S+))? -->\n)?```(\\w*)\n(.*?)```\n")
	tutorialRun   = regexp.MustCompile(`(?m)^- run: (.+)$`)
	elapsed       = regexp.MustCompile(`\bin [\d.]+(µs|us|ms|s)\b|[\d.]+ answers|[\d,]+ requests a second, \S+ in all|29\d\d left|reset in \S+|latency .*|"durationUntilReset":"[\d.]+s"`)
	logged        = regexp.MustCompile(`time=\S+ |(grpc|http|admin)=\S+`)
)

// followed are the pages whose commands TestTutorial runs.
var followed = []struct {
	page, directory string
	commands        int  // least number of commands on the page
	installed       bool // whether the page expects an installed program; otherwise it explains how to build one
}{
	{"learn/tutorial.md", "tutorial", 20, false},
	{"learn/first-limit.md", "first-limit", 8, false},
	{"do/block-or-exempt.md", "block-or-exempt", 6, true},
	{"do/blocked-customer.md", "blocked-customer", 6, true},
	{"do/checking-rules.md", "checking-rules", 3, true},
	{"do/cookbook.md", "cookbook", 1, true},
	{"learn/algorithms.md", "algorithms", 1, true},
	{"do/events.md", "events", 3, true},
	{"do/from-limitador.md", "shop", 8, false},
	{"do/migrate.md", "migrate", 5, true},
	{"do/monitor.md", "monitor", 3, true},
	{"do/overrides.md", "overrides", 5, true},
	{"do/production.md", "production", 5, true},
	{"do/roll-out.md", "roll-out", 3, true},
	{"do/runbook.md", "runbook", 15, true},
	{"do/simulating.md", "simulating", 3, true},
	{"do/sizing.md", "sizing", 2, true},
	{"do/testing-rules.md", "testing-rules", 3, true},
	{"do/troubleshooting.md", "troubleshooting", 10, true},
	{"reference/rule-file.md", "rule-file", 2, true},
	{"reference/http-api.md", "http-api", 7, true},
}

// betweenBlocks matches a comment that replaces a step, and commands in indented lines and in code.
var (
	betweenBlocks = regexp.MustCompile("(?m)^<!-- (run|serve): (.+) -->$|^    ((?:ratelimitd|curl|redis-cli|promtool|grep|jq)\\b(?:.*\\\\\n)*.*)$|`((?:ratelimitd|curl|redis-cli|promtool) [^`]+)`")
	behindCommand = regexp.MustCompile(`(?m) +# .*$`)
	// a log, a server or a name of the reader's
	needsMore = regexp.MustCompile(`access\.log$|--target|\bCOMMAND\b|\bFILE\b|version-N`)
)

// tutorial follows the page as a reader does.
type tutorial struct {
	home    string
	env     []string // environment of the service
	redis   string   // host:port of the Redis that replaces localhost:6379; empty if the page needs none
	shell   *shell
	service *servicetest.Process
	read    int // offset in the service's log up to which the page has shown it
}

// Every step of these pages gives the documented result, starting with the build of the binary into the reader's
// directory.
func TestTutorial(t *testing.T) {
	racetest.Sequential(t)
	for _, c := range followed {
		t.Run(c.directory, func(t *testing.T) {
			t.Parallel() // it spends most of its time waiting
			followPage(t, filepath.Join("..", "..", "docs", filepath.FromSlash(c.page)), c.directory, c.commands, c.installed)
		})
	}
}

// followPage executes the steps of a page, in a directory of that name.
func followPage(t *testing.T, page, directory string, atLeast int, installed bool) {
	t.Helper()
	servicetest.NotAtMidnight()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	r := &tutorial{home: filepath.Join(home, directory), shell: openShell(t, home)}
	if strings.Contains(string(text), "localhost:6379") || strings.Contains(string(text), "redis-cli ") {
		r.redis = redistest.Start(t).Addr
		host, port, _ := strings.Cut(r.redis, ":")
		r.mustRun(t, fmt.Sprintf(`redis-cli() { [ "$1" != -h ] || shift 2; command redis-cli -h %s -p %s "$@"; }`, host, port))
	}
	if installed {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		r.env = []string{asProcess + "=1"}
		r.mustRun(t, fmt.Sprintf(`mkdir -p ~/%[1]s/bin && ln -s '%[2]s' ~/%[1]s/bin/ratelimitd && cd ~/%[1]s && export PATH=$PWD/bin:$PATH %[3]s=1`, directory, self, asProcess))
	}
	var out strings.Builder
	end, commands := 0, 0
	for _, at := range tutorialBlock.FindAllSubmatchIndex(text, -1) {
		part := func(i int) string {
			if at[2*i] < 0 {
				return ""
			}
			return string(text[at[2*i]:at[2*i+1]])
		}
		body := part(4)
		if at[8] < 0 {
			continue // a block within a block
		}
		commands += r.between(t, string(text[end:at[0]]))
		out.Write(text[end:at[8]])
		end = at[9]
		switch kind, name := part(1), part(2); {
		case kind == "file":
			r.write(t, name, body, os.O_TRUNC)
		case kind == "envoy" || kind == "" && (part(3) == "yaml" || part(3) == "shellsession"):
			// The first is for TestShownActions of e2e, the others are only shown.
		case kind == "append":
			r.write(t, name, body, os.O_APPEND)
		case kind == "steps":
			for _, m := range tutorialRun.FindAllStringSubmatch(body, -1) {
				commands++
				r.mustRun(t, m[1])
			}
		case part(3) == "console":
			said, n := r.console(t, body)
			commands += n
			if masked(said) != masked(body) || !sameResets(said, body) {
				if *update {
					body = said
				} else {
					t.Errorf("%s says otherwise; if that is right: go test -run Tutorial -update\n--- documented\n%s--- got\n%s", page, body, said)
				}
			}
		case part(3) == "" && r.service != nil:
			r.logs(t, body)
		}
		out.WriteString(body)
	}
	commands += r.between(t, string(text[end:]))
	out.Write(text[end:])
	if commands < atLeast {
		t.Errorf("only %d commands in %s", commands, page)
	}
	if *update && out.String() != string(text) && !t.Failed() {
		if err := os.WriteFile(page, []byte(out.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// measured matches the values of metrics that differ: how long something took, and the number of counters; and since
// when a rule file is active, and keys are tracked.
var measured = regexp.MustCompile(`(?m)^((?:ratelimitd_request_duration_seconds|ratelimitd_memory_counters|process_cpu_seconds_total)\S*) .+$|( since )\S+|(Hits of the last ).+?Z`)

// resets matches the time until the reset of a limit of which nothing is left.
var resets = regexp.MustCompile(`\b0 left,.* reset in (\S+)`)

// sameResets reports whether each of these times is within five minutes of the one on the page. If that is more than an
// hour, the time depends on the time of day, and is not compared.
func sameResets(said, page string) bool {
	got := resets.FindAllStringSubmatch(said, -1)
	for i, m := range resets.FindAllStringSubmatch(page, -1) {
		want, err := time.ParseDuration(m[1])
		if err != nil || want > time.Hour {
			continue
		}
		if is, err := time.ParseDuration(got[i][1]); err != nil || (is-want).Abs() > 5*time.Minute {
			return false
		}
	}
	return true
}

// masked returns the text without the parts that differ in every run.
func masked(text string) string {
	return measured.ReplaceAllString(varying.ReplaceAllString(elapsed.ReplaceAllString(text, "#"), "#"), "$1$2$3 #")
}

// mustRun runs a command that has to succeed.
func (r *tutorial) mustRun(t *testing.T, command string) {
	t.Helper()
	if said, code := r.shell.run(t, command); code != 0 {
		t.Errorf("%s: exit code %d\n%s", command, code, said)
	}
}

// between executes the steps in the text between two blocks, and returns the number of commands.
func (r *tutorial) between(t *testing.T, text string) (commands int) {
	t.Helper()
	for _, m := range betweenBlocks.FindAllStringSubmatch(text, -1) {
		command := behindCommand.ReplaceAllString(m[3]+m[4], "")
		switch {
		case m[1] == "serve":
			r.serve(t, strings.Fields(m[2]))
			continue
		case m[1] == "run":
			r.mustRun(t, m[2])
			continue
		case m[4] != "" && len(strings.Fields(command)) < 3 || needsMore.MatchString(command):
			// the first is a name, such as "ratelimitd check"
			continue
		}
		commands++
		said, code := r.shell.run(t, "checked=-f; set -o pipefail; "+command+"\n")
		if code != 0 || said == "" && !strings.Contains(command, ">") {
			t.Errorf("%s: exit code %d\n%s", command, code, said)
		}
		r.shell.run(t, "checked=; set +o pipefail")
	}
	return commands
}

func (r *tutorial) write(t *testing.T, name, text string, how int) {
	t.Helper()
	path := filepath.Join(r.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|how, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// console runs the commands of a block and returns the block with their output.
func (r *tutorial) console(t *testing.T, body string) (said string, commands int) {
	t.Helper()
	var out strings.Builder
	for _, block := range strings.Split("\n"+body, "\n$ ")[1:] {
		line, documented, more := strings.Cut(block, "\n")
		for more && strings.HasSuffix(line, "\\") {
			var next string
			next, documented, more = strings.Cut(documented, "\n")
			line += "\n" + next
		}
		commands++
		fmt.Fprintf(&out, "$ %s\n", line)
		if settings, args, found := strings.Cut(" "+line, " ratelimitd --rules "); found {
			r.env = append(r.env, strings.Fields(strings.ReplaceAll(settings, "localhost:6379", r.redis))...)
			r.serve(t, strings.Fields("--rules "+args))
			r.logs(t, documented)
			out.WriteString(documented)
			continue
		}
		got, _ := r.shell.run(t, line)
		out.WriteString(got)
	}
	return out.String(), commands
}

// serve starts the built service in the shell's directory. The shell's calls then go to it.
func (r *tutorial) serve(t *testing.T, args []string) {
	t.Helper()
	settings := append([]string{"GRPC_PORT=0", "PORT=0", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "HOST=127.0.0.1"}, r.env...)
	for len(args) > 0 && strings.Contains(args[0], "=") && !strings.HasPrefix(args[0], "-") {
		settings, args = append(settings, strings.ReplaceAll(args[0], "localhost:6379", r.redis)), args[1:]
	}
	cmd := exec.Command(filepath.Join(r.home, "bin", "ratelimitd"), args...)
	cmd.Dir = r.home
	cmd.Env = settings
	r.service, r.read = servicetest.Run(t, "the service", cmd), 0
	_, rest, _ := strings.Cut(r.waitLog(t, "msg=listening"), "grpc=")
	grpc, rest, _ := strings.Cut(rest, " http=")
	http, rest, _ := strings.Cut(rest, " admin=")
	debug, _, _ := strings.Cut(rest, " ")
	r.read = 0
	r.mustRun(t, `ratelimitd() {
	case $1 in
	call) command ratelimitd "$@" --server `+grpc+` ;;
	peek | reset | usage | override) command ratelimitd "$@" --server `+debug+` ;;
	*) command ratelimitd "${@/localhost:6070/`+debug+`}" ;;
	esac
}`)
	r.mustRun(t, `curl() {
	local args=("${@/localhost:8080/`+http+`}")
	args=("${args[@]/HOST:8080/`+http+`}")
	args=("${args[@]/localhost:6070/`+debug+`}")
	args=("${args[@]/seconds=10/seconds=1}")
	command curl $checked "${args[@]}"
}`)
	r.mustRun(t, `openssl() { command openssl "${@/HOST:8081/`+grpc+`}"; }`)
}

// logs waits until the service has logged these lines in this order. Other lines may come between them.
func (r *tutorial) logs(t *testing.T, lines string) {
	t.Helper()
	for line := range strings.Lines(lines) {
		r.waitLog(t, strings.TrimSuffix(line, "\n"))
	}
}

// waitLog waits for a line that contains want, and returns it.
func (r *tutorial) waitLog(t *testing.T, want string) string {
	t.Helper()
	want = logged.ReplaceAllString(want, "")
	line, next := r.service.Log.Find(t, want, r.read, func(line string) bool {
		return strings.Contains(logged.ReplaceAllString(line, ""), want)
	})
	r.read = next
	return line
}

// shell is a shell that keeps its directory and variables between commands.
type shell struct {
	in  io.WriteCloser
	out *bufio.Reader
}

// openShell starts a shell in the project's top directory. Its environment has only the variables that Go needs.
func openShell(t *testing.T, home string) *shell {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	cmd := exec.CommandContext(ctx, "bash", "--norc", "--noprofile")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	variables := []string{"GOENV", "GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOTOOLCHAIN", "GOFLAGS"}
	values, err := exec.Command("go", append([]string{"env"}, variables...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, value := range strings.Split(strings.TrimSuffix(string(values), "\n"), "\n") {
		cmd.Env = append(cmd.Env, variables[i]+"="+value)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
		cancel()
	})
	return &shell{in, bufio.NewReader(out)}
}

// run runs a command and returns its output, standard error included, and its exit code.
func (s *shell) run(t *testing.T, command string) (said string, code int) {
	t.Helper()
	const mark = "--- exit code "
	if _, err := fmt.Fprintf(s.in, "%s\n{ code=$?; echo '%s'$code; (exit $code); }\n", command, mark); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, &out)
		}
		if before, after, found := strings.Cut(line, mark); found {
			out.WriteString(before)
			_, err := fmt.Sscan(after, &code)
			if err != nil {
				t.Fatal(err)
			}
			return out.String(), code
		}
		out.WriteString(line)
	}
}
