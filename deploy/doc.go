// Package deploy tests the files for running the service: the container image, docker-compose.yml, the Kubernetes
// manifests, the Prometheus and Grafana files, and the files of examples/. It has only tests.
//
// It is a separate module, so that the libraries that read these files (Kubernetes' API types, kustomize, compose-go)
// do not become dependencies of the service.
//
//   - image_test.go builds the files of the image and runs them in a chroot with nothing else
//   - compose_test.go, kubernetes_test.go decode strictly and follow every reference to a file, a port or a name
//   - containers, a package below, runs docker-compose.yml on a Docker daemon
//   - helm_test.go renders the chart for some sets of values, and compares it with the manifests, its README and its
//     schema
//   - systemd_test.go lets systemd read the unit of the Debian package; release_test.go reads the files of a release
//   - prometheus_test.go runs promtool; metrics_test.go looks every metric of alerts and dashboard up in a real
//     /metrics
//   - dashboard_test.go asks a real Prometheus every query of the dashboard
//   - examples_test.go decodes the examples into the types of Envoy, Envoy Gateway and Istio
package deploy
