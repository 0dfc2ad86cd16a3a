package deploy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	composeFile = "../docker-compose.yml"
	regionsFile = "compose/regions/compose.yaml"
)

func compose(t *testing.T, file string) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{file}, cli.WithWorkingDirectory(filepath.Dir(file)))
	if err != nil {
		t.Fatal(err)
	}
	p, err := opts.LoadProject(t.Context()) // against compose's schema; unknown keys are errors
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCompose(t *testing.T) {
	p := compose(t, composeFile)
	for _, name := range []string{"redis", "ratelimitd-1", "ratelimitd-2", "envoy", "prometheus", "grafana"} {
		if _, ok := p.Services[name]; !ok {
			t.Errorf("there is no service %s", name)
		}
	}
	followServices(t, composeFile, "ratelimitd-1")
	rules, err := os.ReadFile("compose/rules/demo.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checkRules(t, "compose/rules/demo.yaml", string(rules))
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"localhost:10000", "localhost:3000"} {
		if !strings.Contains(string(readme), url) {
			t.Errorf("README.md does not name %s", url)
		}
	}
}

// followServices follows the references of the services of a file. One of them builds the image. Commands make some of
// the files.
func followServices(t *testing.T, file, builder string, made ...string) {
	t.Helper()
	p := compose(t, file)
	var builds []string // the services that build the image
	published := make(map[string]string)
	for name, s := range p.Services {
		if s.Restart != types.RestartPolicyUnlessStopped {
			t.Errorf("%s is not restarted when it ends", name)
		}
		if s.Build != nil {
			builds = append(builds, name)
			if _, err := os.Stat(filepath.Join(s.Build.Context, "Dockerfile")); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Image == "ratelimitd" {
			for key := range s.Environment {
				checkEnv(t, file+": "+name, key)
			}
			if s.HealthCheck == nil {
				t.Errorf("%s has no health check: podman does not keep the image's", name)
			}
			if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) {
				t.Errorf("%s may write, or has capabilities", name)
			}
		} else if _, tag, _ := strings.Cut(s.Image, ":"); tag == "" || tag == "latest" || strings.Count(s.Image, "/") != 2 {
			t.Errorf("%s: the image %q is not pinned, or not a full name: podman does not guess the registry", name, s.Image)
		}
		for _, v := range s.Volumes {
			if v.Type == types.VolumeTypeTmpfs {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil && !slices.Contains(made, filepath.Base(v.Source)) {
				t.Errorf("%s mounts %s: %v", name, v.Source, err)
			}
			if !v.ReadOnly {
				t.Errorf("%s may write to %s", name, v.Source)
			}
		}
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes port %s on %q, not on loopback", name, port.Published, port.HostIP)
			}
			if other := published[port.Published]; other != "" {
				t.Errorf("%s and %s both publish port %s", name, other, port.Published)
			}
			published[port.Published] = name
		}
		for other, d := range s.DependsOn {
			if d.Condition == types.ServiceConditionHealthy && p.Services[other].HealthCheck == nil {
				t.Errorf("%s waits for the health of %s, which has no health check", name, other)
			}
		}
	}
	if !slices.Equal(builds, []string{builder}) {
		t.Errorf("the image is built by %q: one service suffices", builds)
	}
}

// TestComposeNames follows the names of services out of the files that are mounted.
func TestComposeNames(t *testing.T) {
	p := compose(t, composeFile)
	for _, f := range []struct {
		name  string
		hosts []string
	}{
		{"compose/envoy.yaml", []string{"ratelimitd-1", "ratelimitd-2"}},
		{"prometheus/prometheus.yml", []string{"ratelimitd-1", "ratelimitd-2", "envoy"}},
		{"grafana/provisioning/datasources/prometheus.yml", []string{"prometheus"}},
	} {
		b, err := os.ReadFile(f.name)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range f.hosts {
			if _, ok := p.Services[host]; !ok || !strings.Contains(string(b), host) {
				t.Errorf("%s should name the service %s, and docker-compose.yml have it", f.name, host)
			}
		}
	}
	if redis := p.Services["redis"]; !slices.Contains(redis.Command, "noeviction") {
		t.Error("Redis may evict counters")
	}
}

// TestComposeRegions runs the services of compose/regions with the certificates that its script creates: in the image,
// with a real Redis for each region. A limit holds in both regions together.
func TestComposeRegions(t *testing.T) {
	followServices(t, regionsFile, "eu", "certificates")
	p := compose(t, regionsFile)
	rules, err := os.ReadFile("compose/regions/rules/shop.yaml")
	if err != nil {
		t.Fatal(err)
	}
	checkRules(t, "compose/regions/rules/shop.yaml", string(rules))
	data, err := os.MkdirTemp(image(t)+"/tmp", "regions")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(data) })
	for _, c := range []*exec.Cmd{
		exec.Command("chmod", "a+rx", data), exec.Command("cp", "-r", "compose/regions/rules", "compose/regions/certificates.sh", data),
		exec.Command("sh", filepath.Join(data, "certificates.sh")),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", c.Args, err, out)
		}
	}
	// Every address of loopback is this machine. So each region can have the port of the file.
	loopback := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(255))
	names := strings.NewReplacer("eu:8083", loopback+"1:8083", "us:8083", loopback+"2:8083", "/certificates/", "/tmp/"+filepath.Base(data)+"/certificates/")
	var started []served
	for i, name := range []string{"eu", "us"} {
		s := p.Services[name]
		if redis := "redis-" + name; *s.Environment["REDIS_URL"] != redis+":6379" || slices.Sorted(maps.Keys(p.Services[redis].Networks))[0] != name {
			t.Errorf("%s counts in %s", name, *s.Environment["REDIS_URL"])
		}
		var env []string
		for key, value := range s.Environment {
			env = append(env, key+"="+names.Replace(*value))
		}
		env = append(env, "REDIS_SOCKET_TYPE=unix", "REDIS_URL="+startRedis(t, name), "REDIS_OP_TIMEOUT=5s", fmt.Sprint("RATELIMITD_REGIONS_LISTEN=", loopback, i+1, ":8083"), "RUNTIME_ROOT=/tmp/"+filepath.Base(data))
		started = append(started, serveInImage(t, env, "/bin/ratelimitd"))
	}
	const trial = `{"domain": "shop", "descriptors": [{"entries": [{"key": "trial", "value": "%s"}]}]}`
	for _, s := range started {
		// the call waits for the home
		for deadline := time.Now().Add(30 * time.Second); ask(t, s, fmt.Sprintf(trial, "warm")) != http.StatusOK; {
			if time.Now().After(deadline) {
				t.Fatal("a region has no answer after 30 s")
			}
		}
	}
	for today := -1; today != time.Now().UTC().YearDay(); { // again, if the day of the limit has ended
		today = time.Now().UTC().YearDay()
		var got []int
		for i := range 12 {
			got = append(got, ask(t, started[i%2], fmt.Sprintf(trial, strconv.Itoa(today))))
		}
		want := append(slices.Repeat([]int{http.StatusOK}, 10), http.StatusTooManyRequests, http.StatusTooManyRequests)
		if today == time.Now().UTC().YearDay() && !slices.Equal(got, want) {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}
