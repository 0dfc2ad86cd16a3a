package deploy

import (
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

// manifests is what `kubectl apply -k` would send.
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

func TestKubernetes(t *testing.T) {
	all := manifests(t, "kubernetes")
	for _, o := range all {
		if m, ok := o.(metav1.Object); ok {
			if _, isNamespace := o.(*corev1.Namespace); !isNamespace && m.GetNamespace() != "ratelimitd" {
				t.Errorf("%T %s is in the namespace %q", o, m.GetName(), m.GetNamespace())
			}
		}
	}
	d := one[*appsv1.Deployment](t, all)
	pod := d.Spec.Template
	c := pod.Spec.Containers[0]

	// Everything that selects pods selects these.
	selects := func(what string, s labels.Selector) {
		if s.Empty() || !s.Matches(labels.Set(pod.Labels)) {
			t.Errorf("%s selects %q, the pods have %v", what, s, pod.Labels)
		}
	}
	asSelector := func(s *metav1.LabelSelector) labels.Selector {
		sel, err := metav1.LabelSelectorAsSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return sel
	}
	service := one[*corev1.Service](t, all)
	selects("the deployment", asSelector(d.Spec.Selector))
	selects("the service", labels.SelectorFromSet(service.Spec.Selector))
	selects("the disruption budget", asSelector(one[*policyv1.PodDisruptionBudget](t, all).Spec.Selector))
	selects("the topology spread", asSelector(pod.Spec.TopologySpreadConstraints[0].LabelSelector))
	scales := one[*autoscalingv2.HorizontalPodAutoscaler](t, all).Spec
	if scales.ScaleTargetRef.Name != d.Name || scales.ScaleTargetRef.Kind != "Deployment" {
		t.Errorf("the autoscaler scales %v", scales.ScaleTargetRef)
	}
	if *scales.MinReplicas < 2 {
		t.Error("a single replica: every rollout of a node is an outage")
	}
	if one[*corev1.ServiceAccount](t, all).Name != pod.Spec.ServiceAccountName {
		t.Errorf("there is no service account %q", pod.Spec.ServiceAccountName)
	}

	// Ports by name, and the probes' pages.
	ports := make(map[string]int32)
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	for _, p := range service.Spec.Ports {
		if ports[p.TargetPort.StrVal] == 0 {
			t.Errorf("the service's port %s leads to %q, which the container does not have", p.Name, p.TargetPort.StrVal)
		}
	}
	for page, probe := range map[string]*corev1.Probe{"/readyz": c.ReadinessProbe, "/livez": c.LivenessProbe} {
		if probe.HTTPGet.Path != page || ports[probe.HTTPGet.Port.StrVal] != 8080 {
			t.Errorf("a probe asks %s on %s, want %s", probe.HTTPGet.Path, probe.HTTPGet.Port.StrVal, page)
		}
	}

	// What the container refers to is there.
	maps := make(map[string]*corev1.ConfigMap)
	for _, o := range all {
		if m, ok := o.(*corev1.ConfigMap); ok {
			maps[m.Name] = m
		}
	}
	env := maps[c.EnvFrom[0].ConfigMapRef.Name]
	if env == nil {
		t.Fatalf("there is no ConfigMap %q", c.EnvFrom[0].ConfigMapRef.Name)
	}
	for name := range env.Data {
		checkEnv(t, "the ConfigMap of the environment", name)
	}
	for _, e := range c.Env {
		checkEnv(t, "the deployment", e.Name)
	}
	volumes := make(map[string]string)
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = v.ConfigMap.Name
	}
	for _, m := range c.VolumeMounts {
		if rules := maps[volumes[m.Name]]; rules == nil || len(rules.Data) == 0 {
			t.Errorf("%s mounts the ConfigMap %q, which is not there or empty", m.MountPath, volumes[m.Name])
		}
	}

	// A pod that leaves has time to.
	drain := drainDelay(t, "deployment.yaml", valueOf(c.Env, "RATELIMITD_DRAIN_DELAY"))
	if drain+stopTimeout >= time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second {
		t.Error("a pod is killed before it has drained")
	}
	if *pod.Spec.SecurityContext.RunAsUser != 65532 || !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Error("the pod is not as locked down as the image")
	}
}

// TestKubernetesRules runs the service on the rules as the ConfigMap volume presents them, with the deployment's environment.
func TestKubernetesRules(t *testing.T) {
	all := manifests(t, "kubernetes")
	for _, o := range all {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Name == "ratelimitd-rules" {
			for name, text := range m.Data {
				checkRules(t, name, text)
			}
			return
		}
	}
	t.Error("there is no ConfigMap of rules")
}
