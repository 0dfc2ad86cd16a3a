//go:build linux

package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	patience  = time.Minute     // longest time for any step on a busy machine
	largest   = 48 << 20        // bytes of the image: docs/do/containers.md
	quickStop = 2 * time.Second // longest stop without a drain delay; an idle machine takes a tenth of it
)

// services are all of docker-compose.yml but Grafana.
var services = []string{"redis", "ratelimitd-1", "ratelimitd-2", "envoy", "prometheus"}

func TestContainers(t *testing.T) {
	if os.Getenv("RATELIMITD_CONTAINERS") == "" {
		t.Skip("NOT RUN without RATELIMITD_CONTAINERS: workshop/scripts/test-compose sets it")
	}
	if directory := os.Getenv(inside); directory != "" {
		testContainers(t, directory)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip(skipped + "root, which dockerd needs")
	}
	lookup(t, "dockerd", "workshop/scripts/install-docker")
	compose, err := filepath.Abs(lookup(t, "../../.tools/compose/docker-compose", "workshop/scripts/install-docker"))
	if err != nil {
		t.Fatal(err)
	}
	directory, err := os.MkdirTemp("", "containers") // not t.TempDir: a socket's path has room for about 100 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(compose, filepath.Join(directory, "docker-compose")); err != nil {
		t.Fatal(err)
	}
	imagesOf(t, directory)
	sources(t, filepath.Join(directory, "sources"))
	inNamespaces(t, directory)
	t.Log("Grafana is left out: no package has it. The tests of deploy/ read its files.")
}

// sources copies the files of this repository: the test changes some.
func sources(t *testing.T, to string) {
	t.Helper()
	if err := os.Mkdir(to, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `git ls-files -z -co --exclude-standard | tar -c --null -T - | tar -x -C "$1"`, "sh", to)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v\n%s", err, out)
	}
}

func testContainers(t *testing.T, directory string) {
	d := startDaemon(t, directory)
	project := filepath.Join(directory, "sources")
	d.importImages(t, map[string]string{
		"redis":      named(t, project, "docker-compose.yml", `image: (\S+/redis:\S+)`),
		"envoy":      named(t, project, "docker-compose.yml", `image: (\S+/envoy:\S+)`),
		"prometheus": named(t, project, "docker-compose.yml", `image: (\S+/prometheus:\S+)`),
		"go":         named(t, project, "Dockerfile", `FROM --platform=\S+ (\S+/golang:\S+) AS build`),
	})
	up := func(args ...string) {
		t.Helper()
		d.compose(t, project, append(append([]string{"up", "--detach", "--wait"}, args...), services...)...)
	}
	up("--build")
	// Now Envoy listens, and five requests a minute pass.
	limited(t)
	if t.Failed() {
		return
	}
	ids := make(map[string]string)
	for _, name := range services {
		c := d.of(t, name)
		if len(c) != 1 {
			t.Fatalf("%s has %d containers", name, len(c))
		}
		ids[name] = c[0].ID
	}
	t.Run("nothing is reachable from outside", func(t *testing.T) {
		for name, id := range ids {
			for port, bindings := range d.inspect(t, id).HostConfig.PortBindings {
				for _, b := range bindings {
					if b.HostIP != "127.0.0.1" {
						t.Errorf("%s publishes %s on %q", name, port, b.HostIP)
					}
				}
			}
		}
	})
	t.Run("image", func(t *testing.T) { d.testImage(t, project, ids["ratelimitd-1"]) })
	t.Run("privileges", func(t *testing.T) { d.testPrivileges(t, ids["ratelimitd-1"]) })
	t.Run("signals", func(t *testing.T) { d.testSignals(t) })
	t.Run("no IPv6", func(t *testing.T) { d.testNoIPv6(t) })
	t.Run("a short outage of Redis is logged", func(t *testing.T) { d.testOutage(t, ids) })
	t.Run("rules are reloaded", func(t *testing.T) { testReload(t, project) })
	t.Run("restart", func(t *testing.T) { d.testRestart(t, project) })
	up("--scale", "ratelimitd-2=3")
	t.Run("replicas are scraped", func(t *testing.T) { d.testScraped(t, 4) })

	d.compose(t, project, "down")
	var left struct{ Volumes []struct{ Name string } }
	d.do(t, "GET", "/volumes", nil, &left)
	if len(left.Volumes) > 0 {
		t.Errorf("after down there are the volumes %+v", left.Volumes)
	}
}

// named finds the name of an image in a file.
func named(t *testing.T, project, file, pattern string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(project, file))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(pattern).FindSubmatch(b)
	if m == nil {
		t.Fatalf("%s has no %s", file, pattern)
	}
	return string(m[1])
}

// limited sends six requests of one customer through Envoy: five pass. If a minute ends between them, it tries another
// customer.
func limited(t *testing.T) {
	t.Helper()
	for try := 1; ; try++ {
		minute, got := time.Now().Minute(), ""
		for range 6 {
			got += strconv.Itoa(through(t, fmt.Sprintf("limited-%d-%d", time.Now().Minute(), try))) + " "
		}
		switch {
		case got == "200 200 200 200 200 429 ":
			return
		case time.Now().Minute() == minute || try == 3:
			t.Errorf("six requests: %s", got)
			return
		}
	}
}

// through sends a request through Envoy.
func through(t *testing.T, user string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:10000/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-user-id", user)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// page reads a page.
func page(ctx context.Context, url string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// await calls ok until it returns an empty string.
func await(t *testing.T, what string, ok func() (missing string)) bool {
	t.Helper()
	missing := ""
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if missing = ok(); missing == "" {
			return true
		}
	}
	t.Errorf("%s: not within %v: %s", what, patience, missing)
	return false
}

// The image is small, has no file that it does not need, and is not built again for a file that is not in it.
func (d *docker) testImage(t *testing.T, project, id string) {
	var image struct {
		ID   string
		Size int64
	}
	d.do(t, "GET", "/images/ratelimitd/json", nil, &image)
	t.Logf("the image has %.1f MB", float64(image.Size)/1e6)
	if image.Size > largest {
		t.Errorf("the image has %d bytes, more than %d", image.Size, largest)
	}
	if c := d.inspect(t, id); c.Image != image.ID {
		t.Errorf("the service runs %s, not %s", c.Image, image.ID)
	}
	for _, name := range []string{"docker-compose.yml", "README.md", "internal/limiter/limiter_test.go"} {
		f, err := os.OpenFile(filepath.Join(project, name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	before := image.ID
	said := d.compose(t, project, "build")
	d.do(t, "GET", "/images/ratelimitd/json", nil, &image)
	if image.ID != before || strings.Count(said, "CACHED") < 2 {
		t.Errorf("docker-compose.yml, README.md and a test changed, and the image was built again:\n%s", said)
	}
}

var statusLine = regexp.MustCompile(`(?m)^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):\s+(.*)$`)

// The service is not root, has no capability and can get none, and cannot write.
func (d *docker) testPrivileges(t *testing.T, id string) {
	c := d.inspect(t, id)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.State.Pid))
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, m := range statusLine.FindAllStringSubmatch(string(b), -1) {
		got[m[1]] = m[2]
	}
	if got["CapEff"] != "0000000000000000" || got["CapBnd"] != "0000000000000000" || got["NoNewPrivs"] != "1" || !strings.HasPrefix(got["Uid"], "65532\t65532") {
		t.Errorf("the process has %v", got)
	}
	if !c.HostConfig.ReadonlyRootfs {
		t.Error("its files can be written")
	}
	for _, m := range c.Mounts {
		if m.Type == "volume" {
			t.Errorf("it has a volume on %s", m.Destination)
		}
	}
}

var locked = map[string]any{"ReadonlyRootfs": true, "CapDrop": []string{"ALL"}}

// Signals end the service immediately if there is no drain delay, and with exit code 0.
func (d *docker) testSignals(t *testing.T) {
	for _, s := range []string{"SIGTERM", "SIGHUP"} {
		c := d.run(t, nil, locked)
		await(t, "its health", func() string {
			if code, said, err := page(t.Context(), "http://"+c.NetworkSettings.IPAddress+":8080/healthcheck"); err != nil || code != http.StatusOK {
				return fmt.Sprintf("%d %s %v", code, said, err)
			}
			return ""
		})
		before := time.Now()
		d.do(t, "POST", "/containers/"+c.ID+"/kill?signal="+s, nil, nil)
		var ended struct{ StatusCode int }
		d.do(t, "POST", "/containers/"+c.ID+"/wait", nil, &ended)
		took := time.Since(before)
		t.Logf("%s: it ended after %v", s, took.Round(time.Millisecond))
		if ended.StatusCode != 0 || took > quickStop || !strings.Contains(d.logs(t, c.ID), "signal received") {
			t.Errorf("%s: exit code %d after %v", s, ended.StatusCode, took)
		}
	}
}

// On a machine without IPv6 the health check of the image finds a service that listens on all addresses.
func (d *docker) testNoIPv6(t *testing.T) {
	host := map[string]any{"Sysctls": map[string]string{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1", "net.ipv6.conf.lo.disable_ipv6": "1"}}
	c := d.run(t, []string{"HOST=::", "GRPC_HOST=::"}, host)
	await(t, "its health", func() string {
		if now := d.inspect(t, c.ID); now.State.Health.Status != "healthy" {
			return now.State.Status + " " + now.State.Health.Status
		}
		return ""
	})
}

// Redis hangs for less than opens the breaker: the calls that it does not answer leave a line in the log.
func (d *docker) testOutage(t *testing.T, ids map[string]string) {
	const line = "because Redis did not answer"
	d.do(t, "POST", "/containers/"+ids["redis"]+"/pause", nil, nil)
	body := `{"domain":"demo","descriptors":[{"entries":[{"key":"user_id","value":"outage"}]}]}`
	resp, err := http.Post("http://127.0.0.1:8080/json", "application/json", strings.NewReader(body))
	d.do(t, "POST", "/containers/"+ids["redis"]+"/unpause", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("without Redis the answer is %d", resp.StatusCode)
	}
	await(t, "a line in the log", func() string {
		if said := d.logs(t, ids["ratelimitd-1"]); !strings.Contains(said, line) {
			return said
		}
		return ""
	})
}

// A rule file that is edited on the machine is loaded in the container.
func testReload(t *testing.T, project string) {
	name := filepath.Join(project, "deploy/compose/rules/demo.yaml")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(b), "requests_per_unit: 5\n", "requests_per_unit: 0\n", 1)
	for _, step := range []struct {
		text string
		want int
	}{{changed, http.StatusTooManyRequests}, {string(b), http.StatusOK}} {
		if err := os.WriteFile(name, []byte(step.text), 0o644); err != nil {
			t.Fatal(err)
		}
		tries := 0
		await(t, fmt.Sprintf("status %d", step.want), func() string {
			tries++
			if got := through(t, fmt.Sprintf("reload-%d", tries)); got != step.want {
				return strconv.Itoa(got)
			}
			return ""
		})
	}
}

// Prometheus finds every replica.
func (d *docker) testScraped(t *testing.T, want int) {
	found := await(t, fmt.Sprintf("%d targets", want), func() string {
		_, text, err := page(t.Context(), "http://127.0.0.1:9090/api/v1/targets?state=active")
		if err != nil {
			return err.Error()
		}
		var got struct {
			Data struct {
				ActiveTargets []struct {
					Health, ScrapeURL, LastError string
					Labels                       map[string]string
				}
			}
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			return err.Error()
		}
		up := map[string]int{}
		for _, target := range got.Data.ActiveTargets {
			if target.Health == "up" {
				up[target.Labels["job"]]++
			}
		}
		if up["ratelimitd"] != want || up["envoy"] != 1 {
			return text
		}
		return ""
	})
	if !found {
		t.Logf("Prometheus said:\n%s", d.logs(t, d.of(t, "prometheus")[0].ID))
	}
}

// testRestart restarts one ratelimitd after the other while requests arrive: each request is decided. A request that no
// ratelimitd answers would pass, and Envoy would count an error.
func (d *docker) testRestart(t *testing.T, project string) {
	patient(t, project)
	d.compose(t, project, "restart", "envoy")
	d.awaitHealth(t, "envoy")
	through(t, "restart") // Envoy counts from its first request
	before := undecided(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sent sync.WaitGroup
	answers := make([]map[int]int, 4)
	for i := range answers {
		answers[i] = make(map[int]int)
		sent.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				answers[i][through(t, fmt.Sprintf("restart-%d-%d", i, n))]++ // a new customer each time, who passes
				<-tick.C
			}
		})
	}
	for _, name := range []string{"ratelimitd-1", "ratelimitd-2"} {
		d.compose(t, project, "restart", name)
		d.awaitHealth(t, name)
		await(t, "Envoy to call it again", func() string { // it has three endpoints, with its upstream
			_, text, err := page(t.Context(), "http://127.0.0.1:9901/clusters")
			if healthy := strings.Count(text, "::health_flags::healthy") == 3; err == nil && healthy {
				return ""
			}
			return fmt.Sprintf("%v\n%s", err, text)
		})
	}
	stop()
	sent.Wait()
	all := make(map[int]int)
	for _, a := range answers {
		for code, n := range a {
			all[code] += n
		}
	}
	lost := undecided(t) - before
	t.Logf("%v, of these %d were not decided", all, lost)
	if all[http.StatusOK] < 100 || len(all) != 1 {
		t.Errorf("each caller was new and should have passed: %v", all)
	}
	if lost != 0 {
		_, text, _ := page(t.Context(), "http://127.0.0.1:9901/stats?usedonly&filter=cluster.ratelimitd")
		t.Errorf("%d requests were not decided. Envoy counts:\n%s", lost, text)
	}
}

// patient gives Envoy a longer timeout: on a busy machine some answers take longer than the 50 ms in the file.
func patient(t *testing.T, project string) {
	t.Helper()
	name := filepath.Join(project, "deploy/compose/envoy.yaml")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "timeout: 0.05s", "timeout: 10s", 1)
	if text == string(b) {
		t.Fatal("envoy.yaml has another timeout")
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (d *docker) awaitHealth(t *testing.T, service string) {
	t.Helper()
	for _, c := range d.of(t, service) {
		await(t, service+" to be healthy", func() string {
			if s := d.inspect(t, c.ID).State; s.Health.Status != "healthy" {
				return s.Status + " " + s.Health.Status
			}
			return ""
		})
	}
}

var failed = regexp.MustCompile(`(?m)^cluster\.upstream\.ratelimit\.error: (\d+)$`)

// undecided returns how many requests Envoy has let pass without an answer.
func undecided(t *testing.T) (n int) {
	t.Helper()
	_, text, err := page(t.Context(), "http://127.0.0.1:9901/stats?filter=ratelimit")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text, "cluster.upstream.ratelimit.ok: ") {
		t.Fatalf("Envoy does not count decisions:\n%s", text)
	}
	for _, m := range failed.FindAllStringSubmatch(text, -1) {
		count, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	return n
}
