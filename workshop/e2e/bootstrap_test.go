package e2e

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
)

// bootstrap is the configuration of an Envoy. Each test has the settings that it tests as Envoy's YAML; all other
// settings are in testdata/envoy.yaml.
type bootstrap struct {
	Name      string
	Listeners []listener
	Clusters  []cluster
	More      string // more settings at the top level

	Env  []string // additional environment of the process
	Args []string // more arguments of the command line
}

// listener is a port of Envoy with its own rate limit filter. Its name separates its statistics from the statistics of
// other listeners.
type listener struct {
	Name    string
	Call    string // how the filter calls the service; default "envoy_grpc: {cluster_name: rls}"
	Timeout string // timeout of the filter's call; default 10s: being slow is not an error here
	Filter  string // more settings of the filter
	Module  string // settings of the module, which then replaces the filter

	Connections   string // more settings of the connection manager: access logs, replies
	FiltersBefore string // filters before the rate limit filter
	FiltersAfter  string // filters after the rate limit filter
	VirtualHost   string // more settings of the virtual host
	Routes        string

	NetworkFilters string // replace HTTP and everything above except the name
}

// cluster is a group of addresses that Envoy connects to.
type cluster struct {
	Name         string
	Endpoints    []string // host:port, or paths of unix sockets
	HTTP2        bool
	HTTP2Options string
	Extra        string // more settings, such as health checks and TLS
}

// upstreamCluster is the cluster that the routes lead to.
func upstreamCluster(u *upstream) cluster {
	return cluster{Name: "upstream", Endpoints: []string{u.addr}}
}

// rls is a cluster of ratelimitd replicas.
func rls(services ...*service) cluster {
	c := cluster{Name: "rls", HTTP2: true}
	for _, s := range services {
		c.Endpoints = append(c.Endpoints, s.GRPC)
	}
	return c
}

// with returns the cluster with more settings.
func (c cluster) with(extra string) cluster {
	c.Extra = extra
	return c
}

// write writes the bootstrap file and returns its path.
func (b bootstrap) write(t *testing.T, dir string) string {
	t.Helper()
	for i := range b.Listeners {
		l := &b.Listeners[i]
		if l.Call == "" {
			l.Call = "envoy_grpc: {cluster_name: rls}"
		}
		if l.Timeout == "" {
			l.Timeout = "10s"
		}
	}
	tmpl, err := template.New("envoy.yaml").Funcs(template.FuncMap{"indent": indent, "address": address}).
		ParseFiles(filepath.Join("testdata", "envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := tmpl.Execute(&text, b); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// indent moves a block of YAML to the right by a number of spaces, and starts it on a new line.
func indent(spaces int, block string) string {
	block = strings.Trim(block, "\n")
	if block == "" {
		return ""
	}
	margin := "\n" + strings.Repeat(" ", spaces)
	return margin + strings.ReplaceAll(block, "\n", margin)
}

// perRoute is a route with limits in the filter's settings for this route. hits_addend works here and in the filter's
// own rate_limits. Envoy ignores it in the rate_limits of a route or virtual host (TestLimitsOfRoutes).
func perRoute(prefix, limits string) string {
	return `
- match: {prefix: ` + prefix + `}
  route: {cluster: upstream, timeout: 60s}
  typed_per_filter_config:
    envoy.filters.http.ratelimit:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
      rate_limits:` + indent(6, limits)
}

// address converts host:port, or the path of a unix socket, into Envoy's form.
func address(of string) (string, error) {
	if strings.HasPrefix(of, "/") {
		return "{pipe: {path: " + of + "}}", nil
	}
	host, port, err := net.SplitHostPort(of)
	return "{socket_address: {address: " + host + ", port_value: " + port + "}}", err
}
