package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

func compose(t *testing.T) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{"../docker-compose.yml"}, cli.WithName("ratelimitd"), cli.WithWorkingDirectory(".."))
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
	p := compose(t)
	for _, name := range []string{"redis", "ratelimitd-1", "ratelimitd-2", "envoy", "prometheus", "grafana"} {
		if _, ok := p.Services[name]; !ok {
			t.Errorf("there is no service %s", name)
		}
	}
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
				checkEnv(t, "docker-compose.yml: "+name, key)
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
			if _, err := os.Stat(v.Source); err != nil {
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
	if !slices.Equal(builds, []string{"ratelimitd-1"}) {
		t.Errorf("the image is built by %q: one service suffices", builds)
	}
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

// TestComposeNames follows the names of services out of the files that are mounted.
func TestComposeNames(t *testing.T) {
	p := compose(t)
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
