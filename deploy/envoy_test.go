package deploy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// healthCheck lists the settings of Envoy's gRPC health checks that let a replica restart without failed requests.
type healthCheck struct {
	Interval           string `yaml:"interval"`
	NoTrafficInterval  string `yaml:"no_traffic_interval"`
	UnhealthyThreshold int    `yaml:"unhealthy_threshold"`
	GRPC               any    `yaml:"grpc_health_check"`
}

// healthChecks finds the gRPC health checks anywhere in a document.
func healthChecks(n *yaml.Node) (found []healthCheck, err error) {
	if n.Kind == yaml.MappingNode {
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Value == "grpc_health_check" {
				var c healthCheck
				if err := n.Decode(&c); err != nil {
					return nil, err
				}
				found = append(found, c)
			}
		}
	}
	for _, child := range n.Content {
		more, err := healthChecks(child)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return found, nil
}

// yamlBlocks returns the blocks of YAML in a page, without their indentation.
func yamlBlocks(page string) (blocks []string) {
	margin, block := "", []string(nil)
	for line := range strings.Lines(page) {
		text := strings.TrimLeft(line, " ")
		switch {
		case block == nil && strings.HasPrefix(text, "```yaml"):
			margin, block = line[:len(line)-len(text)], []string{}
		case block != nil && strings.HasPrefix(text, "```"):
			blocks, block = append(blocks, strings.Join(block, "")), nil
		case block != nil:
			block = append(block, strings.TrimPrefix(line, margin))
		}
	}
	return blocks
}

// noticed returns how long Envoy may still ask a service that is red: its check, and a second until its workers
// know.
func noticed(c healthCheck) (time.Duration, error) {
	interval, err := time.ParseDuration(c.Interval)
	return interval*time.Duration(c.UnhealthyThreshold) + time.Second, err
}

// TestEnvoyHealthChecks reads every configuration of Envoy that is published, in files and on pages. Each health check
// sets the interval of an Envoy without traffic, and the published drain delays are longer than any of them takes.
func TestEnvoyHealthChecks(t *testing.T) {
	slowest, files := time.Duration(0), 0
	check := func(where, text string) {
		documents := yaml.NewDecoder(strings.NewReader(text))
		for {
			var doc yaml.Node
			if err := documents.Decode(&doc); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				t.Errorf("%s: %v", where, err)
				return
			}
			checks, err := healthChecks(&doc)
			if err != nil {
				t.Errorf("%s: %v", where, err)
			}
			for _, c := range checks {
				files++
				takes, err := noticed(c)
				if err != nil || c.NoTrafficInterval != c.Interval {
					t.Errorf("%s: interval %q, no_traffic_interval %q: want the same (%v)", where, c.Interval, c.NoTrafficInterval, err)
				}
				slowest = max(slowest, takes)
			}
		}
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		switch ext := filepath.Ext(path); ext {
		case ".yaml", ".yml", ".md":
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if !strings.Contains(string(b), "grpc_health_check") {
				return nil
			}
			if ext != ".md" {
				check(path, string(b))
				return nil
			}
			for i, block := range yamlBlocks(string(b)) {
				if strings.Contains(block, "grpc_health_check") {
					check(fmt.Sprintf("%s: block %d", path, i+1), block)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 3 {
		t.Errorf("only %d health checks found: two bootstrap files and docs/do/envoy.md have one", files)
	}
	p := compose(t, composeFile)
	for _, name := range [...]string{"ratelimitd-1", "ratelimitd-2"} {
		s := p.Services[name]
		value := ""
		if v := s.Environment["RATELIMITD_DRAIN_DELAY"]; v != nil {
			value = *v
		}
		drain := drainDelay(t, "docker-compose.yml: "+name, value)
		if drain <= slowest {
			t.Errorf("%s drains for %v, Envoy needs more than %v", name, drain, slowest)
		}
		if s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) <= drain+stopTimeout {
			t.Errorf("%s is killed before it has drained", name)
		}
	}
	pod := one[*appsv1.Deployment](t, manifests(t, "kubernetes")).Spec.Template.Spec
	if drain := drainDelay(t, "deployment.yaml", valueOf(pod.Containers[0].Env, "RATELIMITD_DRAIN_DELAY")); drain <= slowest {
		t.Errorf("the deployment drains for %v, Envoy needs more than %v", drain, slowest)
	}
}

const stopTimeout = 10 * time.Second // RATELIMITD_STOP_TIMEOUT's default

func valueOf(env []corev1.EnvVar, name string) string {
	for _, e := range env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

func drainDelay(t *testing.T, where, value string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Errorf("%s: RATELIMITD_DRAIN_DELAY: %v", where, err)
	}
	return d
}
