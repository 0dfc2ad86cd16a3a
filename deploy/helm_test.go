package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	yamlnode "gopkg.in/yaml.v3"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
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

// valueSets are the files of helm/testdata, by name: sets of values that people use.
func valueSets(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("helm/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]map[string]any)
	for _, f := range files {
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

// rendered is what `helm template ratelimitd` prints, by file of the chart.
func rendered(values map[string]any) (map[string]string, error) {
	return renderedAs("ratelimitd", "ratelimitd", values)
}

func renderedAs(name, namespace string, values map[string]any) (map[string]string, error) {
	c, err := loader.Load(chart)
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

// chartObjects is the chart's objects for some values, decoded strictly: a field that the API does not have is an error.
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
			if m.Severity > support.InfoSev { // a missing icon is no more than that
				t.Errorf("helm lint with %s: %v", name, m)
			}
		}
	}
}

var generated = regexp.MustCompile(`(?m)^  tokens: [A-Za-z0-9+/=]{64}$`)

// TestChartGolden shows in a review what a change of the chart changes in the cluster. Texts that come from other files are
// left out: TestChartCopies and TestChartAlerts compare those.
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

// TestChartNames installs the chart under another name, beside other releases: all objects and their labels have that name.
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
		if _, account := o.(*corev1.ServiceAccount); !account && !strings.HasPrefix(m.GetName(), "edge-ratelimitd") { // that one has a value
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

// TestOverlayWithRedis does the same for the overlay, and looks at what the service finds under the name in REDIS_URL.
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
	ratelimitd := labels.Set(named[*appsv1.Deployment](t, all, "ratelimitd").Spec.Template.Labels)
	if from := policy.Ingress[0].From[0].PodSelector; !selector(t, from).Matches(ratelimitd) || !selector(t, &policy.PodSelector).Matches(labels.Set(redis.Spec.Template.Labels)) {
		t.Error("the network policy keeps ratelimitd from Redis")
	}
}

// named returns the object of a type and name.
func named[T runtime.Object](t *testing.T, all []runtime.Object, name string) (found T) {
	t.Helper()
	for _, o := range all {
		if o, ok := o.(T); ok && any(o).(metav1.Object).GetName() == name {
			return o
		}
	}
	t.Fatalf("there is no %T %s", found, name)
	return found
}

func selector(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

// environment is the service's variables that objects set, ConfigMaps included. Those from secrets are empty.
func environment(t *testing.T, all []runtime.Object) map[string]string {
	t.Helper()
	env := make(map[string]string)
	c := named[*appsv1.Deployment](t, all, "ratelimitd").Spec.Template.Spec.Containers[0]
	for _, from := range c.EnvFrom {
		if from.ConfigMapRef != nil {
			maps.Copy(env, named[*corev1.ConfigMap](t, all, from.ConfigMapRef.Name).Data)
		}
	}
	for _, e := range c.Env {
		if _, twice := env[e.Name]; twice {
			t.Errorf("%s is set twice", e.Name)
		}
		env[e.Name] = e.Value
	}
	return env
}

// followReferences looks for everything that the objects of the service refer to.
func followReferences(t *testing.T, all []runtime.Object) {
	t.Helper()
	d := named[*appsv1.Deployment](t, all, "ratelimitd")
	pod := d.Spec.Template
	c := pod.Spec.Containers[0]
	ports := make(map[string]int32)
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	selects := func(what string, s labels.Selector) {
		if s.Empty() || !s.Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s selects %q, the pods have %v", what, s, pod.Labels)
		}
	}
	hasPort := func(what, name string) {
		if ports[name] == 0 {
			t.Errorf("%s refers to the port %q, which the container does not have", what, name)
		}
	}
	selects("the deployment", selector(t, d.Spec.Selector))
	for _, s := range pod.Spec.TopologySpreadConstraints {
		selects("the topology spread", selector(t, s.LabelSelector))
	}
	servicePorts := make(map[string]bool)
	for _, o := range all {
		if m, ok := o.(metav1.Object); ok && m.GetName() == "redis" {
			continue
		}
		switch o := o.(type) {
		case *corev1.Service:
			selects("the service", labels.SelectorFromSet(o.Spec.Selector))
			for _, p := range o.Spec.Ports {
				servicePorts[p.Name] = true
				if p.Port != ports[p.TargetPort.StrVal] { // the service has no address of its own that could translate
					t.Errorf("the service's port %s is %d, the container listens on %d", p.Name, p.Port, ports[p.TargetPort.StrVal])
				}
				hasPort("the service", p.TargetPort.StrVal)
			}
		case *policyv1.PodDisruptionBudget:
			selects("the disruption budget", selector(t, o.Spec.Selector))
		case *networkingv1.NetworkPolicy:
			selects("the network policy", selector(t, &o.Spec.PodSelector))
			for _, in := range o.Spec.Ingress {
				for _, p := range in.Ports {
					hasPort("the network policy", p.Port.StrVal)
				}
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			if o.Spec.ScaleTargetRef.Name != d.Name || o.Spec.ScaleTargetRef.Kind != "Deployment" || d.Spec.Replicas != nil {
				t.Errorf("the autoscaler scales %v, and the deployment has its own number %v", o.Spec.ScaleTargetRef, d.Spec.Replicas)
			}
		case *corev1.ServiceAccount:
			if o.Name != pod.Spec.ServiceAccountName {
				t.Errorf("the pods' service account is %q, not %q", pod.Spec.ServiceAccountName, o.Name)
			}
		}
	}
	for _, o := range all {
		if o, ok := o.(*monitoringv1.ServiceMonitor); ok {
			if !selector(t, &o.Spec.Selector).Matches(labels.Set(named[*corev1.Service](t, all, "ratelimitd").Labels)) || !servicePorts[o.Spec.Endpoints[0].Port] {
				t.Error("the ServiceMonitor finds no port of the service")
			}
		}
	}
	for what, probe := range map[string]*corev1.Probe{"/readyz": c.ReadinessProbe, "/livez": c.LivenessProbe} {
		if hasPort("a probe", probe.HTTPGet.Port.StrVal); probe.HTTPGet.Path != what {
			t.Errorf("a probe asks %s, want %s", probe.HTTPGet.Path, what)
		}
	}

	// Every variable is known to the service, and every file that one names is mounted.
	env := environment(t, all)
	volumes := make(map[string]corev1.Volume)
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v
	}
	mounted := func(file string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			v, ok := volumes[m.Name]
			if !ok || path.Dir(file) != m.MountPath {
				return false
			}
			return v.Secret == nil || len(v.Secret.Items) == 0 || v.Secret.Items[0].Path == path.Base(file)
		})
	}
	for name, value := range env {
		checkEnv(t, "the deployment", name)
		if strings.HasPrefix(value, "/etc/") && !mounted(value) {
			t.Errorf("%s names the file %s, which is not mounted", name, value)
		}
	}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok || !m.ReadOnly {
			t.Errorf("%s mounts the volume %s, which is not there, or may be written", m.MountPath, m.Name)
		}
		if m.Name == "rules" && m.MountPath != path.Join(env["RUNTIME_ROOT"], env["RUNTIME_APPDIRECTORY"]) {
			t.Errorf("the rules are in %s, where the service does not look", m.MountPath)
		}
		if v.ConfigMap != nil && strings.HasPrefix(v.ConfigMap.Name, "ratelimitd") {
			for name, text := range named[*corev1.ConfigMap](t, all, v.ConfigMap.Name).Data {
				checkRules(t, name, text)
			}
		}
	}
	_, files := env["RUNTIME_ROOT"]
	if _, xds := env["CONFIG_GRPC_XDS_SERVER_URL"]; files == xds {
		t.Error("rules come from files or over xDS, not from both, and not from neither")
	}

	// A pod that leaves has time to, and may do as little as the image allows.
	drain, err := time.ParseDuration(env["RATELIMITD_DRAIN_DELAY"])
	if err != nil || drain < 4*time.Second {
		t.Errorf("the drain delay %q is no time, or shorter than Envoy's health checks need", env["RATELIMITD_DRAIN_DELAY"])
	}
	stop := stopTimeout
	if text, ok := env["RATELIMITD_STOP_TIMEOUT"]; ok {
		if stop, err = time.ParseDuration(text); err != nil {
			t.Error(err)
		}
	}
	if drain+stop >= time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second {
		t.Error("a pod is killed before it has drained")
	}
	if *pod.Spec.SecurityContext.RunAsUser != 65532 || !*pod.Spec.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		*c.SecurityContext.AllowPrivilegeEscalation || c.SecurityContext.Capabilities.Drop[0] != "ALL" || *pod.Spec.AutomountServiceAccountToken {
		t.Error("the pod is not as locked down as the image")
	}
}

// TestChartIsTheManifests compares the chart with deploy/kubernetes: with the same Redis both make the same objects, except
// for labels, and for what each has because of its tool.
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

// TestChartCopies holds the chart's files, which Helm wants in the chart's folder, to the files that they are copies of.
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

// TestChartAlerts holds the PrometheusRule to alerts.yml: all alerts but those left out, about the ServiceMonitor's job.
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

// TestChartRefuses tries values that would be a surprise in the cluster. Each error says what to do.
func TestChartRefuses(t *testing.T) {
	for values, want := range map[string]string{
		`{redis: {uri: "a:1"}}`:                                                "uri",
		`{replicas: two}`:                                                      "replicas",
		`{redis: {url: "a:1", type: cluster}}`:                                 "type",
		`{rules: {files: {a.yaml: "x", b.yaml: 3}}}`:                           "b.yaml",
		`{rules: {existingConfigMap: a}, xds: {url: "a:1"}}`:                   "set only one of rules.files, rules.existingConfigMap and xds.url",
		`{admin: {expose: true}}`:                                              "admin.existingSecret, or admin.generateToken=true",
		`{admin: {existingSecret: a, generateToken: true}}`:                    "not both",
		`{redis: {tls: {enabled: true}}}`:                                      "need redis.url",
		`{redis: {existingSecret: a}}`:                                         "need redis.url",
		`{redis: {url: "a:1", tls: {existingSecret: a}}}`:                      "redis.tls.enabled=true",
		`{redis: {url: "a:1", tls: {enabled: true, clientCertificate: true}}}`: "redis.tls.existingSecret",
		`{xds: {url: "a:1", tls: {existingSecret: a}}}`:                        "xds.tls.enabled=true",
		`{xds: {url: "a:1", tls: {enabled: true, clientCertificate: true}}}`:   "xds.tls.existingSecret",
		`{xds: {tls: {enabled: true}}}`:                                        "xds.tls needs xds.url",
		`{tls: {clientCertificates: true}}`:                                    "tls.existingSecret",
		`{tls: {existingSecret: a, clientSAN: b}}`:                             "tls.clientCertificates=true",
		`{stop: {drainDelaySeconds: -1}}`:                                      "drainDelaySeconds",
		`{image: {digest: "sha256:short"}}`:                                    "digest",
		`{fullnameOverride: "Not_A_Name"}`:                                     "fullnameOverride",
		`{env: {"NOT-A-NAME": "x"}}`:                                           "NOT-A-NAME",
		`{autoscaling: {minReplicas: 20}}`:                                     "more than autoscaling.maxReplicas",
		`{autoscaling: {minReplicas: 0}, redis: {url: "a:1"}}`:                 "minReplicas",
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

// described is every value of values.yaml. A map whose keys have no comments is one value.
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
			// The comment of the file stands before that of the first key.
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
		tried++
	}
	if tried != 2 {
		t.Errorf("%d examples were tried, not 2", tried)
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

// TestChartServes runs the service in the image with what the chart gives the container without any value: its environment
// and its rules. It counts, and its probes find it.
func TestChartServes(t *testing.T) {
	all := chartObjects(t, valueSets(t)["example"])
	c := named[*appsv1.Deployment](t, all, "ratelimitd").Spec.Template.Spec.Containers[0]
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
