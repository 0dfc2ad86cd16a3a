package deploy

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// built reports whether there is a rootfs to remove.
var built atomic.Bool

// rootfs is the content of the image, built as the Dockerfile builds it, once for all tests.
var rootfs = sync.OnceValues(func() (string, error) {
	built.Store(true)
	dir, err := os.MkdirTemp("", "rootfs")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the image's user looks in
		return "", err
	}
	out, err := exec.Command("../workshop/scripts/rootfs", dir).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("workshop/scripts/rootfs: %w\n%s", err, out)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built.Load() {
		if dir, err := rootfs(); err == nil {
			_ = os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

func image(t *testing.T) string {
	t.Helper()
	dir, err := rootfs()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// inImage prepares a command that sees the image's files and nothing else, as the image's user.
func inImage(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Path = args[0] // looked up in the chroot
	cmd.Err = nil
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: image(t)}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
	} else { // a user name space lets anyone change root
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 65532, HostID: os.Getegid(), Size: 1}}
	}
	return cmd
}

// served is a service that runs in the image.
type served struct {
	grpc, http string
	env        []string // variables with which its neighbours in the image find it
}

var listening = regexp.MustCompile(`"grpc":"([^"]+)".*"http":"([^"]+)"`)

// serveInImage runs an image's command until the test ends and waits until it listens.
func serveInImage(t *testing.T, env []string, args ...string) served {
	t.Helper()
	return serve(t, inImage(t, args...), env)
}

// serve runs a command that serves until the test ends, and waits until it listens.
func serve(t *testing.T, cmd *exec.Cmd, env []string) served {
	t.Helper()
	cmd.Env = append([]string{"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0", "LOG_FORMAT=json"}, env...)
	var log lockedBuffer
	cmd.Stderr = &log
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOSPC) {
		missing(t, "root or user name spaces, to run the image's files in isolation")
	} else if err != nil {
		t.Fatalf("start %q: %v", cmd.Args, err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("%q said:\n%s", cmd.Args, log.String())
		}
	})
	for deadline := time.After(30 * time.Second); ; {
		if m := listening.FindStringSubmatch(log.String()); m != nil {
			_, port, err := net.SplitHostPort(m[2])
			if err != nil {
				t.Fatal(err)
			}
			return served{m[1], m[2], []string{"HOST=127.0.0.1", "PORT=" + port}}
		}
		select {
		case <-ended:
			t.Fatalf("%q ended:\n%s", cmd.Args, log.String())
		case <-deadline:
			t.Fatalf("%q does not listen after 30 s:\n%s", cmd.Args, log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lockedBuffer may be written and read at the same time.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestImageRunsWithNothingElse(t *testing.T) {
	rules := []string{"RUNTIME_ROOT=/config", "RUNTIME_APPDIRECTORY=domains"}
	for _, line := range []string{
		"/bin/ratelimitd",
		"/bin/ratelimit",                 // Envoy Gateway and Istio: the command replaces the entry point
		"/bin/ratelimitd /bin/ratelimit", // envoyproxy/ratelimit's compose files: the command follows the entry point
		// a manifest of Envoy AI Gateway
		"/bin/ratelimit --quotaRateLimitServiceAddr=envoy-ai-gateway-ratelimit.envoy-gateway-system",
	} {
		t.Run(line, func(t *testing.T) {
			s := serveInImage(t, rules, strings.Fields(line)...)
			// The examples in the image answer: 5 a day.
			for i := range 6 {
				want := http.StatusOK
				if i == 5 {
					want = http.StatusTooManyRequests
				}
				if got := ask(t, s, `{"domain":"messaging","descriptors":[{"entries":[{"key":"message_type","value":"marketing"},{"key":"to_number","value":"1"}]}]}`); got != want {
					t.Errorf("request %d: status %d, want %d", i+1, got, want)
				}
			}
			check := inImage(t, "/bin/ratelimitd", "healthcheck")
			check.Env = s.env
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("healthcheck: %v: %s", err, out)
			}
		})
	}
	// Unasked, it serves none of them.
	unasked := inImage(t, "/bin/ratelimitd")
	unasked.Env = []string{"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0"}
	if out, err := unasked.CombinedOutput(); err == nil || !strings.Contains(string(out), "/srv/runtime_data/current/config") {
		t.Errorf("without rules: %v\n%s", err, out)
	}
	check := inImage(t, "/bin/ratelimitd", "healthcheck")
	check.Env = []string{"HOST=127.0.0.1", "PORT=1"}
	if out, err := check.CombinedOutput(); err == nil {
		t.Errorf("healthcheck passes with no server there: %s", out)
	}
}

func ask(t *testing.T, s served, body string) int {
	t.Helper()
	resp, err := http.Post("http://"+s.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// TestImageIsReproducible builds again from a copy of the sources somewhere else: the binary has the same bytes.
func TestImageIsReproducible(t *testing.T) {
	elsewhere := t.TempDir()
	copySources := exec.Command("sh", "-c", `git ls-files -z -co --exclude-standard | tar -c --null -T - | tar -x -C "$1"`, "sh", elsewhere)
	copySources.Dir = ".."
	if out, err := copySources.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v\n%s", err, out)
	}
	again := filepath.Join(elsewhere, "out")
	build := exec.Command(filepath.Join(elsewhere, "workshop/scripts/rootfs"), again)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("workshop/scripts/rootfs: %v\n%s", err, out)
	}
	first, second := digest(t, filepath.Join(image(t), "bin/ratelimitd")), digest(t, filepath.Join(again, "bin/ratelimitd"))
	if first != second {
		t.Errorf("two builds of the same sources differ: %s and %s", first, second)
	}
}

func digest(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// TestImageHasLicences looks for the texts that the licences of its parts demand.
func TestImageHasLicences(t *testing.T) {
	for _, name := range []string{"LICENSE", "THIRD_PARTY_NOTICES"} {
		if digest(t, filepath.Join(image(t), "usr/share/doc/ratelimitd", name)) != digest(t, filepath.Join("..", name)) {
			t.Errorf("the image has another %s", name)
		}
	}
}

// TestImageIsSmall bounds the size of the image, which every node pulls. The binary is nearly all of it.
func TestImageIsSmall(t *testing.T) {
	const most = 48 << 20
	var size int64
	if err := filepath.Walk(image(t), func(_ string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the image holds %.1f MB", float64(size)/1e6)
	if size > most {
		t.Errorf("the image holds %d bytes, more than %d", size, most)
	}
}

// TestDockerfile checks that the Dockerfile runs the same commands as the tests here.
func TestDockerfile(t *testing.T) {
	b, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"    GOOS=$TARGETOS GOARCH=$TARGETARCH VERSION=$VERSION COMMIT=$COMMIT DATE=$DATE workshop/scripts/rootfs /out",
		"FROM scratch",
		"COPY --from=build /out /",
		"USER 65532:65532",
		`HEALTHCHECK --interval=5s --timeout=3s --start-period=5s CMD ["/bin/ratelimitd", "healthcheck"]`,
		`ENTRYPOINT ["/bin/ratelimitd"]`,
	} {
		if !strings.Contains(string(b), "\n"+line+"\n") {
			t.Errorf("the Dockerfile lacks the line %s", line)
		}
	}
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`)
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "FROM --platform=$BUILDPLATFORM docker.io/library/golang:" + goVersion.FindStringSubmatch(string(mod))[1] + " "; !strings.Contains(string(b), want) {
		t.Errorf("the Dockerfile does not build with go.mod's Go: %q is missing", want)
	}
}

// TestImageHasAllSources checks that .dockerignore leaves all sources of the binary.
func TestImageHasAllSources(t *testing.T) {
	ignore, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("go", "list", "-deps", "-f", `{{if .Module}}{{if .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .EmbedFiles}}{{$d}}/{{.}}
{{end}}{{end}}{{end}}`, "./cmd/ratelimitd")
	list.Dir = ".."
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	files := strings.Fields(string(out))
	if len(files) < 100 {
		t.Fatalf("the binary is made of %d files only", len(files))
	}
	for _, name := range append(files, root+"/go.mod", root+"/go.sum", root+"/workshop/scripts/rootfs", root+"/config/domains", root+"/LICENSE", root+"/THIRD_PARTY_NOTICES") {
		name, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(name, "/")
		left := strings.Contains(string(ignore), "\n!/"+first+"\n") || strings.Contains(string(ignore), "\n!/"+name+"\n")
		if !left || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/testdata/") {
			t.Errorf(".dockerignore keeps %s from the image's build", name)
		}
	}
}
