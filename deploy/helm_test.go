package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	yamlnode "gopkg.in/yaml.v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const chart = "helm/ratelimitd"

var update = flag.Bool("update", false, "write what the tests of the Helm chart compare with: its copies, its README and the golden files")

// matches compares a file with its content, or writes it with -update.
func matches(t *testing.T, name string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is outdated: cd deploy && go test -run Chart -update . Then look at the difference.", name)
	}
}

// valueSets returns the files of helm/testdata, and the values for Envoy AI Gateway, by name: sets of values that
// people use.
func valueSets(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("helm/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]map[string]any)
	for _, f := range append(files, "helm/ai-gateway-values.yaml") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		values := make(map[string]any)
		if err := yaml.Unmarshal(b, &values); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		all[strings.TrimSuffix(filepath.Base(f), ".yaml")] = values
	}
	if len(all) < 5 {
		t.Fatalf("only %d sets of values", len(all))
	}
	return all
}

// rendered returns the output of `helm template ratelimitd`, by file of the chart.
func rendered(values map[string]any) (map[string]string, error) {
	return renderedAs("ratelimitd", "ratelimitd", values)
}

var loaded = sync.OnceValues(func() (*chartv2.Chart, error) { return loader.Load(chart) })

func renderedAs(name, namespace string, values map[string]any) (map[string]string, error) {
	c, err := loaded()
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	short := make(map[string]string)
	for name, text := range files {
		if name = strings.TrimPrefix(name, "ratelimitd/templates/"); strings.TrimSpace(text) != "" {
			short[name] = strings.TrimSpace(text) + "\n"
		}
	}
	return short, nil
}

// chartObjects returns the chart's objects for some values, decoded strictly: a field that the API does not have is an
// error.
func chartObjects(t *testing.T, values map[string]any) []runtime.Object {
	t.Helper()
	files, err := rendered(values)
	if err != nil {
		t.Fatal(err)
	}
	var all []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		o, _, err := decoder(t).Decode([]byte(files[name]), nil, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, files[name])
			continue
		}
		all = append(all, o)
	}
	return all
}

func TestChartLint(t *testing.T) {
	for name, values := range valueSets(t) {
		for _, m := range lint.RunAll(chart, values, "ratelimitd").Messages {
			if m.Severity > support.InfoSev { // a missing icon is only information
				t.Errorf("helm lint with %s: %v", name, m)
			}
		}
	}
}

var generated = regexp.MustCompile(`(?m)^  tokens: [A-Za-z0-9+/=]{64}$`)

// TestChartGolden shows reviewers how a change of the chart changes the cluster. Texts that come from other files are
// left out: TestChartCopies and TestChartAlerts compare them.
func TestChartGolden(t *testing.T) {
	for name, values := range valueSets(t) {
		files, err := rendered(values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var b strings.Builder
		for _, file := range slices.Sorted(maps.Keys(files)) {
			text := generated.ReplaceAllString(files[file], "  tokens: RANDOM")
			if file == "dashboard.yaml" || file == "prometheusrule.yaml" {
				text, _, _ = strings.Cut(text, "\ndata:\n")
				text, _, _ = strings.Cut(text, "\nspec:\n")
				text += "\n"
			}
			fmt.Fprintf(&b, "---\n# %s\n%s", file, text)
		}
		matches(t, "helm/testdata/"+name+".golden", []byte(b.String()))
	}
}

// TestChartObjects follows every reference between the objects of each set of values: labels, ports, volumes and files.
func TestChartObjects(t *testing.T) {
	for name, values := range valueSets(t) {
		t.Run(name, func(t *testing.T) { followReferences(t, chartObjects(t, values)) })
	}
}

// TestChartNames installs the chart under another name, as a second release would: all objects and their labels have
// that name.
func TestChartNames(t *testing.T) {
	files, err := renderedAs("edge", "limits", valueSets(t)["everything"])
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		o, _, err := decoder(t).Decode([]byte(text), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := o.(metav1.Object)
		// the service account's name is set
		if _, account := o.(*corev1.ServiceAccount); !account && !strings.HasPrefix(m.GetName(), "edge-ratelimitd") {
			t.Errorf("%s: the name is %s", file, m.GetName())
		}
		if m.GetNamespace() != "limits" || m.GetLabels()["app.kubernetes.io/instance"] != "edge" {
			t.Errorf("%s is in the namespace %s with the labels %v", file, m.GetNamespace(), m.GetLabels())
		}
	}
	if !strings.Contains(files["prometheusrule.yaml"], `up{job="limits/edge-ratelimitd"}`) || !strings.Contains(files["servicemonitor.yaml"], "replacement: limits/edge-ratelimitd\n") {
		t.Error("the alerts and the ServiceMonitor do not have the release's job")
	}
}

// TestOverlayWithRedis does the same for the overlay, and checks that the name in REDIS_URL leads to Redis.
func TestOverlayWithRedis(t *testing.T) {
	all := manifests(t, "kubernetes-with-redis")
	followReferences(t, all)
	env := environment(t, all)
	host, port, _ := strings.Cut(env["REDIS_URL"], ":")
	redis, service := named[*appsv1.Deployment](t, all, host), named[*corev1.Service](t, all, host)
	if fmt.Sprint(service.Spec.Ports[0].Port) != port {
		t.Errorf("REDIS_URL is %s, the service has port %d", env["REDIS_URL"], service.Spec.Ports[0].Port)
	}
	c := redis.Spec.Template.Spec.Containers[0]
	if c.Ports[0].Name != service.Spec.Ports[0].TargetPort.StrVal || c.Ports[0].ContainerPort != 6379 {
		t.Errorf("the service leads to %q, Redis listens on %v", service.Spec.Ports[0].TargetPort.StrVal, c.Ports)
	}
	if redis.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType || *redis.Spec.Replicas != 1 {
		t.Error("two Redis at once count apart")
	}
	if !slices.Contains(c.Args, "noeviction") {
		t.Error("Redis may evict counters, which resets limits")
	}
	for _, o := range all {
		if m := o.(metav1.Object); m.GetNamespace() != "ratelimitd" && m.GetName() != "ratelimitd" {
			t.Errorf("%T %s is in the namespace %q", o, m.GetName(), m.GetNamespace())
		}
	}
	policy := named[*networkingv1.NetworkPolicy](t, all, "redis").Spec
	ratelimitd := labels.Set(deployment(t, all).Spec.Template.Labels)
	if from := policy.Ingress[0].From[0].PodSelector; !selector(t, from).Matches(ratelimitd) || !selector(t, &policy.PodSelector).Matches(labels.Set(redis.Spec.Template.Labels)) {
		t.Error("the network policy keeps ratelimitd from Redis")
	}
}

// TestChartIsTheManifests compares the chart with deploy/kubernetes. With the same Redis both render the same objects,
// except for labels, and for the parts that Helm or kustomize requires.
func TestChartIsTheManifests(t *testing.T) {
	compared := func(all []runtime.Object) map[string]string {
		env := environment(t, all)
		for name, standard := range map[string]string{"REDIS_TYPE": "SINGLE", "LOG_LEVEL": "info", "RATELIMITD_STOP_TIMEOUT": "10s", "REDIS_AUTH": ""} {
			if env[name] == standard {
				delete(env, name)
			}
		}
		out := make(map[string]string)
		add := func(name string, v any) {
			b, err := json.MarshalIndent(v, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(b)
		}
		add("environment", env)
		for _, o := range all {
			switch o := o.(type) {
			case *appsv1.Deployment:
				o.Spec.Selector = nil
				o.Spec.Template.Labels = nil
				for i := range o.Spec.Template.Spec.TopologySpreadConstraints {
					o.Spec.Template.Spec.TopologySpreadConstraints[i].LabelSelector = nil
				}
				o.Spec.Template.Spec.Containers[0].Env, o.Spec.Template.Spec.Containers[0].EnvFrom = nil, nil
				add("deployment", o.Spec)
			case *corev1.Service:
				o.Spec.Selector = nil
				add("service", o.Spec)
			case *corev1.ServiceAccount:
				add("service account", o.AutomountServiceAccountToken)
			case *policyv1.PodDisruptionBudget:
				o.Spec.Selector = nil
				add("disruption budget", o.Spec)
			case *autoscalingv2.HorizontalPodAutoscaler:
				add("autoscaler", o.Spec)
			case *corev1.ConfigMap:
				if o.Name == "ratelimitd-rules" {
					add("rules", o.Data)
				}
			}
		}
		return out
	}
	plain, helm := compared(manifests(t, "kubernetes")), compared(chartObjects(t, valueSets(t)["manifests"]))
	if len(plain) < 7 {
		t.Errorf("only %d kinds are compared", len(plain))
	}
	for kind, want := range plain {
		if helm[kind] != want {
			t.Errorf("%s: deploy/kubernetes has\n%s\nthe chart has\n%s", kind, want, helm[kind])
		}
	}
}

// TestChartCopies holds the chart's files, which Helm wants in the chart's directory, to the files that they are copies
// of.
func TestChartCopies(t *testing.T) {
	for name, source := range map[string]string{"alerts.yml": "prometheus/alerts.yml", "messaging.yaml": "kubernetes/rules/messaging.yaml", "dashboard.json": dashboardFile} {
		b, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		matches(t, filepath.Join(chart, "files", name), b)
	}
	board := named[*corev1.ConfigMap](t, chartObjects(t, valueSets(t)["everything"]), "ratelimitd-dashboard").Data["ratelimitd.json"]
	if b, err := os.ReadFile(dashboardFile); err != nil || strings.TrimSpace(board) != strings.TrimSpace(string(b)) {
		t.Errorf("the chart's dashboard is not %s (%v)", dashboardFile, err)
	}
}

// TestChartAlerts compares the PrometheusRule with alerts.yml: it has all alerts that are not left out, about the
// ServiceMonitor's job.
func TestChartAlerts(t *testing.T) {
	all := chartObjects(t, valueSets(t)["everything"])
	monitor, rule := one[*monitoringv1.ServiceMonitor](t, all), one[*monitoringv1.PrometheusRule](t, all)
	job := ""
	for _, r := range monitor.Spec.Endpoints[0].RelabelConfigs {
		if r.TargetLabel == "job" {
			job = *r.Replacement
		}
	}
	b, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var want monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(bytes.ReplaceAll(b, []byte(`job="ratelimitd"`), []byte(`job="`+job+`"`)), &want); err != nil {
		t.Fatal(err)
	}
	before := len(want.Groups[0].Rules)
	want.Groups[0].Rules = slices.DeleteFunc(want.Groups[0].Rules, func(r monitoringv1.Rule) bool { return r.Alert == "RatelimitdSlow" })
	if len(want.Groups[0].Rules) != before-1 || job != "ratelimitd/ratelimitd" {
		t.Errorf("of %d alerts %d are expected, of the job %q", before, len(want.Groups[0].Rules), job)
	}
	got, err := json.MarshalIndent(rule.Spec, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := json.MarshalIndent(want, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, wanted) {
		t.Errorf("the alerts are\n%s\nwant\n%s", got, wanted)
	}
}

// TestChartRejects tries values that would be a surprise in the cluster. Each error names the remedy.
func TestChartRejects(t *testing.T) {
	for values, want := range map[string]string{
		`{redis: {uri: "a:1"}}`:                                                              "uri",
		`{replicas: two}`:                                                                    "replicas",
		`{redis: {url: "a:1", type: cluster}}`:                                               "type",
		`{rules: {files: {a.yaml: "x", b.yaml: 3}}}`:                                         "b.yaml",
		`{rules: {existingConfigMap: a}, xds: {url: "a:1"}}`:                                 "set only one of rules.files, rules.existingConfigMap and xds.url",
		`{admin: {expose: true}}`:                                                            "admin.existingSecret, or admin.generateToken=true",
		`{admin: {existingSecret: a, generateToken: true}}`:                                  "not both",
		`{redis: {tls: {enabled: true}}}`:                                                    "need redis.url",
		`{redis: {existingSecret: a}}`:                                                       "need redis.url",
		`{redis: {url: "a:1", tls: {existingSecret: a}}}`:                                    "redis.tls.enabled=true",
		`{redis: {url: "a:1", tls: {enabled: true, clientCertificate: true}}}`:               "redis.tls.existingSecret",
		`{xds: {url: "a:1", tls: {existingSecret: a}}}`:                                      "xds.tls.enabled=true",
		`{xds: {url: "a:1", tls: {enabled: true, clientCertificate: true}}}`:                 "xds.tls.existingSecret",
		`{xds: {tls: {enabled: true}}}`:                                                      "xds.tls needs xds.url",
		`{tls: {clientCertificates: true}}`:                                                  "tls.existingSecret",
		`{tls: {existingSecret: a, clientSAN: b}}`:                                           "tls.clientCertificates=true",
		`{overrides: {source: redis}}`:                                                       "overrides.source=redis needs redis.url",
		`{overrides: {source: file}}`:                                                        "needs overrides.existingConfigMap",
		`{overrides: {existingConfigMap: a}}`:                                                "needs overrides.source=file",
		`{overrides: {source: a.yaml}}`:                                                      "source",
		`{regions: {name: EU}}`:                                                              "name",
		`{regions: {name: eu, addresses: {us: "a:1", ap: "b:1"}, existingSecret: a}}`:        "regions.addresses has no eu",
		`{regions: {name: eu, addresses: {eu: "a:1"}, existingSecret: a}}`:                   "only one region",
		`{regions: {name: eu, addresses: {eu: "a:1", us: "b:1"}}}`:                           "needs regions.existingSecret",
		`{regions: {name: eu, addresses: {eu: "a", us: "b:1"}, existingSecret: a}}`:          "addresses/eu",
		`{regions: {name: eu, addresses: {eu: "a:1", us: "b:1,ap=c:1"}, existingSecret: a}}`: "addresses/us",
		`{regions: {addresses: {eu: "a:1"}}}`:                                                "need regions.name",
		`{overrides: {copySizeLimit: much}}`:                                                 "copySizeLimit",
		`{stop: {drainDelaySeconds: -1}}`:                                                    "drainDelaySeconds",
		`{image: {digest: "sha256:short"}}`:                                                  "digest",
		`{fullnameOverride: "Not_A_Name"}`:                                                   "fullnameOverride",
		`{env: {"NOT-A-NAME": "x"}}`:                                                         "NOT-A-NAME",
		`{podLabels: {a: "\x7f"}}`:                                                           "control character",
		`{replicas: 1e30}`:                                                                   "replicas",
		`{autoscaling: {maxReplicas: 99999999999}}`:                                          "maxReplicas",
		`{env: {A: 1e30}}`:                                                                   "env/A",
		`{env: {A: {name: B, value: x}}}`:                                                    "env/A",
		`{image: {tag: "a:b"}}`:                                                              "tag",
		`{serviceAccount: {name: ` + strings.Repeat("a", 300) + `}}`:                         "name",
		`{autoscaling: {minReplicas: 20}}`:                                                   "more than autoscaling.maxReplicas",
		`{autoscaling: {minReplicas: 0}, redis: {url: "a:1"}}`:                               "minReplicas",
	} {
		in := make(map[string]any)
		if err := yaml.Unmarshal([]byte(values), &in); err != nil {
			t.Fatal(err)
		}
		if _, err := rendered(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want one with %q", values, err, want)
		}
	}
}

// value is a row of values.yaml: a value and its comment.
type value struct{ path, fallback, comment string }

// described returns every value of values.yaml. A map whose keys have no comments is one value.
func described(t *testing.T) (all []value) {
	t.Helper()
	b, err := os.ReadFile(chart + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc yamlnode.Node
	if err := yamlnode.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var walk func(prefix string, n *yamlnode.Node)
	walk = func(prefix string, n *yamlnode.Node) {
		for i := 0; i < len(n.Content); i += 2 {
			key, v := n.Content[i], n.Content[i+1]
			name := prefix + key.Value
			// The comment of the file comes before the comment of the first key.
			paragraphs := strings.Split(key.HeadComment, "\n\n")
			comment := strings.ReplaceAll(strings.TrimPrefix(paragraphs[len(paragraphs)-1], "# "), "\n# ", " ")
			inner := v.Kind == yamlnode.MappingNode && slices.ContainsFunc(v.Content, func(c *yamlnode.Node) bool {
				return c.HeadComment != "" || c.Kind == yamlnode.MappingNode && slices.ContainsFunc(c.Content, func(c *yamlnode.Node) bool { return c.HeadComment != "" })
			})
			if inner {
				walk(name+".", v)
				continue
			}
			var plain any
			if err := v.Decode(&plain); err != nil {
				t.Fatal(err)
			}
			fallback, err := json.Marshal(plain)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, value{name, string(fallback), comment})
		}
	}
	walk("", doc.Content[0])
	if len(all) < 60 {
		t.Fatalf("only %d values were found", len(all))
	}
	return all
}

// TestChartSchema compares values.schema.json with the comments and defaults of values.yaml, in both directions.
func TestChartSchema(t *testing.T) {
	b, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Description          string
		Default              json.RawMessage
		Properties           map[string]json.RawMessage
		AdditionalProperties json.RawMessage
	}
	schema := make(map[string]value)
	var walk func(prefix string, text []byte)
	walk = func(prefix string, text []byte) {
		var n node
		if err := json.Unmarshal(text, &n); err != nil {
			t.Fatalf("%s: %v", prefix, err)
		}
		if n.Properties == nil {
			var compact bytes.Buffer
			if n.Default != nil {
				if err := json.Compact(&compact, n.Default); err != nil {
					t.Fatal(err)
				}
			}
			schema[prefix] = value{prefix, compact.String(), n.Description}
			return
		}
		if string(n.AdditionalProperties) != "false" {
			t.Errorf("%s: a misspelt value below it is no error", prefix)
		}
		for name, inner := range n.Properties {
			walk(strings.TrimPrefix(prefix+"."+name, "."), inner)
		}
	}
	walk("", b)
	delete(schema, "global") // Helm's own
	for _, want := range described(t) {
		if got := schema[want.path]; got != want || want.comment == "" {
			t.Errorf("values.schema.json has\n%+v\nvalues.yaml has\n%+v", got, want)
		}
		delete(schema, want.path)
	}
	for name := range schema {
		t.Errorf("values.schema.json has %s, values.yaml does not", name)
	}
}

// TestChartReadme holds the table of README.md to values.yaml.
func TestChartReadme(t *testing.T) {
	const file = chart + "/README.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(b), "| value | default | what |\n")
	if !ok {
		t.Fatal("README.md has no table of values")
	}
	var out strings.Builder
	out.WriteString(head + "| value | default | what |\n|---|---|---|\n")
	for _, v := range described(t) {
		fmt.Fprintf(&out, "| `%s` | `%s` | %s |\n", v.path, v.fallback, v.comment)
	}
	matches(t, file, []byte(out.String()))
}

// pushed is the image that docs/do/kubernetes.md builds and pushes.
const pushed = "registry.example.com/ratelimitd:main"

// TestKubernetesPage tries the values and the kustomization of docs/do/kubernetes.md.
func TestKubernetesPage(t *testing.T) {
	b, err := os.ReadFile("../docs/do/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, block := range yamlBlocks(string(b)) {
		var read map[string]any
		if err := yaml.Unmarshal([]byte(block), &read); err != nil {
			t.Fatal(err)
		}
		if read["kind"] != "Kustomization" {
			followReferences(t, chartObjects(t, read))
			tried++
			continue
		}
		dir, err := filepath.Abs("kubernetes")
		if err != nil {
			t.Fatal(err)
		}
		here := t.TempDir()
		inside, err := filepath.Rel(here, dir)
		if err != nil {
			t.Fatal(err)
		}
		const remote = "github.com/ratelimitd/ratelimitd/deploy/kubernetes"
		if !strings.Contains(block, remote) {
			t.Errorf("the kustomization does not begin with %s", remote)
		}
		for name, text := range map[string]string{
			"kustomization.yaml": strings.ReplaceAll(block, remote, inside),
			"shop.yaml":          "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: minute, requests_per_unit: 10}\n",
		} {
			if err := os.WriteFile(filepath.Join(here, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		all := manifests(t, here)
		followReferences(t, all)
		if url := environment(t, all)["REDIS_URL"]; url != "redis.example.com:6379" {
			t.Errorf("REDIS_URL is %q", url)
		}
		if files := named[*corev1.ConfigMap](t, all, "ratelimitd-rules").Data; len(files) != 1 || files["shop.yaml"] == "" {
			t.Errorf("the rules are %v", files)
		}
		if image := deployment(t, all).Spec.Template.Spec.Containers[0].Image; image != pushed {
			t.Errorf("the image is %q, not the one that the page pushes", image)
		}
		tried++
	}
	if tried != 3 {
		t.Errorf("%d examples were tried, not 3", tried)
	}
}

// TestRegionsPage tries the chart's values of docs/do/regions.md: they give the settings that the page lists.
func TestRegionsPage(t *testing.T) {
	b, err := os.ReadFile("../docs/do/regions.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := yamlBlocks(string(b))
	i := slices.IndexFunc(blocks, func(text string) bool { return strings.HasPrefix(text, "redis:") })
	if i < 0 {
		t.Fatal("the page has no values of the chart")
	}
	var values map[string]any
	if err := yaml.Unmarshal([]byte(blocks[i]), &values); err != nil {
		t.Fatal(err)
	}
	all := chartObjects(t, values)
	followReferences(t, all)
	if s := named[*corev1.Service](t, all, "ratelimitd-regions").Spec; s.Type != corev1.ServiceTypeLoadBalancer || len(s.Ports) != 1 || s.Ports[0].Port != 8083 {
		t.Errorf("%+v", s)
	}
	env, compared := environment(t, all), 0
	for name, want := range env {
		if strings.HasPrefix(name, "RATELIMITD_REGION") && !strings.Contains(name, "_TLS_") {
			compared++
			if !strings.Contains(string(b), "\n"+name+"="+want+"\n") {
				t.Errorf("the chart sets %s=%s, and the page does not", name, want)
			}
		}
	}
	if compared != 2 {
		t.Errorf("%d settings were compared", compared)
	}
}

// TestKubernetesPageCommands tries the commands of docs/do/kubernetes.md as far as that needs no cluster: Helm's with
// the page's values and a rule file, kubectl's by building the manifests. The files that they name exist.
func TestKubernetesPageCommands(t *testing.T) {
	b, err := os.ReadFile("../docs/do/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(b), "\\\n", " ")
	var tried []string
	for _, m := range regexp.MustCompile("(?m)^ *[$] (.+)$|`((?:kubectl|helm) [^`]+)`").FindAllStringSubmatch(page, -1) {
		words := strings.Fields(m[1] + m[2])
		switch what := strings.Join(words[:2], " "); what {
		case "kubectl apply":
			if len(words) != 4 || words[2] != "-k" {
				t.Fatalf("%q", words)
			}
			if words[3] != "." { // the page's own: TestKubernetesPage
				followReferences(t, manifests(t, filepath.Join("..", words[3])))
			}
			tried = append(tried, what)
		case "docker build", "docker push": // the first is TestDockerfile's
			if !slices.Contains(words, pushed) {
				t.Errorf("%q is not about %s", words, pushed)
			}
			tried = append(tried, what)
		case "helm install", "helm upgrade":
			var rules []string
			set := make(map[string]any)
			for i, w := range words {
				switch w {
				case "--set":
					if err := strvals.ParseInto(words[i+1], set); err != nil {
						t.Fatal(err)
					}
				case "--set-file":
					rules = append(rules, strings.Trim(words[i+1], "'"))
				case "--values":
					// the page writes this one
					if _, err := os.Stat(filepath.Join("..", words[i+1])); err != nil && words[i+1] != "values.yaml" {
						t.Error(err)
					}
				}
			}
			tried = append(tried, what)
			if what == "helm upgrade" {
				continue // the chart is Envoy Gateway's
			}
			if filepath.Join("..", words[3]) != filepath.Join("..", "deploy", chart) {
				t.Errorf("%q does not install the chart of this repository", words)
			}
			values := set // TestChartGolden installs the other values of Envoy AI Gateway
			if words[2] == "ratelimitd" {
				if err := yaml.Unmarshal([]byte(yamlBlocks(page)[0]), &values); err != nil {
					t.Fatal(err)
				}
			}
			if image := deployment(t, chartObjects(t, values)).Spec.Template.Spec.Containers[0].Image; image != pushed {
				t.Errorf("%q runs the image %q, not the one that the page pushes", words, image)
			}
			if len(rules) == 0 {
				continue
			}
			for _, r := range rules {
				err := strvals.ParseIntoFile(r, values, func([]rune) (any, error) { return "domain: shop\n", nil })
				if err != nil {
					t.Fatal(err)
				}
			}
			files := named[*corev1.ConfigMap](t, chartObjects(t, values), "ratelimitd-rules").Data
			if len(files) != 1 || files["shop.yaml"] != "domain: shop\n" {
				t.Errorf("%q gives the rules %q", words, files)
			}
		case "ratelimitd check": // its tests are in cmd/ratelimitd
		case "kubectl port-forward", "helm template": // the first needs a cluster; the second is a name
		default:
			t.Errorf("a command that is not tried: %q", words)
		}
	}
	if want := []string{"docker build", "docker push", "helm install", "helm upgrade", "helm install", "kubectl apply"}; !slices.Equal(tried, want) {
		t.Errorf("tried %q, want %q", tried, want)
	}
}

// TestChartEnvoyGateway compares the values for Envoy Gateway's chart with the example, and decodes them strictly.
func TestChartEnvoyGateway(t *testing.T) {
	b, err := os.ReadFile("helm/envoy-gateway-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Global struct {
			Images struct {
				Ratelimit struct {
					Image string `json:"image"`
				} `json:"ratelimit"`
			} `json:"images"`
		} `json:"global"`
		Config struct {
			EnvoyGateway egv1a1.EnvoyGateway `json:"envoyGateway"`
		} `json:"config"`
	}
	if err := yaml.UnmarshalStrict(b, &values); err != nil {
		t.Fatal(err)
	}
	got := values.Config.EnvoyGateway
	var want egv1a1.EnvoyGateway
	if err := yaml.UnmarshalStrict(read(t, "envoy-gateway/envoy-gateway.yaml"), &want); err != nil {
		t.Fatal(err)
	}
	image := got.Provider.Kubernetes.RateLimitDeployment.Container.Image
	if image == nil || values.Global.Images.Ratelimit.Image != *image {
		t.Errorf("the image is %q in one place, %v in the other", values.Global.Images.Ratelimit.Image, image)
	}
	want.TypeMeta = metav1.TypeMeta{} // Envoy Gateway's chart writes it
	want.Provider.Kubernetes.RateLimitDeployment.Container.Image = image
	gotText, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	wantText, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gotText, wantText) {
		t.Errorf("the values are\n%s\nthe example is\n%s", gotText, wantText)
	}
}

// TestChartServes runs the service in the image with the environment and the rules that the chart gives the container
// without any value. The service counts, and its probes find it.
func TestChartServes(t *testing.T) {
	all := chartObjects(t, valueSets(t)["example"])
	c := deployment(t, all).Spec.Template.Spec.Containers[0]
	inside, err := os.MkdirTemp(image(t)+"/tmp", "rules")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(inside) })
	if err := os.Chmod(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range named[*corev1.ConfigMap](t, all, "ratelimitd-rules").Data {
		if err := os.WriteFile(filepath.Join(inside, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var env []string
	for _, e := range c.Env {
		switch e.Name {
		case "RUNTIME_ROOT":
			e.Value = "/tmp"
		case "RUNTIME_APPDIRECTORY":
			e.Value = filepath.Base(inside)
		case "RATELIMITD_DRAIN_DELAY":
			e.Value = "0s"
		}
		env = append(env, e.Name+"="+e.Value)
	}
	s := serveInImage(t, env, "/bin/ratelimitd")
	for i := range 6 {
		want := http.StatusOK
		if i == 5 {
			want = http.StatusTooManyRequests
		}
		if got := ask(t, s, `{"domain": "messaging", "descriptors": [{"entries": [{"key": "message_type", "value": "marketing"}, {"key": "to_number", "value": "1"}]}]}`); got != want {
			t.Errorf("request %d: status %d, want %d", i+1, got, want)
		}
	}
	resp, err := http.Get("http://" + s.http + c.ReadinessProbe.HTTPGet.Path)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the readiness probe gets %s", resp.Status)
	}
}

// hostile is a text that would leave its place in a template that does not quote it: it ends lines, starts documents
// and comments, and has aliases, tags and actions of templates.
const hostile = "a: b\n---\nkind: Secret\n# \"'`{{ .Release.Name }}\n- &x [*x, !!binary x]\r\n\t%\u2028}"

// TestChartHostileValues sets each text of the values to hostile ones. Either the schema rejects the text, or the
// objects equal the objects that a harmless text gives, with the hostile text where the harmless one was.
func TestChartHostileValues(t *testing.T) {
	const harmless = "0harmless"
	sets := valueSets(t)
	for _, at := range texts(t) {
		t.Run(strings.Join(at, "."), func(t *testing.T) {
			// The first set whose objects show the text. Elsewhere another value contradicts it, or leaves it out.
			for _, name := range []string{"everything", "example", "redis-tls", "xds", "regions"} {
				want, err := objectsWith(sets[name], at, harmless)
				if err != nil || !strings.Contains(want, harmless) {
					continue
				}
				for _, text := range []string{hostile, "true", "1e3", " padded ", strings.Repeat("x", 300)} {
					got, err := objectsWith(sets[name], at, text)
					if err != nil {
						continue // rejected
					}
					quoted, err := json.Marshal(text)
					if err != nil {
						t.Fatal(err)
					}
					if wanted := strings.ReplaceAll(want, harmless, string(quoted[1:len(quoted)-1])); got != wanted {
						t.Errorf("%s with %q: the objects are\n%s\nwant\n%s", name, text, got, wanted)
					}
				}
				return
			}
			// No free text: the schema has its pattern or its words.
			for name, values := range sets {
				if _, err := objectsWith(values, at, hostile); err == nil {
					t.Errorf("%s: %q is not rejected", name, hostile)
				}
			}
		})
	}
}

// texts returns the paths of all values that are texts: values.schema.json.
func texts(t *testing.T) (all [][]string) {
	t.Helper()
	b, err := os.ReadFile(chart + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type node struct {
		Type                 any
		Properties           map[string]node
		AdditionalProperties any
	}
	var root node
	if err := json.Unmarshal(b, &root); err != nil {
		t.Fatal(err)
	}
	var walk func(n node, at []string)
	walk = func(n node, at []string) {
		if strings.Contains(fmt.Sprint(n.Type), "string") {
			all = append(all, slices.Clone(at))
		}
		for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
			walk(n.Properties[name], append(at, name))
		}
		if more, ok := n.AdditionalProperties.(map[string]any); ok && strings.Contains(fmt.Sprint(more["type"]), "string") {
			all = append(all, append(slices.Clone(at), "example"))
		}
	}
	walk(root, nil)
	return all
}

// objectsWith renders the chart with one value set, and returns the objects as JSON. Each file has one object.
func objectsWith(values map[string]any, at []string, value any) (string, error) {
	set := maps.Clone(values)
	inner := set
	for _, name := range at[:len(at)-1] {
		next, _ := inner[name].(map[string]any)
		if next = maps.Clone(next); next == nil {
			next = make(map[string]any)
		}
		inner[name], inner = next, next
	}
	inner[at[len(at)-1]] = value
	files, err := rendered(set)
	if err != nil {
		return "", err
	}
	var all []any
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") || name == "secret.yaml" { // the secret is random
			continue
		}
		d := yamlnode.NewDecoder(strings.NewReader(files[name]))
		var object, more any
		if err := d.Decode(&object); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if err := d.Decode(&more); err == nil {
			return "", fmt.Errorf("%s has two documents", name)
		}
		all = append(all, object)
	}
	b, err := json.Marshal(all)
	return string(b), err
}
