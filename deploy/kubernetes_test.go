package deploy

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// decoder reads objects of the cluster strictly: a field that the API does not have is an error.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, autoscalingv2.AddToScheme, networkingv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// manifests returns the objects that `kubectl apply -k` would send.
func manifests(t *testing.T, dir string) []runtime.Object {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []runtime.Object
	for _, r := range built.Resources() {
		b, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := decoder(t).Decode(b, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", r.CurId(), err)
			continue
		}
		all = append(all, o)
	}
	return all
}

// one returns the only object of a type.
func one[T runtime.Object](t *testing.T, all []runtime.Object) T {
	t.Helper()
	var found []T
	for _, o := range all {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want one", len(found), *new(T))
	}
	return found[0]
}

// TestKubernetes follows every reference between the objects that `kubectl apply -k` sends, and reads their rules.
func TestKubernetes(t *testing.T) {
	all := manifests(t, "kubernetes")
	followReferences(t, all)
	for _, o := range all {
		if m, ok := o.(metav1.Object); ok {
			if _, isNamespace := o.(*corev1.Namespace); !isNamespace && m.GetNamespace() != "ratelimitd" {
				t.Errorf("%T %s is in the namespace %q", o, m.GetName(), m.GetNamespace())
			}
		}
	}
	for _, made := range []any{one[*corev1.ServiceAccount](t, all), one[*policyv1.PodDisruptionBudget](t, all), one[*corev1.Service](t, all)} {
		if name := made.(metav1.Object).GetName(); name != "ratelimitd" {
			t.Errorf("%T has the name %s", made, name)
		}
	}
	if *one[*autoscalingv2.HorizontalPodAutoscaler](t, all).Spec.MinReplicas < 2 {
		t.Error("a single replica: every rollout of a node is an outage")
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

// deployment returns the deployment that runs the service.
func deployment(t *testing.T, all []runtime.Object) *appsv1.Deployment {
	t.Helper()
	for _, o := range all {
		if d, ok := o.(*appsv1.Deployment); ok && d.Name != "redis" {
			return d
		}
	}
	t.Fatal("there is no Deployment of the service")
	return nil
}

func selector(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	sel, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return sel
}

// environment returns the service's variables that objects set, ConfigMaps included. Variables from secrets are empty.
func environment(t *testing.T, all []runtime.Object) map[string]string {
	t.Helper()
	env := make(map[string]string)
	c := deployment(t, all).Spec.Template.Spec.Containers[0]
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
	d := deployment(t, all)
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
				if p.Port != ports[p.TargetPort.StrVal] { // the service is headless, so nothing translates ports
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
			if !selector(t, &o.Spec.Selector).Matches(labels.Set(named[*corev1.Service](t, all, d.Name).Labels)) || !servicePorts[o.Spec.Endpoints[0].Port] {
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
			var items []corev1.KeyToPath
			switch {
			case v.Secret != nil:
				items = v.Secret.Items
			case v.ConfigMap != nil:
				items = v.ConfigMap.Items
			}
			return len(items) == 0 || items[0].Path == path.Base(file)
		})
	}
	for name, value := range env {
		checkEnv(t, "the deployment", name)
		if (strings.HasPrefix(value, "/etc/") || strings.HasPrefix(value, "/var/")) && !mounted(value) {
			t.Errorf("%s names the file %s, which is not mounted", name, value)
		}
	}
	for _, m := range c.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok || m.ReadOnly == (v.EmptyDir != nil) { // only an empty directory is there to be written
			t.Errorf("%s mounts the volume %s, which is not there, or read-only is %t", m.MountPath, m.Name, m.ReadOnly)
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
